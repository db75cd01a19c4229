"""The forward pass of the generation engine: pending tokens in, logits of the tokens to come out."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.workers.huggingface.attention import ATTENTION, AttentionMetadata, Span, current_step
from scaffolding_ext.workers.huggingface.engine_request import Work
from scaffolding_ext.workers.huggingface.flashinfer_attention import FlashInferPlans, Wrappers
from scaffolding_ext.workers.huggingface.kv_blocks import KVBlocks, Slots
from scaffolding_ext.workers.huggingface.layer_loop import LayerLoop, why_not_layer_by_layer
from scaffolding_ext.workers.huggingface.prefix_index import TokenSequence

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Integers = npt.NDArray[np.int64]
_NUM_BITS = 4  # the number of tokens in a pass is rounded to so many bits, so that few shapes occur
_FEW = 8  # tokens of a request up to which the kernel is faster than torch
_LONGEST_SPAN = 256  # tokens of one request whose attention torch computes at once, up to the last of them
_SHORTEST = 64  # tokens: the class of the shortest requests
_NEEDS_NO_POSITIONS = ("mpt",)  # its attention uses distances


class ModelRunner:
    """A model and the keys and values of the requests that it runs on.

    If the model's attention is `ATTENTION`, a pass is one call of the model, or one call of each of its layers, with
    all tokens in one flat sequence. Otherwise a pass is one call for each span.

    Raises:
        ConfigError: The model takes no positions of tokens.
    """

    def __init__(self, model: PreTrainedModel, kv: KVBlocks) -> None:
        self._model = model
        self._device, self._dtype = (
            model.device,
            model.dtype,
        )  # otherwise the model would search its weights for them each time
        self._kv = kv
        self._wrappers: Wrappers = {}
        self._is_flat = model.config.get_text_config()._attn_implementation == ATTENTION
        self._layers = LayerLoop(model) if why_not_layer_by_layer(model) is None else None
        parameters = inspect.signature(model.forward).parameters
        self._selects_logits = "logits_to_keep" in parameters
        if (
            not self._is_flat
            and "position_ids" not in parameters
            and model.config.model_type not in _NEEDS_NO_POSITIONS
        ):
            raise ConfigError(
                f"is of type {model.config.model_type}, whose forward() takes no position_ids: choose another model",
                "model",
            )

    def forward(self, works: list[Work]) -> torch.Tensor:
        """Compute pending tokens, and read their scores.

        Args:
            works: The works to compute. They are put in the order of their tokens, requests that decode first. Requests
                that are read after each layer come last, in a pass of their own.

        Returns:
            Logits of the next token of each request that this pass completes, in order: shape (requests, vocabulary),
            float32.
        """
        works[:] = [works[row] for row in _order(works)]
        layered = [
            work for work in works if work.completes and (work.request.wants.layer_exit or work.request.wants.states)
        ]
        if self._layers is None or not layered:
            return self._forward(works)
        works.sort(key=layered.__contains__)
        others = works[: len(works) - len(layered)]
        parts = [self._forward(others)] if others else []
        return torch.cat([*parts, self._layers.run(layered, self._prepare)])

    def _forward(self, works: list[Work]) -> torch.Tensor:
        ids, step = self._prepare(works, self._is_flat)
        wanted: list[int] = []  # flat indices of the tokens whose logits are needed
        scored: list[tuple[Work, int]] = []
        completed: list[int] = []
        start = num_wanted = 0
        for work in works:
            wants = work.request.wants
            if wants.logits or wants.score_from is not None:
                first, last = _scored_range(work)
                if first < last:
                    scored.append((work, num_wanted))
                    wanted += range(start + first, start + last)
                    num_wanted += last - first
            start += work.num_tokens
            if work.completes:
                completed += (num_wanted,)
                wanted += (start - 1,)
                num_wanted += 1
        run = self._run_flat if self._is_flat else self._run_spans
        logits = run(ids, step, torch.tensor(wanted or [0], device=self._device)).float()
        for work, row in scored:
            _read_scores(work, logits[row:])
        if len(completed) == len(logits):
            return logits
        return logits[torch.tensor(completed, dtype=torch.long, device=self._device)]

    def _prepare(self, works: list[Work], is_rounded: bool = False) -> tuple[torch.Tensor, AttentionMetadata]:
        """The tokens of a pass, flat, with padding at the end if needed; and what attention must know about them."""
        block_len = self._kv.tokens_per_block
        sequences = [work.request.sequence for work in works]
        counts = np.array([work.num_tokens for work in works])
        num_kv = np.array([sequence.num_kv for sequence in sequences])
        ends, kv_lens = counts.cumsum(), num_kv + counts
        num_tokens = int(ends[-1])
        rounding = 1 << max(0, num_tokens.bit_length() - _NUM_BITS)
        flat = np.zeros((6, -(-num_tokens // rounding) * rounding if is_rounded else num_tokens), np.int64)
        flat[3, num_tokens:] = self._kv.padding
        tables = _tables_of(sequences)
        places = flat[:, :num_tokens]
        places[0] = [
            token_id
            for sequence, (_, count, _) in zip(sequences, works, strict=True)
            for token_id in sequence.token_ids[sequence.num_kv : sequence.num_kv + count]
        ]
        places[2] = np.arange(len(works)).repeat(counts)
        places[1] = np.arange(num_tokens) + (kv_lens - ends)[places[2]]
        np.divmod(places[1], block_len, out=(places[3], places[4]))
        places[3] = tables[places[2], places[3]]
        flat[5, : num_tokens - 1] = _shared_with_next(tables, places[2], places[1], block_len)
        shared = flat[5]
        ids, positions, rows, blocks, offsets, device_shared = torch.from_numpy(flat).to(self._device)
        device_tables = torch.from_numpy(tables).to(self._device)
        spans, start = [], 0
        firsts = _first_of_spans(counts, num_kv, tables[:, 0])
        for first, last in zip(firsts, [*firsts[1:], len(works)], strict=True):
            kv_len = -(-int(kv_lens[first:last].max()) // block_len) * block_len
            stop, count = int(ends[last - 1]), int(counts[first])
            shared_len = int(shared[start : stop - 1].min()) if last - first > 1 else 0
            tables_of = device_tables[first:last, : kv_len // block_len]
            own = positions[start:stop].view(last - first, count)
            if last - first > 1 or count <= _LONGEST_SPAN or not self._is_flat:
                spans.append(Span(start, tables_of, own, kv_len, shared_len, self._dtype))
            else:  # each part reads no further than its own last token
                spans += self._parts(start, tables_of, own, int(num_kv[first]))
            start = stop
        num_few = int(counts[counts <= _FEW].sum())
        plans = FlashInferPlans(self._wrappers, counts.tolist(), kv_lens.tolist(), device_tables)
        slots = Slots(blocks, offsets)
        return ids, AttentionMetadata(
            self._kv, slots, device_tables, rows, positions, device_shared, num_few, spans, plans, set()
        )

    def _parts(self, start: int, tables: torch.Tensor, positions: torch.Tensor, num_kv: int) -> list[Span]:
        """The spans of one request's tokens, which begin at a multiple of `_LONGEST_SPAN` behind its first."""
        block_len, parts = self._kv.tokens_per_block, []
        for first in range(0, positions.shape[1], _LONGEST_SPAN):
            own = positions[:, first : first + _LONGEST_SPAN]
            num_blocks = -(-(num_kv + first + own.shape[1]) // block_len)
            parts.append(Span(start + first, tables[:, :num_blocks], own, num_blocks * block_len, 0, self._dtype))
        return parts

    def _run_flat(self, ids: torch.Tensor, step: AttentionMetadata, wanted: torch.Tensor) -> torch.Tensor:
        if self._layers is not None:
            return self._layers.logits(ids, step, wanted)
        token = current_step.set(step)
        try:
            return self._logits(wanted, input_ids=ids[None], position_ids=step.positions[None], use_cache=False)[0]
        finally:
            current_step.reset(token)

    def _run_spans(self, ids: torch.Tensor, step: AttentionMetadata, wanted: torch.Tensor) -> torch.Tensor:
        from scaffolding_ext.workers.huggingface.span_cache import (
            SpanCache,
        )  # imports transformers, which is slow

        parts = []
        for span in step.spans:  # of one request, or of one token of each request
            tokens = slice(span.start, span.stop)
            chosen = wanted[(wanted >= span.start) & (wanted < span.stop)] - span.start
            is_one_row = span.num_rows == 1 and len(chosen) > 0
            logits = self._logits(
                chosen if is_one_row else torch.zeros_like(wanted[:1]),
                input_ids=ids[tokens].view_as(span.positions),
                position_ids=span.positions,
                attention_mask=span.mask(),
                past_key_values=SpanCache(step.kv, span, Slots(step.slots.blocks[tokens], step.slots.offsets[tokens])),
                use_cache=True,
            )
            parts.append(logits[0] if is_one_row else logits[chosen, 0])
        return torch.cat(parts)

    def _logits(self, columns: torch.Tensor, **arguments: Any) -> torch.Tensor:
        """Run the model; returns the logits of some columns of the input, shape (rows, columns, vocabulary)."""
        if self._selects_logits:
            arguments["logits_to_keep"] = columns
        logits: torch.Tensor = self._model(**arguments).logits
        return logits if self._selects_logits else logits[:, columns]


def _order(works: list[Work]) -> list[int]:
    """Sorts the requests of a pass: similar lengths together, and within these a common first block together."""
    num_kv = np.array([work.request.sequence.num_kv for work in works])
    first_blocks = np.array([work.request.sequence.table[0] for work in works])
    counts = np.array([work.num_tokens for work in works])
    order: list[int] = np.lexsort((num_kv, first_blocks, _classes(num_kv), counts)).tolist()
    return order


def _tables_of(sequences: list[TokenSequence]) -> Integers:
    """The blocks of each sequence, shape (sequences, most blocks of a sequence).

    After its last block a row repeats its first block. Attention may read it there, because a mask hides it.
    """
    tables = np.array([sequence.table[0] for sequence in sequences])[:, None].repeat(
        max([sequence.num_blocks for sequence in sequences]), 1
    )
    for row, sequence in enumerate(sequences):
        tables[row, : sequence.num_blocks] = sequence.table
    return tables


def _first_of_spans(counts: Integers, num_kv: Integers, first_blocks: Integers) -> list[int]:
    """Which requests begin a span. torch computes requests of one token each and of similar length together.

    Requests with a common first block form a span without other requests: with others, they would share nothing.
    """
    _, which, how_often = np.unique(first_blocks, return_inverse=True, return_counts=True)
    siblings = np.where(how_often[which] > 1, first_blocks, -1)
    kinds = np.stack([_classes(num_kv), siblings])
    begins = (kinds[:, 1:] != kinds[:, :-1]).any(0) | (counts[1:] > 1) | (counts[:-1] > 1)
    firsts: list[int] = [0, *(begins.nonzero()[0] + 1).tolist()]
    return firsts


def _shared_with_next(tables: Integers, rows: Integers, positions: Integers, block_len: int) -> Integers | int:
    """For each token except the last, how many earlier positions it has in the same whole blocks as the next token.

    Takes the blocks of each request, and the request and the position of each token. Returns the shape (tokens - 1,);
    all 0 if no two requests have a common first block.
    """
    of_one = rows[1:] == rows[:-1]
    if not (tables[1:, 0] == tables[:-1, 0]).any() and not of_one.any():
        return 0
    common = np.append((tables[1:] == tables[:-1]).cumprod(1).sum(1), 0)[rows[:-1]]
    common[of_one] = tables.shape[1]
    shared: Integers = np.minimum(common, np.minimum(positions[1:], positions[:-1]) // block_len) * block_len
    return shared


def _classes(num_kv: Integers) -> Integers:
    """The class of each request by its length: up to 64 tokens, 128, 256 and so on."""
    classes: Integers = np.frexp(num_kv // _SHORTEST)[1]  # number of bits of the quotient
    return classes


def _scored_range(work: Work) -> tuple[int, int]:
    """Which computed tokens have wanted logits: the logits themselves, or the score of the next token."""
    request, start = work.request, work.request.sequence.num_kv
    if request.wants.logits:
        first, stop = 0, request.prompt_len
    elif request.wants.score_from is not None:
        first, stop = request.wants.score_from - 1, request.prompt_len - 1
    else:
        return 0, 0
    return max(start, first) - start, min(start + work.num_tokens, stop) - start


def _read_scores(work: Work, logits: torch.Tensor) -> None:
    """Take the logits of prompt tokens, or the log-probabilities of the tokens after them, from a pass's first rows."""
    request, start = work.request, work.request.sequence.num_kv
    first, last = (start + offset for offset in _scored_range(work))
    if request.wants.logits:
        if request.context_logits is None:
            request.context_logits = torch.empty(request.prompt_len, logits.shape[-1])
        request.context_logits[first:last] = logits[: last - first]
        return
    targets = torch.tensor(request.sequence.token_ids[first + 1 : last + 1], device=logits.device)
    log_probabilities = torch.log_softmax(logits[: last - first], -1)
    known = first + 1 - (request.wants.score_from or 0)  # a pass that failed halfway is repeated, so some may be known
    request.scores[known:] = log_probabilities.gather(-1, targets[:, None])[:, 0].tolist()
