"""The forward pass of the generation engine: pending tokens in, logits of the tokens to come out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from transformers.cache_utils import Cache

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.workers.huggingface.attention import ATTENTION, Span, Step, current_step
from scaffolding_ext.workers.huggingface.engine_request import EngineRequest
from scaffolding_ext.workers.huggingface.kv_cache import KVRows, Slots

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_KV_STEP = 32  # attention lengths are rounded up to this, so that few shapes occur
_NUM_BITS = 4  # significant bits of the number of tokens in a pass, for the same reason
_NEEDS_NO_POSITIONS = ("mpt",)  # its attention knows distances


class Work(NamedTuple):
    """What one request computes in a pass: its next pending tokens."""

    request: EngineRequest
    num_tokens: int

    @property
    def completes(self) -> bool:
        """Whether nothing is pending afterwards, so that the next token can be drawn."""
        holder = self.request.holder
        return holder.num_kv + self.num_tokens == len(holder.token_ids)


class _Inputs(NamedTuple):
    """The tokens of a pass, flat: shape (tokens,) each, padding last."""

    ids: torch.Tensor
    positions: torch.Tensor
    slots: Slots


class ModelRunner:
    """A model and the keys and values of the requests that it runs on.

    Args:
        model: A causal LM in evaluation mode. Where its attention is `ATTENTION`, a pass is one call of it, with all
            tokens in one flat sequence; else it is one call a span.
        kv: Where keys and values are kept.

    Raises:
        ConfigError: The model cannot be told where a token stands.
    """

    def __init__(self, model: PreTrainedModel, kv: KVRows) -> None:
        self._model = model
        self._kv = kv
        self._is_flat = model.config.get_text_config()._attn_implementation == ATTENTION
        parameters = inspect.signature(model.forward).parameters
        self._selects_logits = "logits_to_keep" in parameters
        if (
            not self._is_flat
            and "position_ids" not in parameters
            and model.config.model_type not in _NEEDS_NO_POSITIONS
        ):
            raise ConfigError(
                f"is of type {model.config.model_type}, which takes no position_ids: choose another model", "model"
            )

    def forward(self, works: list[Work], class_of_row: Callable[[int], int]) -> torch.Tensor:
        """Compute pending tokens, and read the scores that they give.

        Args:
            works: What is computed, in the order of the rows.
            class_of_row: Tells of a row its class; only rows of one class attend together.

        Returns:
            Logits of the next token of each request that this pass completes, in order: shape (requests,
            vocabulary), float32.
        """
        inputs, spans = self._prepare(works, class_of_row)
        wanted: list[int] = []  # flat indices of the tokens whose logits are needed
        scored: list[tuple[Work, int]] = []
        completed: list[int] = []
        start = 0
        for work in works:
            first, last = _scored_range(work)
            if first < last:
                scored.append((work, len(wanted)))
                wanted += range(start + first, start + last)
            start += work.num_tokens
            if work.completes:
                completed.append(len(wanted))
                wanted.append(start - 1)
        run = self._run_flat if self._is_flat else self._run_spans
        logits = run(inputs, spans, torch.tensor(wanted or [0], device=inputs.ids.device)).float()
        for work, row in scored:
            _read_scores(work, logits[row:])
        if len(completed) == len(logits):
            return logits
        return logits[torch.tensor(completed, dtype=torch.long, device=logits.device)]

    def _prepare(self, works: list[Work], class_of_row: Callable[[int], int]) -> tuple[_Inputs, list[Span]]:
        num_tokens = sum(work.num_tokens for work in works)
        step = 1 << max(0, num_tokens.bit_length() - _NUM_BITS)
        flat = np.zeros((3, -(-num_tokens // step) * step if self._is_flat else num_tokens), np.int64)
        flat[2, num_tokens:] = self._kv.capacity  # padding is written where nobody reads
        stretches: list[tuple[int, int, int, int]] = []  # first row, rows, tokens of each, positions
        previous: tuple[int, int] | None = None
        start = 0
        for request, count in works:
            holder = request.holder
            stop, num_kv, kv_len = start + count, holder.num_kv, holder.num_kv + count
            flat[0, start:stop] = holder.token_ids[num_kv:kv_len] if count > 1 else holder.token_ids[num_kv]
            flat[1, start:stop] = holder.row
            flat[2, start:stop] = np.arange(num_kv, kv_len) if count > 1 else num_kv
            place = (class_of_row(holder.row), holder.row) if count == 1 else None
            if place is not None and previous == (place[0], place[1] - 1):
                first_row, num_rows, _, longest = stretches[-1]
                stretches[-1] = first_row, num_rows + 1, 1, max(longest, kv_len)
            else:
                stretches.append((holder.row, 1, count, kv_len))
            previous, start = place, stop
        ids, rows, positions = torch.from_numpy(flat).to(self._model.device)
        spans, start = [], 0
        for first_row, num_rows, count, longest in stretches:
            stop = start + num_rows * count
            kv_len = min(-(-longest // _KV_STEP) * _KV_STEP, self._kv.capacity)
            places = positions[start:stop].view(num_rows, count)
            spans.append(Span(first_row, num_rows, count, kv_len, places, self._model.dtype))
            start = stop
        inputs = _Inputs(ids, positions.where(positions < self._kv.capacity, 0), Slots(rows, positions))
        return inputs, spans

    def _run_flat(self, inputs: _Inputs, spans: list[Span], wanted: torch.Tensor) -> torch.Tensor:
        token = current_step.set(Step(self._kv, inputs.slots, spans, set()))
        try:
            return self._logits(
                wanted, input_ids=inputs.ids[None], position_ids=inputs.positions[None], use_cache=False
            )[0]
        finally:
            current_step.reset(token)

    def _run_spans(self, inputs: _Inputs, spans: list[Span], wanted: torch.Tensor) -> torch.Tensor:
        parts, start = [], 0
        for span in spans:  # of one row, or of one token a row
            shape = span.num_rows, span.num_tokens
            tokens = slice(start, start + span.num_rows * span.num_tokens)
            chosen = wanted[(wanted >= tokens.start) & (wanted < tokens.stop)] - start
            is_one_row = span.num_rows == 1 and len(chosen) > 0
            logits = self._logits(
                chosen if is_one_row else torch.zeros_like(wanted[:1]),
                input_ids=inputs.ids[tokens].view(shape),
                position_ids=inputs.positions[tokens].view(shape),
                attention_mask=span.mask(),
                past_key_values=_SpanCache(
                    self._kv, span, Slots(inputs.slots.rows[tokens], inputs.slots.positions[tokens])
                ),
                use_cache=True,
            )
            parts.append(logits[0] if is_one_row else logits[chosen, 0])
            start = tokens.stop
        return torch.cat(parts)

    def _logits(self, columns: torch.Tensor, **arguments: Any) -> torch.Tensor:
        """Run the model; returns the logits of some columns of the input, shape (rows, columns, vocabulary)."""
        if self._selects_logits:
            arguments["logits_to_keep"] = columns
        logits: torch.Tensor = self._model(**arguments).logits
        return logits if self._selects_logits else logits[:, columns]


class _SpanCache(Cache):  # type: ignore[misc]
    """Rows of keys and values as the cache that a model's own attention expects."""

    def __init__(self, kv: KVRows, span: Span, slots: Slots) -> None:
        super().__init__(layers=[])
        self._kv = kv
        self._span = span
        self._slots = slots

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one layer's new keys and values, shape (rows, heads, tokens, head size); return all that is visible."""
        keys, values = (states.transpose(0, 1).flatten(1, 2) for states in (key_states, value_states))
        self._kv.write(layer_idx, keys, values, self._slots)
        return self._kv.read(layer_idx, self._span.first_row, self._span.num_rows, self._span.kv_len)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions that attention sees; asked for by models that derive positions themselves."""
        return self._span.kv_len


def _scored_range(work: Work) -> tuple[int, int]:
    """Which of the computed tokens have logits that are wanted, themselves or for the token that they predict."""
    request, start = work.request, work.request.holder.num_kv
    if request.wants_logits:
        first, stop = 0, request.prompt_len
    elif request.score_from is not None:
        first, stop = request.score_from - 1, request.prompt_len - 1
    else:
        return 0, 0
    return max(start, first) - start, min(start + work.num_tokens, stop) - start


def _read_scores(work: Work, logits: torch.Tensor) -> None:
    """Take the logits of prompt tokens, or the log-probabilities of those they predict, from a pass's first rows."""
    request, start = work.request, work.request.holder.num_kv
    first, last = (start + offset for offset in _scored_range(work))
    if request.wants_logits:
        if request.context_logits is None:
            request.context_logits = torch.empty(request.prompt_len, logits.shape[-1])
        request.context_logits[first:last] = logits[: last - first]
        return
    targets = torch.tensor(request.holder.token_ids[first + 1 : last + 1], device=logits.device)
    log_probabilities = torch.log_softmax(logits[: last - first], -1)
    known = first + 1 - (request.score_from or 0)  # a pass that failed halfway is repeated
    request.scores[known:] = log_probabilities.gather(-1, targets[:, None])[:, 0].tolist()
