"""A chain of thought in one stream, read at exact positions."""

from __future__ import annotations

from typing import Any

from scaffolding_ext.controllers.chain.chain import Chain, Prefix
from scaffolding_ext.controllers.chain.chunk_text import is_text_of
from scaffolding_ext.program import record
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, Task
from scaffolding_ext.tasks import CHAIN_START, cost_of, finish_reason_of, output_of, set_purpose
from scaffolding_ext.worker_tags import WorkerTag


class StreamChain(Chain):
    """One uninterrupted streaming generation: no token of the chain is prefilled twice.

    Where the running request's tokenizer is the worker's, what has arrived is cut at the position asked for. One token
    more is awaited there, so that an end at the position is known whenever the worker tells of it. Elsewhere a worker
    that hands over more than it was asked for cannot be cut, and the trace says so.

    Args:
        prompt: As for every chain.
        max_tokens: As for every chain.
        sampling_params: As for every chain.
        streaming_output: Whether the chain is streamed to the caller.
    """

    runs_on = True

    def __init__(
        self,
        prompt: GenerationTask,
        max_tokens: int,
        sampling_params: dict[str, Any],
        streaming_output: bool = False,
    ) -> None:
        super().__init__(prompt, max_tokens, sampling_params)
        self._task = StreamGenerationTask(
            worker_tag=WorkerTag.GENERATION,
            input_str=prompt.input_str,
            input_tokens=prompt.input_tokens,
            max_tokens=max_tokens,
            streaming_output_flag=streaming_output,
        )
        self._target = 0
        self._can_cut = False
        self._started = False
        set_purpose(self._task, CHAIN_START)
        self._configure(self._task)

    @property
    def prefix(self) -> Prefix:
        ids, logprobs, end = self._task.output_tokens, self._task.logprobs, self._num_tokens
        known = ids is not None or not self._started
        return Prefix(
            end, self.text, list(ids or ())[:end] if known else None, list(logprobs)[:end] if logprobs else None
        )

    @property
    def num_generated(self) -> int:
        cost = cost_of(self._task)
        return cost.written.decoded + cost.written.reused if cost else 0

    def advance(self, num_tokens: int) -> list[Task]:
        self._target = min(num_tokens, self.max_tokens)
        is_there = self._num_tokens >= self._target and self._num_tokens < self.max_tokens  # at its budget it must end
        if self.ended or is_there or self._read():
            return []
        ids = self._task.output_tokens
        self._task.streaming_step = max(1, self._awaited() - (self._num_tokens if ids is None else len(ids)))
        return [self._task]

    def absorb(self) -> None:
        if self._task.cancel_flag:
            self.ended, self.finish_reason = True, "cancelled"
            return
        text, ids = output_of(self._task), self._task.output_tokens
        if not self._started and (ids or text or self._task.end_flag):
            self._started = True
            self._can_cut = ids is not None and is_text_of(ids, text, whole=False)
        self._read()

    def stop(self) -> list[Task]:
        if self._task.end_flag:
            return []
        self._task.cancel_flag = True
        return [self._task]

    def _awaited(self) -> int:
        """Tokens that must have arrived before the chain can be read at its target, where it does not end before."""
        return self._target + (self._can_cut or self._target == self.max_tokens)

    def _read(self) -> bool:
        """Move on to the target with what has arrived; whether that was enough."""
        if not self._started:
            return False
        task, ids = self._task, self._task.output_tokens
        num_arrived = self._target if ids is None else len(ids)  # without ids, all that was asked for is assumed
        if task.end_flag and num_arrived <= self._target:
            self._num_tokens, self._text.text = num_arrived, output_of(task)
            self.ended, self.finish_reason = True, finish_reason_of(task) or "stop"
            return True
        if num_arrived < self._awaited():
            return False
        if self._can_cut and ids is not None:
            self._text.add_ids(ids[self._num_tokens : self._target])
            self._num_tokens = self._target
            return True
        if num_arrived > self._target:
            record("inexact", position=self._target, arrived=num_arrived, reason="the stream's text cannot be cut")
        self._num_tokens, self._text.text = num_arrived, task.output_str or ""
        if task.end_flag:
            self.ended, self.finish_reason = True, finish_reason_of(task) or "stop"
        return True
