"""Penalties and bans of a model's generation config, which `transformers` applies to the logits before it samples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from scaffolding_ext.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from scaffolding_ext.workers.huggingface.model_loading import LoadedModel

_REFUSED = (  # of those that change texts
    *("num_beams", "penalty_alpha", "dola_layers", "guidance_scale", "watermarking_config", "force_words_ids"),
    *("constraints", "forced_bos_token_id", "forced_eos_token_id", "stop_strings", "token_healing"),
)
_REFUSED_SAMPLING = ("typical_p", "epsilon_cutoff", "eta_cutoff", "top_h")  # greedy decoding ignores them
_OFF_AT_ONE = ("num_beams", "guidance_scale", "typical_p")

Processor = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]


def check_processors(said: Mapping[str, Any]) -> None:
    """Refuse a generation config, by its fields that differ from the defaults, with one that is not served.

    Raises:
        ConfigError: A field changes texts in a way that is not served.
    """
    for name in _REFUSED + (_REFUSED_SAMPLING if said.get("do_sample") else ()):
        value = said.get(name)
        if value and not (value == 1 and name in _OFF_AT_ONE):
            raise ConfigError(
                f"has a generation config with {name} {value!r}, which HuggingFaceWorker does not apply, so its texts "
                f"would differ from those of generate(): remove {name} from generation_config.json",
                "model",
            )


def processors_of(loaded: LoadedModel, prompt_len: int) -> tuple[Processor, ...]:
    """Make the processors of a request; each takes ids, shape (1, tokens), and logits, shape (1, vocabulary)."""
    import torch

    config = copy.copy(loaded.network.generation_config)
    config.do_sample = False  # temperature, top-p and top-k are applied with the batch
    config.suppress_tokens = config.suppress_tokens or None
    config._eos_token_tensor = torch.tensor(sorted(loaded.end_ids), device=loaded.network.device)
    return tuple(loaded.network._get_logits_processor(config, prompt_len, device=loaded.network.device))
