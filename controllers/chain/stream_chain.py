"""A chain of thought in one stream, read at exact positions; `start_chain` falls back to chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from scaffolding_ext import require
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.chain.chain import LOOP_STEP, PACE_STEP, Chain, Prefix, continuation, is_text_of
from scaffolding_ext.controllers.chain.chunk_chain import ChunkChain
from scaffolding_ext.controllers.prompting import longest_len
from scaffolding_ext.prompts.families import PromptFamily
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask, StreamGenerationTask, Task
from scaffolding_ext.protocol.meta import CHAIN, CHAIN_START, PAUSED, note
from scaffolding_ext.protocol.task_results import cost_of, finish_reason_of, output_of
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.request.program import record

_MOST_LATE = 2  # early-ended streams after which the chain continues in chunks


class StreamChain(Chain):
    """One uninterrupted streaming generation: no token of the chain is prefilled twice.

    The worker's tokenizer cuts the text at the requested position. One more token is awaited there, so that an end at
    that position is known. Without the tokenizer the text cannot be cut, and the trace says so.

    The stream may run `max_lead` tokens ahead of the requested position. A worker that cannot pause it there ends it;
    the chain then continues in another stream, and after two such ends in chunks.

    Args:
        max_lead: Tokens ahead of the requested position; None takes the length of the last `grow`, one spacing.
    """

    runs_on = True

    def __init__(
        self,
        prompt: GenerationTask,
        max_tokens: int,
        sampling_params: dict[str, Any],
        streaming_output: bool = False,
        max_lead: int | None = None,
    ) -> None:
        super().__init__(prompt, max_tokens, sampling_params)
        self._max_lead = None if max_lead is None else require.whole("max_lead", max_lead)
        self._task = StreamGenerationTask(
            worker_tag=WorkerTag.GENERATION,
            input_str=prompt.input_str,
            input_tokens=prompt.input_tokens,
            max_tokens=max_tokens,
            streaming_output_flag=streaming_output,
        )
        self._before = Prefix(0, "", [])  # text of earlier streams
        self._num_generated_before = 0
        self._num_late = 0
        self._target = 0
        self._goal = 0  # beyond the target if the chain grows in steps
        self._may_run_to = max_tokens
        self._can_cut = False
        self._started = False
        note(self._task, purpose=CHAIN_START)
        self._configure(self._task)

    @property
    def prefix(self) -> Prefix:
        arrived, end = self._arrived, self._num_tokens
        known = arrived.token_ids is not None or not self._started
        ids, logprobs = arrived.token_ids or [], arrived.logprobs
        return Prefix(end, self.text, ids[:end] if known else None, logprobs[:end] if logprobs else None)

    @property
    def num_generated(self) -> int:
        cost = cost_of(self._task)
        return self._num_generated_before + (cost.written.decoded + cost.written.reused if cost else 0)

    def grow(self, num_tokens: int, beside: Sequence[Task] = ()) -> ControllerGenerator:
        """Read in steps if loops, the clock or positions are watched; the stream runs ahead as usual."""
        goal = min(num_tokens, self.max_tokens)
        is_watched = self.loops is not None or self.is_timed or self.is_paced
        if not is_watched or self.ended or goal <= self._num_tokens:
            yield from super().grow(num_tokens, beside)
            return
        self._run_to(goal)
        while not self.ended and self._num_tokens < goal:
            step = self._reading_step()
            yield from super().grow(min((self._num_tokens // step + 1) * step, goal), beside)
            beside = ()

    def _reading_step(self) -> int:
        """Tokens between two reads; of a paced chain a power of 2 that grows with the chain."""
        if not self.is_paced:
            return LOOP_STEP
        step = max(PACE_STEP, 1 << (self._num_tokens // LOOP_STEP).bit_length() >> 1)
        return step if self.loops is None and not self.is_timed and not self._stops else min(step, LOOP_STEP)

    def _run_to(self, goal: int) -> None:
        if goal != self._goal:
            self._goal = goal
            self._may_run_to = min(goal + (self._max_lead or max(1, goal - self._num_tokens)), self.max_tokens)

    def advance(self, num_tokens: int) -> list[Task]:
        target = min(num_tokens, self.max_tokens)
        if target > self._goal:
            self._run_to(target)
        self._target = target
        is_there = self._num_tokens >= self._target and self._num_tokens < self.max_tokens  # it must end at its budget
        if self.ended or is_there or self._read():
            return []
        if self._task.end_flag:
            self._go_on()
        bounded = self._may_run_to < self.max_tokens
        note(self._task, may_run_to=self._may_run_to - self._before.num_tokens if bounded else None)
        self._task.streaming_step = max(1, self._awaited() - self._num_arrived)
        return [self._task]

    def absorb(self) -> None:
        if self._task.cancel_flag:
            self.ended, self.finish_reason = True, self.finish_reason or "cancelled"
            return
        text, ids = output_of(self._task), self._task.output_tokens
        if not self._started and (ids or text or self._task.end_flag):
            self._started = True
            self._can_cut = ids is not None and is_text_of(ids, text, whole=False)
        self._read()

    def stop(self) -> list[Task]:
        if self._task.end_flag or not self._target:  # ended, or never begun
            return []
        self._task.cancel_flag = True
        return [self._task]

    @property
    def _arrived(self) -> Prefix:
        """Everything received of the chain, read or not; without ids if the worker gives none."""
        before, task = self._before, self._task
        ids = None if task.output_tokens is None or before.token_ids is None else before.token_ids + task.output_tokens
        logprobs = [*(before.logprobs or ()), *(task.logprobs or ())]
        return Prefix(len(ids or ()), before.text + (task.output_str or ""), ids, logprobs or None)

    @property
    def _num_arrived(self) -> int:
        """Tokens received; without ids, those requested are assumed."""
        ids = self._task.output_tokens
        return self._num_tokens if ids is None else self._before.num_tokens + len(ids)

    @property
    def _is_cut(self) -> bool:
        """True if the stream ended before the chain: it was too far ahead, or only a chunk."""
        reason = finish_reason_of(self._task)
        is_chunk = self._before.num_tokens + (self._task.max_tokens or 0) < self.max_tokens
        return bool(self._task.end_flag) and (reason == PAUSED or (reason == "length" and is_chunk))

    def _go_on(self) -> None:
        arrived = self._arrived
        if finish_reason_of(self._task) == PAUSED:
            self._num_late += 1
            goes_on = "in chunks" if self._num_late == _MOST_LATE else "in another stream"
            if self._num_late <= _MOST_LATE:
                record("late", position=self._num_tokens, arrived=arrived.num_tokens, goes_on=goes_on)
        limit = self._may_run_to if self._num_late >= _MOST_LATE else self.max_tokens
        self._num_generated_before, self._before = self.num_generated, arrived
        end = min(max(limit, self._awaited()), self.max_tokens)
        piece = continuation(self.prompt, arrived, end - arrived.num_tokens)
        self._task = StreamGenerationTask.create_from_generation_task(piece, 1)
        note(self._task, purpose=CHAIN)
        self._configure(self._task, arrived.num_tokens)

    def _awaited(self) -> int:
        """Tokens that must arrive before the chain can be read at its target, unless it ends earlier."""
        return self._target + (self._can_cut or self._target == self.max_tokens)

    def _last_ids(self, num_tokens: int) -> list[int] | None:
        ids, num_before = self._task.output_tokens, self._before.num_tokens
        if ids is None or self._num_tokens - num_before < num_tokens:
            return super()._last_ids(num_tokens)
        end = self._num_tokens - num_before
        return ids[end - num_tokens : end]

    def _read(self) -> bool:
        """Advance to the target if enough has arrived; return True if so."""
        has_moved = self._move_on()
        if has_moved:
            self._look_for_an_end()
        return has_moved

    def _move_on(self) -> bool:
        if not self._started:
            return False
        task, arrived = self._task, self._arrived
        has_ended = bool(task.end_flag) and not self._is_cut
        num_arrived = self._target if arrived.token_ids is None else arrived.num_tokens
        if has_ended and num_arrived <= self._target:
            output_of(task)  # raises if a worker failed silently
            self._num_tokens, self._text.text = num_arrived, arrived.text
            self.ended, self.finish_reason = True, finish_reason_of(task) or "stop"
            return True
        if num_arrived < self._awaited():
            return False
        if self._can_cut and arrived.token_ids is not None:
            self._text.add_ids(arrived.token_ids[self._num_tokens : self._target])
            self._num_tokens = self._target
            return True
        if num_arrived > self._target:
            record("inexact", position=self._target, arrived=num_arrived, reason="the stream's text cannot be cut")
        self._num_tokens, self._text.text = num_arrived, arrived.text
        if has_ended:
            self.ended, self.finish_reason = True, finish_reason_of(task) or "stop"
        return True


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
    max_lead: int | None = None,
) -> Chain:
    """Start a chain of the kind that the worker can serve; fallbacks are recorded in the trace.

    Args:
        task: The chain answers its prompt, with its sampling fields, and within its `max_tokens` if set.
        max_tokens: The chain's budget; less if the worker's context leaves less.
        answer_tokens: Tokens of a requested answer; the context keeps room for them.
        max_lead: Tokens that a stream may be ahead of the requested position; None takes one spacing.
    """
    wanted = max_tokens if task.max_tokens is None else min(task.max_tokens, max_tokens)
    reserved = longest_len(family.probe, family.close, family.close_closed) + answer_tokens
    budget = controller.budget_within_context(WorkerTag.GENERATION, task, wanted, reserved)
    if mode == "stream" and not controller.can_serve(WorkerTag.GENERATION, StreamGenerationTask):
        record("fallback", task="StreamGenerationTask", to="GenerationTask", reason="the worker cannot stream")
        mode = "chunk"
    params = dict(sampling_params or {})
    chain: Chain
    if mode == "chunk":
        chain = ChunkChain(task, budget, params)
        chain.family = family
        return chain
    if streaming_output and StreamGenerationTask not in controller.worker(WorkerTag.GENERATION).streamed_tasks:
        record("fallback", what="streaming", reason="the worker cannot stream a StreamGenerationTask to the caller")
        streaming_output = False
    chain = StreamChain(task, budget, params, streaming_output, max_lead)
    chain.family = family
    return chain
