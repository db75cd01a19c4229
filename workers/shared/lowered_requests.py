"""A task that was lowered to several requests: all at once, together or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from scaffolding_ext.errors import EngineError
from scaffolding_ext.protocol import GenerationTask, Task
from scaffolding_ext.protocol.branching import VerifyTask
from scaffolding_ext.protocol.notes import TokenCounts, set_token_counts, token_counts_of


async def run_pieces(
    task: Task,
    pieces: Sequence[GenerationTask],
    runs: Sequence[Coroutine[Any, Any, Any]],
    *,
    decodes: bool = True,
    before: TokenCounts | None = None,
) -> None:
    """Run the pieces of a task at once. If one fails, the others are aborted. The task's cost is the sum of theirs.

    `decodes` is false where each piece's only token comes with its prompt. `before` is what the task has cost before.
    """
    for piece in pieces:
        piece.custom_input_params = {**(task.custom_input_params or {}), **(piece.custom_input_params or {})}
    running = [asyncio.ensure_future(run) for run in runs]
    try:
        await asyncio.gather(*running)
    except BaseException:
        for future in running:
            future.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        raise
    finally:
        spent = [before or TokenCounts(), *(counts for piece in pieces if (counts := token_counts_of(piece)))]
        total = TokenCounts(*map(sum, zip(*spent, strict=True)))
        set_token_counts(task, total if decodes else total._replace(decoded=0))


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
