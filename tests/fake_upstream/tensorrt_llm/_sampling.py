"""`SamplingParams` with the fields, defaults and checks of the releases, which import it from places of their own."""

from dataclasses import dataclass, field
from typing import Any

from tensorrt_llm import HAS_NEWEST_FIELDS


@dataclass(slots=True, kw_only=True)
class GuidedDecodingParams:
    json: Any = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    bad: str | list[str] | None = None
    bad_token_ids: list[int] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    embedding_bias: Any = None
    logits_processor: Any = None
    apply_batched_logits_processor: bool = False
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    top_p: float | None = None
    top_p_min: float | None = None
    top_p_reset_ids: int | None = None
    top_p_decay: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    beam_search_diversity_rate: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    length_penalty: float | None = None
    early_stopping: int | None = None
    no_repeat_ngram_size: int | None = None
    min_p: float | None = None
    beam_width_array: list[int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    if HAS_NEWEST_FIELDS:
        logprobs_simple_format: bool = False
        prompt_logprobs_simple_format: bool = False
    return_context_logits: bool = False
    return_generation_logits: bool = False
    exclude_input_from_output: bool = True
    return_encoder_output: bool = False
    return_perf_metrics: bool = False
    additional_model_outputs: list[str] | None = None
    lookahead_config: Any = None
    guided_decoding: Any = None
    if HAS_NEWEST_FIELDS:
        thinking_token_budget: int | None = None
    ignore_eos: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    _stream_interval: int | None = field(default=None, init=False, repr=False)
    _stop_word_ids: list[list[int]] | None = field(default=None, init=False, repr=False)

    def __post_init__(self):
        self.best_of = self.best_of or self.n
        if self.top_p is not None and not 0 <= self.top_p <= 1:
            raise ValueError(f"require 0 <= top_p <= 1, got top_p={self.top_p}")
        if self.top_k is not None and self.top_k < 0:
            raise ValueError(f"require top_k >= 0, got top_k={self.top_k}")
        for name in ("logprobs", "prompt_logprobs") if HAS_NEWEST_FIELDS else ():
            if (getattr(self, name) or 0) > 100:
                raise ValueError(f"{name} must be less than or equal to 100")
        if self.best_of > 1 and self.greedy:
            raise ValueError("Greedy decoding in the LLM API does not allow multiple returns")

    def _setup(self, tokenizer, generation_config):
        """Reads stop strings as tokens, and adds the model's further ends to the very list that it was given."""
        self.end_id = tokenizer.eos_token_id
        strings = [self.stop] if isinstance(self.stop, str) else self.stop or []
        self._stop_word_ids = [tokenizer.encode(string, add_special_tokens=False) for string in strings]
        ends = generation_config.eos_token_id
        self.stop_token_ids = self.stop_token_ids or []
        for token in ends if isinstance(ends, list) else [ends]:
            if token not in (self.end_id, *self.stop_token_ids):
                self.stop_token_ids.append(token)
        self.stop_token_ids = self.stop_token_ids or None

    def _apply_generation_config_defaults(self, generation_config):
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "no_repeat_ngram_size")
        for name in names:
            if getattr(self, name) is None and generation_config.get(name) is not None:
                setattr(self, name, generation_config[name])

    def _get_stop_reasons_and_words(self):
        strings = [self.stop] if isinstance(self.stop, str) else self.stop or []
        tokens = self.stop_token_ids or []
        return list(zip([*tokens, *strings], [*([token] for token in tokens), *self._stop_word_ids], strict=True))

    @property
    def greedy(self):
        unset = self.temperature is None and self.top_p is None and self.top_k is None
        return unset or self.top_k == 1 or self.top_p == 0 or self.temperature == 0
