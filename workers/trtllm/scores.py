"""Log-probabilities of given tokens, taken from TensorRT-LLM's reports about a prompt.

Entry i of its prompt log-probabilities and row i of its context logits come after token i: they score token i + 1. The
last entry scores the next token, which would be generated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scaffolding_ext.errors import EngineError
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.branching import VerifyTask


def from_prompt_logprobs(
    entries: Sequence[Mapping[int, Any] | float] | None, token_ids: Sequence[int], start: int
) -> list[float] | None:
    """The scores of the tokens from `start` on.

    Args:
        entries: For each position, the reported tokens with their `Logprob`. In the simple format of newer releases it
            is only the log-probability of the next token.
        start: The first token to score, at least 1.

    Returns:
        The scores; None if a token is not among the reported ones, because releases before 1.3 report only the
        likeliest.

    Raises:
        EngineError: Positions are missing.
    """
    entries = entries or []
    _check_positions(len(entries), len(token_ids))
    scores = []
    for position in range(start, len(token_ids)):
        reported = entries[position - 1]
        entry = reported.get(token_ids[position]) if isinstance(reported, Mapping) else reported
        if entry is None:
            return None
        scores.append(float(getattr(entry, "logprob", entry)))
    return scores


def from_context_logits(logits: Any, token_ids: Sequence[int], start: int) -> list[float]:
    """The scores of the tokens from `start` on.

    Args:
        logits: A tensor or array of shape [tokens, vocabulary], or [1, tokens, vocabulary].
        start: The first token to score, at least 1.

    Raises:
        EngineError: There are no logits, or positions are missing.
    """
    if logits is None:
        raise EngineError("TensorRT-LLM returned no context logits: build the engine with gather_context_logits")
    logits = logits[0] if logits.ndim == 3 else logits
    _check_positions(len(logits), len(token_ids))
    needed = logits[start - 1 : len(token_ids) - 1]
    if hasattr(needed, "float"):  # numpy cannot read a tensor in bfloat16 or on a GPU
        needed = needed.float().cpu().numpy()
    rows = np.asarray(needed, dtype=np.float64)
    peak = rows.max(axis=1, keepdims=True)
    totals = peak[:, 0] + np.log(np.exp(rows - peak).sum(axis=1))
    chosen = rows[np.arange(len(rows)), np.asarray(token_ids[start:], dtype=np.int64)]
    return [float(value) for value in chosen - totals]


def _check_positions(num_positions: int, num_tokens: int) -> None:
    if num_positions < num_tokens - 1:  # some releases leave out the last position, which scores no prompt token
        raise EngineError(
            f"TensorRT-LLM reported {num_positions} positions of a prompt of {num_tokens} tokens: it leaves out "
            "tokens whose KV it reuses. Score on an LLM with KvCacheConfig(enable_block_reuse=False)"
        )


def check_verdicts(task: VerifyTask, pieces: Sequence[GenerationTask], vocab_size: int, version: str) -> None:
    """Refuse verdicts where fewer log-probabilities came than were asked for, unless both words are among them.

    Raises:
        EngineError: The words' probabilities cannot be told from them.
    """
    for piece in pieces:
        entry = piece.logprobs[0] if piece.logprobs else {}
        asked = min(piece.num_logprobs or 0, vocab_size)
        if len(entry) < asked and not {task.yes_token, task.no_token} <= entry.keys():
            raise EngineError(
                f"TensorRT-LLM {version} reported {len(entry)} of {asked} log-probabilities, and those of yes and no "
                "are not among them: send the VerifyTask to another worker, or score the two words (ScoreTask)"
            )
