"""Whether the models that a stack puts on one GPU leave room for each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.stack.config import ComponentConfig

_TYPE = "TRTLLMWorker"
_DEFAULT_FRACTION = 0.9  # TensorRT-LLM's own share of the free memory
_ALL_VISIBLE = -1  # stands for the GPUs of workers that name none


def check_placement(workers: Mapping[str, ComponentConfig]) -> None:
    """Refuse TRTLLMWorkers whose shares of one GPU's memory exceed 1.

    Each share is of what is free when its worker is built. The sum is a bound that holds in whatever order they are.

    Args:
        workers: The stack's workers by tag.

    Raises:
        ConfigError: The shares on a GPU exceed 1; `key` is that of the last.
    """
    shares: dict[int, dict[str, float]] = defaultdict(dict)
    for tag, worker in workers.items():
        if worker.type.rpartition(":")[2] != _TYPE or "$ref" in str(worker.args.get("model")):
            continue
        fraction = worker.args.get("kv_cache_fraction")
        for device in worker.args.get("devices") or [_ALL_VISIBLE]:
            shares[device][tag] = _DEFAULT_FRACTION if fraction is None else fraction
    for device, own in shares.items():
        on_all = {} if device == _ALL_VISIBLE else shares.get(_ALL_VISIBLE, {})
        together = {**on_all, **own}
        if len(together) > 1 and sum(together.values()) > 1 + 1e-9:
            described = ", ".join(f"{tag} {fraction:g}" for tag, fraction in together.items())
            where = "the same GPU" if device == _ALL_VISIBLE else f"GPU {device}"
            raise ConfigError(
                f"the workers on {where} take more of its memory than there is ({described}, in all "
                f"{sum(together.values()):g}): give each a kv_cache_fraction, 1 in all, or GPUs of its own by devices",
                f"workers.{list(together)[-1]}.args.kv_cache_fraction",
            )
