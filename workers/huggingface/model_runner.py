"""Forward pass of the generation engine: pending tokens in, logits of the next tokens out.

All requests of a step go through a model in one flat sequence. If a model's decoder is only embedding, layers and norm,
its layers are called one by one, so that the states after each layer can be read, for hidden states and for verdicts
that settle early: there the final norm and the unembedding give the next token so far (RKSC, equation 5). A request
leaves once its rule says that this has settled, and the others continue without it. It has no KV in the layers above,
so it leaves nothing in the cache.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.workers.huggingface.attention import AttentionMetadata, Span, current_step
from scaffolding_ext.workers.huggingface.block_pool import Block
from scaffolding_ext.workers.huggingface.engine_request import GREEDY, Ends, EngineRequest, LayerVerdict, Work
from scaffolding_ext.workers.huggingface.kv_blocks import KVBlocks

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_KINDS = ("llama", "mistral", "qwen2", "qwen3")  # their decoder is only embedding, layers and norm
_FEW = 8  # up to this many tokens of a request, the kernel is faster than torch
_SHORTEST = 64  # tokens of the class of shortest requests


def why_not_layer_by_layer(model: PreTrainedModel) -> str | None:
    """Return the reason why a model's layers cannot be called one by one; None if they can."""
    kind = model.config.get_text_config().model_type
    why_not = f"the worker calls only layers of {', '.join(_KINDS)} one by one, and the model is a {kind}"
    return None if kind in _KINDS else why_not


def token_bytes(network: PreTrainedModel) -> int:
    """Measure the memory of one token's keys and values."""
    runner = ModelRunner(network, KVBlocks(1, 1))
    runner.warm_up()
    return runner.kv.num_bytes


class _Pass(NamedTuple):
    """Works of a pass, in the order of their tokens."""

    works: list[Work]
    ids: torch.Tensor  # their tokens, int64, shape (tokens,)
    ends: list[int]  # index after the last token of each work
    step: AttentionMetadata  # the same tokens, as attention sees them


class _Rows(NamedTuple):
    """Rows of a pass's logits."""

    tokens: list[int]  # index in the pass of the token that each row follows
    scored: list[tuple[EngineRequest, int, range]]  # first row of the wanted logits, and positions that they follow
    completed: dict[EngineRequest, int]  # the row with the next token of each request that the pass completes


class ModelRunner:
    """A model whose attention is `ATTENTION`, and the keys and values of its requests."""

    def __init__(self, model: PreTrainedModel, kv: KVBlocks) -> None:
        self.kv = kv
        self._model = model
        self._device, self._dtype = model.device, model.dtype  # cached: a model searches its weights for them each time
        self._decoder: Any = None if why_not_layer_by_layer(model) else model.base_model
        self._num_layers = model.config.get_text_config().num_hidden_layers
        self._unembed: Any = model.get_output_embeddings()
        lacks = {"position_ids", "logits_to_keep"} - inspect.signature(model.forward).parameters.keys()
        if self._decoder is None and lacks:
            raise ConfigError(
                f"is of type {model.config.model_type}, whose forward() takes no {' and no '.join(sorted(lacks))}: "
                "choose another model",
                "model",
            )

    def warm_up(self) -> None:
        """Compute one token, so that a model that does not fit or cannot be served fails immediately."""
        request = EngineRequest([0], Ends(), GREEDY)
        request.sequence.add(Block(0))
        with torch.inference_mode():
            self.forward([Work(request, 1)])
            self.kv.clear(0)

    def forward(self, works: list[Work]) -> tuple[list[EngineRequest], torch.Tensor]:
        """Compute pending tokens, and read their scores. The works are sorted, decoding requests first.

        Returns:
            The completed requests that ran through all layers, and the logits of their next tokens: shape (requests,
            vocabulary), float32.
        """
        num_kv = [work.request.sequence.num_kv for work in works]
        order = np.lexsort((num_kv, [work.num_tokens for work in works]))  # similar lengths together
        works[:] = [works[row] for row in order.tolist()]
        batch = self._prepare(works)
        token = current_step.set(batch.step)
        try:
            if self._decoder is not None:
                batch, hidden = self._through_layers(batch)
            rows = _rows(batch)
            if self._decoder is None:
                wanted = torch.tensor(rows.tokens, dtype=torch.long, device=self._device)
                given = {"input_ids": batch.ids[None], "position_ids": batch.step.positions[None]}
                logits = self._model(**given, use_cache=False, logits_to_keep=wanted).logits[0].float()
            else:
                normed = self._decoder.norm(hidden[0, rows.tokens])
                logits = self._unembed(normed).float()
                for request, row in rows.completed.items():
                    if request.wants.states:
                        request.states[self._num_layers - 1 :] = [normed[row].float().cpu()]
        finally:
            current_step.reset(token)
        for request, row in rows.completed.items():
            if request.wants.choices:
                _note_verdict(request, self._num_layers, logits[row])
        for request, row, positions in rows.scored:
            followers = request.sequence.token_ids[positions.start + 1 : positions.stop + 1]
            targets = torch.tensor(followers, device=logits.device)
            logprobs = logits[row : row + len(positions)].log_softmax(-1)
            request.scores += logprobs.gather(-1, targets[:, None])[:, 0].tolist()
        is_all = len(rows.completed) == len(logits)
        return [*rows.completed], logits if is_all else logits[[*rows.completed.values()]]

    def _through_layers(self, batch: _Pass) -> tuple[_Pass, torch.Tensor]:
        """Call the layers; return the pass of the requests that do not leave early, and its hidden states."""
        decoder = self._decoder
        wants = [work.request.wants for work in batch.works]
        is_read = bool([each for each in wants if each.states or each.verdicts or each.layer_exit])
        hidden = decoder.embed_tokens(batch.ids[None])
        rotations = decoder.rotary_emb(hidden, position_ids=batch.step.positions[None])
        for number, layer in enumerate(decoder.layers, 1):
            hidden = layer(hidden, attention_mask=None, position_embeddings=rotations, use_cache=False)
            leaving = self._read_layer(number, batch, hidden) if is_read and number < self._num_layers else None
            if not leaving:
                continue
            works = zip(batch.works, batch.ends, strict=True)
            stay = [(work, end) for work, end in works if work.request not in leaving]
            hidden = hidden[:, [place for work, end in stay for place in range(end - work.num_tokens, end)]]
            if not stay:
                return batch._replace(works=[], ends=[]), hidden
            batch = self._prepare([work for work, _ in stay])
            current_step.set(batch.step)
            rotations = decoder.rotary_emb(hidden, position_ids=batch.step.positions[None])
        return batch, hidden

    def _read_layer(self, number: int, batch: _Pass, hidden: torch.Tensor) -> set[EngineRequest]:
        """Read the last token of the requests that want this after a layer; return those that leave."""
        asked: list[tuple[EngineRequest, int]] = []
        for work, end in zip(batch.works, batch.ends, strict=True):
            wants = work.request.wants
            if wants.states and work.completes:
                work.request.states[number - 1 :] = [hidden[0, end - 1].float().cpu()]
            may_leave = wants.layer_exit and number + 1 >= wants.layer_exit.min_layer
            if work.completes and (wants.verdicts or may_leave):
                asked.append((work.request, end - 1))
        if not asked:
            return set()
        logits = self._unembed(self._decoder.norm(hidden[0, [place for _, place in asked]])).float()
        rows = zip(asked, logits, strict=True)
        return {request for (request, _), row in rows if _note_verdict(request, number, row)}

    def _prepare(self, works: list[Work]) -> _Pass:
        block_len = self.kv.tokens_per_block
        sequences = [work.request.sequence for work in works]
        counts = np.array([work.num_tokens for work in works])
        num_kv = np.array([sequence.num_kv for sequence in sequences])
        ends, kv_lens = counts.cumsum(), num_kv + counts
        flat = np.empty((5, int(ends[-1])), np.int64)
        longest = max([sequence.num_blocks for sequence in sequences])
        tables = np.array([sequence.table[0] for sequence in sequences])[:, None].repeat(longest, 1)
        for row, sequence in enumerate(sequences):  # after its last block a row repeats its first, which a mask hides
            tables[row, : sequence.num_blocks] = sequence.table
        flat[0] = [
            token_id
            for sequence, (_, count, _) in zip(sequences, works, strict=True)
            for token_id in sequence.token_ids[sequence.num_kv : sequence.num_kv + count]
        ]
        flat[2] = np.arange(len(works)).repeat(counts)
        flat[1] = np.arange(flat.shape[1]) + (kv_lens - ends)[flat[2]]
        np.divmod(flat[1], block_len, out=(flat[3], flat[4]))
        flat[3] = tables[flat[2], flat[3]]
        ids, positions, rows, blocks, offsets = torch.from_numpy(flat).to(self._device)
        device_tables = torch.from_numpy(tables).to(self._device)
        spans, start = [], 0
        classes = np.frexp(num_kv // _SHORTEST)[1]  # by length: up to 64 tokens, 128, 256 and so on
        begins = (np.diff(classes) != 0) | (counts[1:] > 1) | (counts[:-1] > 1)
        firsts = [0, *(begins.nonzero()[0] + 1).tolist()]
        for first, last in zip(firsts, [*firsts[1:], len(works)], strict=True):
            num_blocks = -(-int(kv_lens[first:last].max()) // block_len)
            stop = int(ends[last - 1])
            own = positions[start:stop].view(last - first, -1)
            spans.append(Span(start, device_tables[first:last, :num_blocks], own, num_blocks * block_len, self._dtype))
            start = stop
        num_few = int(counts[counts <= _FEW].sum())
        step = AttentionMetadata(self.kv, blocks, offsets, device_tables, rows, positions, num_few, spans, set())
        return _Pass(works, ids, ends.tolist(), step)


def _rows(batch: _Pass) -> _Rows:
    rows = _Rows([], [], {})
    for work, end in zip(batch.works, batch.ends, strict=True):
        request, wants = work.request, work.request.wants
        if wants.score_from is not None:  # of the token after each position
            start = request.sequence.num_kv
            positions = range(max(start, wants.score_from - 1), min(start + work.num_tokens, request.prompt_len - 1))
            if positions:
                rows.scored.append((request, len(rows.tokens), positions))
                rows.tokens.extend(position + end - work.num_tokens - start for position in positions)
        if work.completes:
            rows.completed[request] = len(rows.tokens)
            rows.tokens.append(end - 1)
    return rows


def _note_verdict(request: EngineRequest, number: int, logits: torch.Tensor) -> bool:
    """Record the verdict after a layer, counted from 1; return True if the request's rule settles it."""
    rule = request.wants.layer_exit
    probabilities = logits.softmax(-1)
    entropy = -torch.xlogy(probabilities, probabilities).sum().item()  # a token without probability counts nothing
    before = request.verdicts.get(number - 1)
    request.verdicts[number] = LayerVerdict(entropy, logits[list(request.wants.choices)].tolist())
    return rule is not None and before is not None and bool(rule.settled(number, entropy, before.entropy))
