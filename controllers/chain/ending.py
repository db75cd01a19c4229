"""End a request with a chain of thought: with the chain's answer, or by asking for one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scaffolding_ext.answers import extract
from scaffolding_ext.controllers.base import finish
from scaffolding_ext.controllers.chain.chain import UNANSWERED, Chain, Prefix, without_end_token
from scaffolding_ext.controllers.chain.probe import Probe, asked_answer, asking, forced_answer
from scaffolding_ext.controllers.prompting import decode, encode, reading_of
from scaffolding_ext.prompts.families import PromptFamily
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask
from scaffolding_ext.protocol.meta import meta_of
from scaffolding_ext.request.program import record

ANSWER_PROBABILITY = "answer_probability"  # key in a task's result fields, set if a probe measured it


def conclude(
    chain: Chain,
    sampling_params: dict[str, Any],
    *,
    exit_reason: str = "length",
    insist_on_answer: bool = True,
    at: Prefix | None = None,
    cause: str | None = None,
) -> ControllerGenerator:
    """End the request with the chain as it stands; a running chain is left.

    If the chain contains an answer, it is the output. Otherwise thinking is closed and the answer is asked for; if the
    model gives none, the last answer named in the chain counts. A chunk that ended at its budget stays open.

    Args:
        exit_reason: Exit reason for a running chain. A chain that ended by itself exits with `"end"`, at its budget
            with `"length"`, on a repetition with `"loop"`, and in time for the request's deadline with `"deadline"`.
        at: Position at which the chain is left, if it has grown since the decision; None leaves it as it stands.
        cause: Cause of a forced answer for `forced_answers`; None derives it from the chain's end.
    """
    task, family = chain.prompt, chain.family
    ended = chain.ended and at is None
    ended_by_itself = ended and chain.finish_reason not in UNANSWERED
    reason = "end" if ended_by_itself else str(chain.finish_reason) if ended else exit_reason
    prefix = at or chain.prefix
    reading = reading_of(task, prefix.text, family)
    closed = reading.has_thought
    answer = extract(reading.answer if closed else prefix.text)
    record("end", position=prefix.num_tokens, finish_reason=chain.finish_reason if ended else None, answer=answer)
    if not ended_by_itself or chain.is_stopped:
        yield from chain.leave(prefix)
    if ended and reason == "length" and meta_of(task).is_chunk:
        finish(task, prefix.text, prefix.token_ids, None, reason)
        return
    is_answered = answer is not None and (ended_by_itself or closed)
    if is_answered or (ended_by_itself and not insist_on_answer):
        finish(task, prefix.text, prefix.token_ids, answer, reason)
        return
    kept = without_end(prefix) if ended_by_itself else prefix
    forced, closing = forcing(task, kept, family, sampling_params)
    yield [forced]
    answer = forced_answer(forced) or extract(prefix.text)
    cause = cause or (_silence(prefix.text, closed or not family.thinks) if ended_by_itself else reason)
    is_closed = asked_answer(forced) is not None
    record("force", position=kept.num_tokens, answer=answer, cause=cause, closed=is_closed)
    if answer is None:
        finish(task, prefix.text, prefix.token_ids, None, reason)
        return
    if ended_by_itself:
        yield from chain.leave(kept)
    close_with(task, kept, closing, answer, family, reason)


def close(chain: Chain, prefix: Prefix, probe: Probe | None, exit_reason: str) -> ControllerGenerator:
    """Leave the chain after a prefix and end the request with a probe's answer; None ends without one."""
    yield from chain.leave(prefix)
    task, family = chain.prompt, chain.family
    if probe is None or probe.answer is None:
        finish(task, prefix.text, prefix.token_ids, None, exit_reason)
        return
    close_with(task, prefix, family.close, probe.answer, family, exit_reason)
    if probe.confidence is not None:
        task.customized_result_fields[ANSWER_PROBABILITY] = probe.confidence


def forced_answers(trace: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Count the answers that a request's chains were forced to give, by cause.

    Args:
        trace: The request's events. Forcing an answer records the event `force`, with the answer (None if there is
            none), `closed` (True if its box was closed), and the cause: `"empty"`: the chain wrote nothing;
            `"open_thinking"`: it ended within its thinking; `"no_answer"`: it ended without an answer;
            `"budget_ignored"`: its server let it think beyond its budget; else the exit reason of a chain that was cut
            off (`"length"`, `"budget"`, `"loop"`, ...).
    """
    forced: dict[str, int] = {}
    for event in trace:
        if event["event"] == "force" and "cause" in event and event["answer"] is not None:
            forced[event["cause"]] = forced.get(event["cause"], 0) + 1
    return forced


def forcing(
    prompt: GenerationTask, prefix: Prefix, family: PromptFamily, sampling_params: dict[str, Any]
) -> tuple[GenerationTask, str]:
    """Build a task that ends a chain with its answer, and return its closing text, too; open thinking is closed."""
    close = family.close_closed if reading_of(prompt, prefix.text, family).has_thought else family.close
    return asking(prompt, prefix, close, sampling_params), close


def close_with(
    task: GenerationTask, prefix: Prefix, close: str, answer: str, family: PromptFamily, exit_reason: str
) -> None:
    ending = close + answer + family.answer_end
    ending_ids = encode(ending)
    ids = None if prefix.token_ids is None or ending_ids is None else prefix.token_ids[: prefix.num_tokens] + ending_ids
    finish(task, prefix.text + family.as_shown(ending), ids, answer, exit_reason)


def _silence(text: str, is_said: bool) -> str:
    return "empty" if not text.strip() else "no_answer" if is_said else "open_thinking"


def without_end(prefix: Prefix) -> Prefix:
    """Reopen an ended chain: drop its end token, and fall back to text if a token was cut."""
    ids = prefix.token_ids
    if not ids:
        return prefix
    ids = without_end_token(ids)
    text = decode(ids)
    return Prefix(len(ids), prefix.text, ids if text is None or text == prefix.text else None)
