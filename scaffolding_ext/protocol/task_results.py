"""Results that a worker left in a task: text, log-probabilities, finish reason, and cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from scaffolding_ext.errors import NoOutputError
from scaffolding_ext.protocol import GenerationTask, Task
from scaffolding_ext.protocol.meta import TokenCounts, num_decoded_of, token_counts_of

L = TypeVar("L", bound=Sequence[float])


def output_of(task: GenerationTask) -> str:
    """Return the task's output text; NoOutputError if there is none."""
    if task.output_str is None:
        raise NoOutputError(
            f"the worker {task.worker_tag!s} left no output in a {type(task).__name__}; it failed silently: "
            "read its log"
        )
    return task.output_str


def finish_reason_of(task: GenerationTask) -> str | None:
    """Return the finish reason; None if it is unknown, or a stream continues.

    Upstream's workers report none: then `"length"` if all of `max_tokens` were decoded, else `"stop"`.
    """
    reason: str | None = getattr(task, "finish_reason", None)  # older and some newer releases lack the field
    if reason is not None or task.max_tokens is None:
        return reason
    num_decoded = num_decoded_of(task)
    if num_decoded is None or not getattr(task, "end_flag", True):
        return None
    return "length" if num_decoded >= task.max_tokens else "stop"


def reported_logprobs(task: GenerationTask) -> Any:
    """Return the log-probabilities of a task's tokens; NoOutputError if tokens were written without any."""
    if not task.logprobs and (task.output_tokens or (task.output_tokens is None and task.output_str)):
        raise NoOutputError(
            f"a task returned no log-probabilities, though num_logprobs is {task.num_logprobs}: its worker or its "
            "controller does not pass them on; draw samples with NativeGenerationController on a worker that reports "
            "them, or choose a weight, a reward or a rule that reads none"
        )
    return task.logprobs or []


def sampled_logprobs(token_ids: Sequence[int] | None, reported: Any) -> list[float]:
    """Return the natural-log probability of each written token.

    Args:
        token_ids: The tokens, shape (num_tokens,); None if the worker gave none.
        reported: For each token a mapping from the ids reported at its position to entries with a `logprob`; or the
            result of an OpenAI server's client, which has `token_logprobs`. Reports after the last token are ignored
            (TensorRT-LLM cuts a stop word only from the ids).

    Returns:
        One value per token. Without ids, a position determines its token only if it reports a single one.

    Raises:
        NoOutputError: A log-probability is NaN or infinite, or a token is missing: the report ends before the ids do,
            it has the likeliest tokens without the written one, or several and no ids to select from.
    """
    told = getattr(reported, "token_logprobs", None)
    if told is not None:
        values = [float(value) for value in told if value is not None]
        if len(values) < len(token_ids or ()):
            raise _left_out(f"of {len(values)} of {len(token_ids or ())} tokens")
        return _known(values if token_ids is None else values[: len(token_ids)])
    if token_ids is None:
        if any(len(step) != 1 for step in reported):
            raise _left_out("of several tokens at one position, without ids that say which was written")
        return _known([float(entry.logprob) for step in reported for entry in step.values()])
    if len(reported) < len(token_ids):
        raise _left_out(f"of {len(reported)} of {len(token_ids)} tokens")
    try:
        return _known([float(step[token].logprob) for token, step in zip(token_ids, reported, strict=False)])
    except KeyError as error:
        raise _left_out(f"of only the likeliest tokens, without token {error}, which was written") from None


def highest_logprobs(step: Mapping[int, Any], top_k: int | None = None) -> list[float]:
    """Return the k highest log-probabilities reported at a position; NoOutputError if one is NaN or infinite."""
    return sorted(_known([entry.logprob for entry in step.values()]), reverse=True)[:top_k]


class TokenLogprob(NamedTuple):
    logprob: float
    rank: int | None = None


def mean_token_probability(logprobs: Sequence[float]) -> float:
    """Geometric mean, in [0, 1], from natural logs; 0 without a token. NoOutputError if one is not finite."""
    return math.exp(min(0.0, math.fsum(_known(logprobs)) / len(logprobs))) if len(logprobs) else 0.0


def _known(logprobs: L) -> L:
    if not sum(logprobs) < math.inf:  # NaN and inf persist in a sum; -inf is a probability of 0
        raise NoOutputError(
            "a worker reported NaN or infinity as a log-probability: look into its server's log (overflow in half "
            "precision gives NaN), or choose a rule, weight or reward that reads no log-probabilities"
        )
    return logprobs


def _left_out(what: str) -> NoOutputError:
    return NoOutputError(
        f"the worker reported the log-probabilities {what}: use a worker that reports the id and the log-probability "
        "of each token that it writes, or choose a rule, weight or reward that reads none"
    )


class TaskCost(NamedTuple):
    read: TokenCounts
    written: TokenCounts


def cost_of(task: Task) -> TaskCost | None:
    """Return the task's token counts; None if unknown. Output copied from a store counts as written and reused."""
    counts = token_counts_of(task)
    if counts is None:
        return None
    reused = num_reused_of_output(task, counts) if counts.reused else 0
    return TaskCost(TokenCounts(0, counts.prefilled, counts.reused - reused), TokenCounts(counts.decoded, 0, reused))


def num_reused_of_output(task: Task, counts: TokenCounts) -> int:
    if not isinstance(task, GenerationTask):
        return 0
    return min(counts.reused, max(0, len(task.output_tokens or ()) - counts.decoded))
