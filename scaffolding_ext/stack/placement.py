"""Whether the models that a stack puts on one GPU leave room for each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.registry import Factory


class PlannedWorker(NamedTuple):
    """A worker as a stack file has it.

    Its class may say what it will take: `memory_shares(args)` gives the share of the free memory of each GPU, and
    `engine_needs(args)` the needs that an engine must have been built for. A class without these methods takes nothing.

    Attributes:
        path: Where it stands in the file.
        factory: Its class, or a function that makes one.
        args: Its arguments; workers among them are not built.
    """

    path: str
    factory: Factory
    args: Mapping[str, Any]

    @property
    def tag(self) -> str:
        """The tag that it serves, by itself or inside another worker."""
        return self.path.split(".")[1]


def check_placement(workers: Iterable[PlannedWorker]) -> None:
    """Refuse workers whose shares of one GPU's memory exceed 1.

    Each share is of what is free when its worker is built. The sum is a bound that holds in whatever order they are.

    Args:
        workers: All workers of a stack, those inside others included.

    Raises:
        ConfigError: The shares on a GPU exceed 1; `key` is that of the last.
    """
    shares: dict[int | None, list[tuple[PlannedWorker, float]]] = defaultdict(list)
    for worker in workers:
        declared = getattr(worker.factory, "memory_shares", None)
        for device, share in (declared(worker.args) if declared else {}).items():
            shares[device].append((worker, share))
    for device, own in shares.items():
        together = own if device is None else shares.get(None, []) + own  # a worker that names no GPU is on each
        total = sum(share for _, share in together)
        if len(together) > 1 and total > 1 + 1e-9:
            described = ", ".join(f"{worker.tag} {share:g}" for worker, share in together)
            where = "the same GPU" if device is None else f"GPU {device}"
            raise ConfigError(
                f"the workers on {where} take more of its memory than there is ({described}, in all "
                f"{total:g}): give each a kv_cache_fraction, 1 in all, or GPUs of its own by devices",
                f"{together[-1][0].path}.args.kv_cache_fraction",
            )
