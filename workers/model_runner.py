"""The forward pass of the generation engine: pending tokens in, logits of the tokens to come out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from scaffolding_ext.workers.kv_cache import KVRows
from scaffolding_ext.workers.sequence import Sequence

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_KV_STEP = 64  # attention lengths are rounded up to this, so that few shapes occur


class ModelRunner:
    """A model and the keys and values of the sequences that it runs on.

    Args:
        model: A causal LM in evaluation mode.
        kv: Where keys and values are kept.
        prefill_chunk: Pending tokens of one row that one pass computes at most.

    Attributes:
        num_decoded: Generated tokens computed so far.
        num_prefilled: Prompt tokens computed so far.
    """

    def __init__(self, model: PreTrainedModel, kv: KVRows, prefill_chunk: int) -> None:
        self._model = model
        self._kv = kv
        self._prefill_chunk = prefill_chunk
        self.num_decoded = 0
        self.num_prefilled = 0

    def forward(self, batch: list[Sequence], first_row: int) -> torch.Tensor:
        """Compute the next pending tokens of each sequence, and read the scores that they give.

        Args:
            batch: Sequences of consecutive rows.
            first_row: Row of the first of them.

        Returns:
            Logits after each sequence's newest computed token, shape (rows, vocabulary), float32.
        """
        holders = [sequence.holder for sequence in batch]
        counts = [min(len(holder.token_ids) - holder.num_kv, self._prefill_chunk) for holder in holders]
        width = max(counts)
        kv_len = max(holder.num_kv + count for holder, count in zip(holders, counts, strict=True))
        kv_len = min(-(-kv_len // _KV_STEP) * _KV_STEP, self._kv.capacity)
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        places = torch.full((len(batch), width), self._kv.capacity)
        for row, (holder, count) in enumerate(zip(holders, counts, strict=True)):
            start = holder.num_kv
            ids[row, :count] = torch.tensor(holder.token_ids[start : start + count])
            places[row, :count] = torch.arange(start, start + count)
        device = self._model.device
        ids, places = ids.to(device), places.to(device)
        positions = places.masked_fill(places == self._kv.capacity, 0)
        visible = torch.arange(kv_len, device=device) <= positions[:, None, :, None]
        mask = torch.zeros(visible.shape, dtype=self._model.dtype, device=device)
        mask.masked_fill_(~visible, torch.finfo(mask.dtype).min)
        self._kv.aim(first_row, places, kv_len)
        if any(sequence.score_from is not None for sequence in batch):
            keep: Any = torch.arange(width, device=device)
        else:
            keep = torch.tensor(sorted({count - 1 for count in counts}), device=device)
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self._kv,
            use_cache=True,
            logits_to_keep=keep,
        )
        logits: torch.Tensor = output.logits.float()
        column = {position: index for index, position in enumerate(keep.tolist())}
        last = torch.tensor([column[count - 1] for count in counts], device=device)
        for row, (sequence, count) in enumerate(zip(batch, counts, strict=True)):
            if sequence.score_from is not None:
                self._score(sequence, logits[row], count)
            sequence.holder.num_kv += count
            if sequence.holder.num_kv <= sequence.prompt_len:
                sequence.num_prefilled += count
                self.num_prefilled += count
            else:
                self.num_decoded += count
        return logits[torch.arange(len(batch), device=device), last]

    def _score(self, sequence: Sequence, logits: torch.Tensor, count: int) -> None:
        """Read the log-probabilities of the prompt tokens that this pass predicts."""
        start, tokens = sequence.holder.num_kv, sequence.holder.token_ids
        first = max(start, (sequence.score_from or 1) - 1)
        last = min(start + count, sequence.prompt_len - 1)
        if first < last:
            targets = torch.tensor(tokens[first + 1 : last + 1], device=logits.device)
            log_probabilities = torch.log_softmax(logits[first - start : last - start], -1)
            sequence.scores += log_probabilities.gather(-1, targets[:, None])[:, 0].tolist()
