"""The toolkit of controllers that watch a chain of thought: start it, let it grow, ask it, and end with an answer.

    chain = start_chain(self, task, family, max_tokens=2000)
    while not chain.ended and not enough(chain.text):
        yield from chain.grow(chain.num_tokens + 64)
    yield from conclude(task, chain, family, {"max_tokens": 20}, exit_reason="enough")

`start_chain` takes a `StreamChain` where the worker streams and a `ChunkChain` elsewhere; a controller may also make
one of the two itself. `chain.prefix` is a snapshot, which `asking` turns into a task that asks for the answer so far (a
probe); `asked_answer` reads it. `conclude` ends the request with the chain's own answer or one that it asks for, and
`close_with` with an answer that the controller has already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from scaffolding_ext.answers import extract, up_to_brace
from scaffolding_ext.controllers.base import BaseController, decode, encode, finish, longest_len
from scaffolding_ext.controllers.chunk_chain import Chain, ChunkChain, Prefix, continuation
from scaffolding_ext.controllers.stream_chain import StreamChain
from scaffolding_ext.program import record
from scaffolding_ext.prompting import PromptFamily
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask, StreamGenerationTask
from scaffolding_ext.sampling_params import apply_sampling_params
from scaffolding_ext.tasks import PROBE, is_chunk, output_of, set_purpose
from scaffolding_ext.worker_tags import WorkerTag

__all__ = [
    "Chain",
    "ChunkChain",
    "Prefix",
    "StreamChain",
    "asked_answer",
    "asking",
    "close_with",
    "conclude",
    "continuation",
    "start_chain",
]


def start_chain(
    controller: BaseController,
    task: GenerationTask,
    family: PromptFamily,
    *,
    max_tokens: int,
    sampling_params: Mapping[str, Any] | None = None,
    answer_tokens: int = 20,
    mode: Literal["stream", "chunk"] = "stream",
    streaming_output: bool = False,
) -> Chain:
    """A chain on a task's prompt, of the kind that the worker can serve; what is lowered is said in the trace.

    Args:
        controller: Knows what its worker can do.
        task: The chain answers its prompt, with its sampling fields, and within its `max_tokens` where it has any.
        family: How the chain is asked.
        max_tokens: The chain's budget; less, where the worker's context leaves less.
        sampling_params: Sampling fields of the chain.
        answer_tokens: Tokens of an answer that is asked for; the context keeps room for them.
        mode: `"stream"` falls back to chunks where the worker cannot stream.
        streaming_output: Whether the chain is streamed to the caller; chunks are not.

    Raises:
        ConfigError: The prompt leaves no room in the worker's context.
    """
    wanted = max_tokens if task.max_tokens is None else min(task.max_tokens, max_tokens)
    reserved = longest_len(family.probe, family.close, family.close_closed) + answer_tokens
    budget = controller.budget_within_context(WorkerTag.GENERATION, task, wanted, reserved)
    if mode == "stream" and not controller.can_serve(WorkerTag.GENERATION, StreamGenerationTask):
        record("lowered", task="StreamGenerationTask", to="GenerationTask", reason="the worker cannot stream")
        mode = "chunk"
    params = dict(sampling_params or {})
    if mode == "chunk":
        return ChunkChain(task, budget, params)
    if streaming_output and not controller.can_stream_output(WorkerTag.GENERATION, StreamGenerationTask):
        record("lowered", what="streaming", reason="the worker cannot stream a StreamGenerationTask to the caller")
        streaming_output = False
    return StreamChain(task, budget, params, streaming_output)


def asking(prompt: GenerationTask, prefix: Prefix, suffix: str, sampling_params: dict[str, Any]) -> GenerationTask:
    """A task that asks an unfinished chain for its answer with a suffix that opens a box.

    Args:
        prompt: The task that the chain answers.
        prefix: The chain so far.
        suffix: `family.probe` to ask in passing, `family.close` or `family.close_closed` to end with the answer.
        sampling_params: Sampling fields of the answer, `max_tokens` among them.
    """
    task = continuation(prompt, prefix, sampling_params["max_tokens"], suffix)
    apply_sampling_params(task, sampling_params)
    set_purpose(task, PROBE)
    return task


def asked_answer(task: GenerationTask) -> str | None:
    """The answer in the response to `asking`; None where the box was not closed or is empty."""
    return up_to_brace(output_of(task)) or None


def conclude(
    task: GenerationTask,
    chain: Chain,
    family: PromptFamily,
    sampling_params: dict[str, Any],
    *,
    exit_reason: str = "length",
    insist_on_answer: bool = True,
) -> ControllerGenerator:
    """Work to `yield from` that ends the request with the chain as it stands; a chain that goes on is left.

    The output is the chain, where it has an answer of its own: in its end, or behind its closed thinking. Elsewhere
    thinking is closed, where it is open, and the answer is asked for; not at the budget of a mere chunk, which others
    go on with.

    Args:
        task: Gets the output.
        chain: Has ended by itself, at its budget, or goes on.
        family: How thinking is closed.
        sampling_params: Sampling fields of an answer that is asked for, `max_tokens` among them.
        exit_reason: Why a chain that goes on is left. One that ended by itself exits with `"end"`, and one that its
            budget ended with `"length"`.
        insist_on_answer: Whether a chain that ended by itself without an answer is asked for one, too.
    """
    ended_by_itself = chain.ended and chain.finish_reason != "length"
    reason = "end" if ended_by_itself else "length" if chain.ended else exit_reason
    prefix, closed = chain.prefix, chain.contains(family.think_close)
    answer = extract(prefix.text.rpartition(family.think_close)[2])
    record("end", position=prefix.num_tokens, finish_reason=chain.finish_reason, answer=answer)
    if not ended_by_itself:
        yield from chain.leave()
    if chain.ended and not ended_by_itself and is_chunk(task):
        finish(task, prefix.text, prefix.token_ids, None, reason)
        return
    is_answered = answer is not None and (ended_by_itself or closed)
    if is_answered or (ended_by_itself and not insist_on_answer):
        finish(task, prefix.text, prefix.token_ids, answer, reason)
        return
    close = family.close_closed if closed else family.close
    kept = _without_end(prefix) if ended_by_itself else prefix
    forced = asking(task, kept, close, sampling_params)
    yield [forced]
    answer = asked_answer(forced)
    record("force", position=kept.num_tokens, answer=answer)
    if answer is None:
        finish(task, prefix.text, prefix.token_ids, None, reason)
        return
    if ended_by_itself:
        yield from chain.leave(kept)
    close_with(task, kept, close, answer, family, reason)


def close_with(
    task: GenerationTask, prefix: Prefix, close: str, answer: str, family: PromptFamily, exit_reason: str
) -> None:
    """Write prefix, closing text and answer as the task's output."""
    ending = close + answer + family.answer_end
    ending_ids = encode(ending)
    ids = None if prefix.token_ids is None or ending_ids is None else prefix.token_ids[: prefix.num_tokens] + ending_ids
    finish(task, prefix.text + ending, ids, answer, exit_reason)


def _without_end(prefix: Prefix) -> Prefix:
    """An ended chain as one that can go on: without the token that ended it, and as text where it was cut inside."""
    ids = prefix.token_ids
    if not ids:
        return prefix
    if decode(ids[-1:]) == "":
        ids = ids[:-1]
    text = decode(ids)
    return Prefix(len(ids), prefix.text, ids if text is None or text == prefix.text else None)
