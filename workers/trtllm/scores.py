"""Log-probabilities of given tokens, from TensorRT-LLM's reports about a prompt.

Entry i of its prompt log-probabilities and row i of its context logits come after token i, so they score token i + 1.
The last entry scores the token that would be generated next.
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
    """Scores of the tokens from `start`.

    Args:
        entries: Per position, the reported tokens with their `Logprob`; in the simple format of newer releases only the
            log-probability of the next token.
        start: First token to score, at least 1.

    Returns:
        The scores; None if a token was not reported, because releases before 1.3 report only the likeliest.

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
    """Scores of the tokens from `start`.

    Args:
        logits: Tensor or array of shape [tokens, vocabulary] or [1, tokens, vocabulary].
        start: First token to score, at least 1.

    Raises:
        EngineError: There are no logits, or positions are missing.
    """
    if logits is None:
        raise EngineError("TensorRT-LLM returned no context logits: build the engine with gather_context_logits")
    logits = logits[0] if logits.ndim == 3 else logits
    _check_positions(len(logits), len(token_ids))
    needed = logits[start - 1 : len(token_ids) - 1]
    if hasattr(needed, "float"):  # numpy cannot read bfloat16 or GPU tensors
        needed = needed.float().cpu().numpy()
    rows = np.asarray(needed, dtype=np.float64)
    peak = rows.max(axis=1, keepdims=True)
    totals = peak[:, 0] + np.log(np.exp(rows - peak).sum(axis=1))
    chosen = rows[np.arange(len(rows)), np.asarray(token_ids[start:], dtype=np.int64)]
    return [float(value) for value in chosen - totals]


def _check_positions(num_positions: int, num_tokens: int) -> None:
    if num_positions < num_tokens - 1:  # some releases omit the last position, which scores no prompt token
        raise EngineError(
            f"TensorRT-LLM reported {num_positions} positions of a prompt of {num_tokens} tokens: it omits "
            "tokens whose KV it reuses. Score on an LLM with KvCacheConfig(enable_block_reuse=False)"
        )


def check_verdicts(task: VerifyTask, pieces: Sequence[GenerationTask], vocab_size: int, version: str) -> None:
    """Refuse verdicts with fewer log-probabilities than requested, unless both words are among them.

    Raises:
        EngineError: The words' probabilities cannot be computed.
    """
    for piece in pieces:
        entry = piece.logprobs[0] if piece.logprobs else {}
        asked = min(piece.num_logprobs or 0, vocab_size)
        if len(entry) < asked and not {task.yes_token, task.no_token} <= entry.keys():
            raise EngineError(
                f"TensorRT-LLM {version} reported {len(entry)} of {asked} log-probabilities, but those of yes and no "
                "are not among them: send the VerifyTask to another worker, or score the two words (ScoreTask)"
            )
