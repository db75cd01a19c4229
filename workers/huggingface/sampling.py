"""Sampling for a whole batch at once, each row from its own counter-based random numbers.

A row's random number depends only on its seed and on the token's position, so a request's text depends neither on its
neighbours in the batch nor on the chunks in which it is generated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from scaffolding_ext.protocol.task_results import TokenLogprob
from scaffolding_ext.workers.huggingface.engine_request import SamplingParams, TokenLogprobs

_SPLITMIX_STEP = np.uint64(0x9E3779B97F4A7C15)
_NUM_CANDIDATES = 64  # the border of top-k and top-p nearly always lies among this many likeliest tokens


class Sampled(NamedTuple):
    """One new token for each row of a batch."""

    token_ids: list[int]  # shape (rows,)
    logprobs: list[TokenLogprobs]  # shape (rows,); empty for a row that wants none


def uniforms(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Return one number in [0, 1) per row, from seed and position (SplitMix64's finaliser, applied to both in turn)."""
    with np.errstate(over="ignore"):
        mixed = _finalize(_finalize(seeds + _SPLITMIX_STEP) + positions * _SPLITMIX_STEP)
    uniform: npt.NDArray[np.float64] = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return uniform


def _finalize(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed


def sample(
    logits: torch.Tensor,
    params: list[SamplingParams],
    positions: list[int],
    num_logprobs: Sequence[int] = (),
    adjusted: torch.Tensor | None = None,
) -> Sampled:
    """Draw the next token of every row by inverse-CDF sampling.

    Args:
        logits: Shape (rows, vocabulary), float32.
        positions: For each row, the index of the drawn token in its sequence.
        num_logprobs: How many likeliest tokens each row reports, shape (rows,); 0 reports no log-probabilities.
        adjusted: Logits to draw from, after bans and penalties; log-probabilities stay those of `logits`.
    """
    unmodified = logits
    logits = logits if adjusted is None else adjusted
    greedy = [p.temperature == 0 for p in params]
    if all(greedy):
        token_ids = logits.argmax(-1)
    else:
        temperatures = torch.tensor([p.temperature or 1.0 for p in params], device=logits.device)
        scaled = logits / temperatures[:, None]
        kept = _keep_likeliest(scaled, params)
        if any(p.min_p for p in params):
            least = torch.tensor([p.min_p for p in params], device=logits.device).log()[:, None]
            kept = kept.masked_fill(scaled < scaled.amax(-1, keepdim=True) + least, -torch.inf)
        cumulative = torch.softmax(kept, -1).cumsum(-1, dtype=torch.float64)
        seeds = np.array([p.seed & 0xFFFFFFFFFFFFFFFF for p in params], np.uint64)
        draws = torch.from_numpy(uniforms(seeds, np.array(positions, np.uint64))).to(logits.device)
        thresholds = draws * cumulative[:, -1]
        token_ids = torch.searchsorted(cumulative, thresholds[:, None], right=True)[:, 0]
        token_ids = token_ids.clamp_(max=logits.shape[-1] - 1)
        if any(greedy):
            token_ids = torch.where(torch.tensor(greedy, device=logits.device), logits.argmax(-1), token_ids)
    drawn: list[int] = token_ids.tolist()
    if not any(num_logprobs):
        return Sampled(drawn, [{} for _ in drawn])
    log_probabilities = torch.log_softmax(unmodified, -1)
    top = log_probabilities.topk(min(max(num_logprobs), logits.shape[-1]), -1)
    chosen = log_probabilities.gather(-1, token_ids[:, None])[:, 0].tolist()
    reported: list[TokenLogprobs] = []
    for row, (number, ids, values) in enumerate(
        zip(num_logprobs, top.indices.tolist(), top.values.tolist(), strict=True)
    ):
        likeliest = enumerate(zip(ids[:number], values, strict=False), 1)
        reported.append({token: TokenLogprob(value, rank) for rank, (token, value) in likeliest})
        if number:
            reported[row].setdefault(drawn[row], TokenLogprob(chosen[row]))
    return Sampled(drawn, reported)


def _keep_likeliest(logits: torch.Tensor, params: list[SamplingParams]) -> torch.Tensor:
    """Mask every token outside top-k and top-p; ties at the border fall to the lower index.

    If the border lies among a row's likeliest tokens and between two different logits, only these tokens are read. This
    is nearly always so, and sorting the whole vocabulary takes 5 to 60 times as long. Otherwise the whole row is
    sorted. The choice depends only on the row, so a text does not depend on its neighbours.
    """
    limited = [row for row, p in enumerate(params) if p.temperature and (p.top_k or p.top_p < 1)]
    if not limited:
        return logits
    chosen = [params[row] for row in limited]
    rows = logits if len(limited) == len(params) else logits[limited]
    likeliest = rows.topk(min(_NUM_CANDIDATES, rows.shape[-1]), -1).values
    num_kept = _num_kept(likeliest, rows, chosen)[:, None]
    last = likeliest.gather(-1, num_kept - 1)
    first_dropped = likeliest.gather(-1, num_kept.clamp(max=likeliest.shape[-1] - 1))
    kept = rows >= last
    unsettled = (last <= first_dropped)[:, 0].nonzero()[:, 0]
    if len(unsettled):
        ordered, order = torch.sort(rows[unsettled], dim=-1, descending=True, stable=True)
        num_kept = _num_kept(ordered, ordered, [chosen[row] for row in unsettled.tolist()])
        ranks = torch.arange(rows.shape[-1], device=rows.device).expand_as(order)
        kept[unsettled] = torch.zeros_like(kept[unsettled]).scatter(-1, order, ranks < num_kept[:, None])
    rows = rows.masked_fill(~kept, -torch.inf)
    if len(limited) == len(params):
        return rows
    return logits.index_copy(0, torch.tensor(limited, device=logits.device), rows)


def _num_kept(ordered: torch.Tensor, rows: torch.Tensor, params: list[SamplingParams]) -> torch.Tensor:
    """Return how many of the likeliest tokens top-k and top-p keep: at least 1, or all of `ordered` to ask for more.

    `ordered` has the largest logits of each row in decreasing order, shape (rows, any); `rows` has all of them.
    """
    num_ordered, vocabulary = ordered.shape[-1], rows.shape[-1]
    top_k = torch.tensor([p.top_k or vocabulary for p in params], device=rows.device)[:, None]
    top_p = torch.tensor([p.top_p if p.top_p < 1 else torch.inf for p in params], device=rows.device)[:, None]
    highest = ordered[:, :1]
    weights = (ordered - highest).exp() * (torch.arange(num_ordered, device=rows.device) < top_k)
    total = torch.where(
        top_k <= num_ordered, weights.sum(-1, keepdim=True), (rows - highest).exp().sum(-1, keepdim=True)
    )
    before = torch.nn.functional.pad(weights.cumsum(-1)[:, :-1], (1, 0))
    num_kept = (before < top_p * total).sum(-1, keepdim=True).minimum(top_k).clamp(min=1)
    undecided = (top_k > num_ordered) & (top_k < vocabulary)  # the probability of the top k is unknown
    return num_kept.masked_fill(undecided, num_ordered)[:, 0]
