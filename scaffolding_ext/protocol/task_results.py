"""What a worker has left in a task: its text, its log-probabilities, why it ended, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from scaffolding_ext.errors import NoOutputError
from scaffolding_ext.protocol import GenerationTask, Task
from scaffolding_ext.protocol.meta import TokenCounts, num_decoded_of, token_counts_of

L = TypeVar("L", bound=Sequence[float])


def output_of(task: GenerationTask) -> str:
    """The text that a worker wrote into the task; NoOutputError if there is none."""
    if task.output_str is None:
        raise NoOutputError(
            f"the worker {task.worker_tag!s} left no output in a {type(task).__name__}; it failed silently: "
            "read its log"
        )
    return task.output_str


def finish_reason_of(task: GenerationTask) -> str | None:
    """Why the task's generation ended, as the worker says.

    Of upstream's workers, which say nothing: `"length"` if all of `max_tokens` were decoded, else `"stop"`. None if
    that is unknown, or a stream goes on.
    """
    reason: str | None = getattr(task, "finish_reason", None)  # older and some newer releases lack the field
    if reason is not None or task.max_tokens is None:
        return reason
    num_decoded = num_decoded_of(task)
    if num_decoded is None or not getattr(task, "end_flag", True):
        return None
    return "length" if num_decoded >= task.max_tokens else "stop"


def reported_logprobs(task: GenerationTask) -> Any:
    """What a worker reported beside the tokens of a task; NoOutputError if it wrote tokens and reported nothing."""
    if not task.logprobs and (task.output_tokens or (task.output_tokens is None and task.output_str)):
        raise NoOutputError(
            f"a task returned no log-probabilities, though num_logprobs is {task.num_logprobs}: its worker or its "
            "controller does not pass them on; draw samples with NativeGenerationController on a worker that gives "
            "them, or choose a weight, a reward or a rule that reads none"
        )
    return task.logprobs or []


def sampled_logprobs(token_ids: Sequence[int] | None, reported: Any) -> list[float]:
    """The natural-log probability of each token that was written.

    Args:
        token_ids: The tokens, shape (num_tokens,); None where the worker told none.
        reported: For each token a mapping from the ids that were reported at its place to entries with a `logprob`; or
            what an OpenAI server's client returns, which has `token_logprobs`. What was reported behind the last token
            (TensorRT-LLM cuts a stop word from the ids alone) does not count.

    Returns:
        One a token. Without ids a place tells its token's probability only where it reports one token alone.

    Raises:
        NoOutputError: A log-probability is NaN or infinite, or a token is left out: the report ends before the ids do,
            it has the likeliest tokens without the written one, or several and no ids say which was written.
    """
    told = getattr(reported, "token_logprobs", None)
    if told is not None:
        values = [float(value) for value in told if value is not None]
        if len(values) < len(token_ids or ()):
            raise _left_out(f"of {len(values)} of {len(token_ids or ())} tokens")
        return _known(values if token_ids is None else values[: len(token_ids)])
    if token_ids is None:
        if any(len(step) != 1 for step in reported):
            raise _left_out("of several tokens at one place, and no ids that say which was written")
        return _known([float(entry.logprob) for step in reported for entry in step.values()])
    if len(reported) < len(token_ids):
        raise _left_out(f"of {len(reported)} of {len(token_ids)} tokens")
    try:
        return _known([float(step[token].logprob) for token, step in zip(token_ids, reported, strict=False)])
    except KeyError as error:
        raise _left_out(f"of the likeliest tokens alone, without token {error}, which was written") from None


def highest_logprobs(step: Mapping[int, Any], top_k: int | None = None) -> list[float]:
    """The k highest log-probabilities that a place reports; NoOutputError if one is NaN or infinite."""
    return sorted(_known([entry.logprob for entry in step.values()]), reverse=True)[:top_k]


class TokenLogprob(NamedTuple):
    """The log-probability of one alternative, as TensorRT-LLM's `Logprob` has it."""

    logprob: float
    rank: int | None = None


def mean_token_probability(logprobs: Sequence[float]) -> float:
    """Geometric mean, in [0, 1], from natural logs; 0 without a token. NoOutputError if one is not finite."""
    return math.exp(min(0.0, math.fsum(_known(logprobs)) / len(logprobs))) if len(logprobs) else 0.0


def _known(logprobs: L) -> L:
    if not sum(logprobs) < math.inf:  # NaN and inf stay in a sum, and -inf is a probability of 0; one call for all
        raise NoOutputError(
            "a worker reported NaN or infinity as a log-probability, so nothing can be decided by it: look into its "
            "server's log (overflow in half precision gives NaN), or choose what reads no log-probabilities"
        )
    return logprobs


def _left_out(what: str) -> NoOutputError:
    return NoOutputError(
        f"the worker told the log-probabilities {what}: take a worker that tells the id and the log-probability of "
        "each token that it writes, or choose what reads none"
    )


class TaskCost(NamedTuple):
    """What a task has cost so far, by what the tokens are: those that it read, and those that it wrote."""

    read: TokenCounts
    written: TokenCounts


def cost_of(task: Task) -> TaskCost | None:
    """The task's token counts; None if unknown. Output that a worker had in a store is written, and reused."""
    counts = token_counts_of(task)
    if counts is None:
        return None
    reused = num_reused_of_output(task, counts) if counts.reused else 0
    return TaskCost(TokenCounts(0, counts.prefilled, counts.reused - reused), TokenCounts(counts.decoded, 0, reused))


def num_reused_of_output(task: Task, counts: TokenCounts) -> int:
    """Output tokens that the worker did not decode, since it had them in a store."""
    if not isinstance(task, GenerationTask):
        return 0
    return min(counts.reused, max(0, len(task.output_tokens or ()) - counts.decoded))
