"""Penalties and bans of a model's generation config, which `transformers` applies to the logits before it samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from scaffolding_ext.errors import ConfigError

if TYPE_CHECKING:
    import torch


class _Context(NamedTuple):
    """Values that processors of one request are made with."""

    prompt_len: int
    end_ids: list[int]
    device: torch.device


Processor = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
_APPLIED: dict[str, tuple[str, Callable[[Any, _Context], Sequence[Any]]]] = {  # in transformers' order
    "sequence_bias": ("SequenceBiasLogitsProcessor", lambda value, _: [value]),
    "repetition_penalty": ("RepetitionPenaltyLogitsProcessor", lambda value, _: [float(value)]),
    "no_repeat_ngram_size": ("NoRepeatNGramLogitsProcessor", lambda value, _: [value]),
    "bad_words_ids": ("NoBadWordsLogitsProcessor", lambda value, of: [value, of.end_ids]),
    "min_length": ("MinLengthLogitsProcessor", lambda value, of: [value, of.end_ids, of.device]),
    "min_new_tokens": (
        "MinNewTokensLengthLogitsProcessor",
        lambda value, of: [of.prompt_len, value, of.end_ids, of.device],
    ),
    "exponential_decay_length_penalty": (
        "ExponentialDecayLengthPenalty",
        lambda value, of: [tuple(value), of.end_ids, of.prompt_len],
    ),
    "suppress_tokens": ("SuppressTokensLogitsProcessor", lambda value, of: [value, of.device]),
    "begin_suppress_tokens": (
        "SuppressTokensAtBeginLogitsProcessor",
        lambda value, of: [value, of.prompt_len, of.device],
    ),
}
_REFUSED = (  # of those that change texts
    *("num_beams", "penalty_alpha", "dola_layers", "guidance_scale", "watermarking_config", "force_words_ids"),
    *("constraints", "forced_bos_token_id", "forced_eos_token_id", "stop_strings", "token_healing"),
)
_REFUSED_SAMPLING = ("typical_p", "epsilon_cutoff", "eta_cutoff", "top_h")  # greedy decoding ignores them
_OFF_AT_ONE = ("num_beams", "repetition_penalty", "guidance_scale", "typical_p")


class LogitsProcessors:
    """The penalties and bans of one generation config.

    Args:
        said: Its fields that differ from transformers' defaults.
        end_ids: Token ids that end a text.

    Raises:
        ConfigError: A field changes texts in a way that is not served.
    """

    def __init__(self, said: Mapping[str, Any], end_ids: Iterable[int]) -> None:
        effective = {name for name, value in said.items() if value and not (value == 1 and name in _OFF_AT_ONE)}
        refused = _REFUSED + (_REFUSED_SAMPLING if said.get("do_sample") else ())
        for name in refused:
            if name in effective:
                raise ConfigError(
                    f"has a generation config with {name} {said[name]!r}, which HuggingFaceWorker does not apply, so "
                    f"its texts would differ from those of generate(): remove {name} from generation_config.json",
                    "model",
                )
        self._said = {name: said[name] for name in _APPLIED if name in effective}
        self._end_ids = sorted(end_ids)

    def of_request(self, prompt_len: int, device: torch.device) -> tuple[Processor, ...]:
        """Processors of a request; each takes ids, shape (1, tokens), and logits, shape (1, vocabulary)."""
        if not self._said:
            return ()
        from transformers.generation import logits_process

        context = _Context(prompt_len, self._end_ids, device)
        return tuple(
            getattr(logits_process, name)(*arguments(self._said[field], context))
            for field, (name, arguments) in _APPLIED.items()
            if field in self._said
        )
