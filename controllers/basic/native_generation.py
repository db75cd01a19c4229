"""Plain generation: one call of the model per task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scaffolding_ext.answers.stop_strings import StopStrings
from scaffolding_ext.controllers.base import BaseController, finish, show, side_by_side
from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.controllers.chain.chain import CUT, LOOP_STEP, Chain
from scaffolding_ext.controllers.chain.ending import conclude
from scaffolding_ext.controllers.chain.stream_chain import StreamChain
from scaffolding_ext.controllers.needs import Needs
from scaffolding_ext.controllers.prompting import (
    answer_of,
    check_tools,
    held_stops,
    longest_len,
    num_tokens_to,
    prompt_family,
    reading_of,
    thinking_is_open,
)
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.sampling_params import (
    GUIDED_DECODING,
    SAMPLING_FIELDS,
    apply_sampling_params,
    checked_sampling_params,
    set_sampling_params,
)
from scaffolding_ext.prompts.tool_calls import RequiredCall, canonical
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask, StreamGenerationTask
from scaffolding_ext.protocol.meta import ToolCall, meta_of, note
from scaffolding_ext.protocol.task_results import finish_reason_of, output_of
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.request.parts import is_paced
from scaffolding_ext.request.program import Program, current_program

_ANSWER_TOKENS = 1024  # after budgeted thinking, if no total limit is given
FORCED_TOKENS = 64  # of a repetitive chain's forced answer
_SHOWN_TOKENS = 8  # per piece of a watched text that is streamed to its caller


class NativeGenerationController(BaseController):
    """Sends its tasks to the generation worker unchanged.

    If the stack watches for loops (`loops`), a task is generated as a stream that is read as it grows. It is ended when
    its thinking repeats itself, and asked for its answer. Not watched are chunks of a chain (the chain's controller
    watches), tasks with tools for a chat server, tasks of several texts (`n`, `best_of`), and tasks of a worker that
    cannot stream, or whose context is unknown if the task has no `max_tokens`.

    Args:
        sampling_params: Values for the sampling fields of GenerationTask; fields set by a task take precedence.
        streaming: Stream the output to the caller as it is generated.
    """

    def __init__(self, sampling_params: dict[str, Any] | None = None, streaming: bool = False) -> None:
        super().__init__()
        self.sampling_params = checked_sampling_params(sampling_params)
        self.needs = Needs(
            max_tokens=self.sampling_params.get("max_tokens"),
            fields=SAMPLING_FIELDS | {"thinking_budget", "tools", "tool_choice", GUIDED_DECODING},
        )
        self.streaming = streaming

    def process(
        self,
        tasks: list[Any],
        thinking_budget: int | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        guided_decoding: Mapping[str, Any] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        **sampling_params: Any,
    ) -> ControllerGenerator:
        """Generate all tasks in one batch.

        Args:
            thinking_budget: Tokens after which thinking is closed: by the worker's server if it can, else by a
                `BudgetForcingController` that replaces this one.
            tools: Tools that the model may call. The answer is then its calls, in canonical JSON, or else its text.
                Chat servers take them as they are; other workers only with a `tool_choice` that requires a call.
            guided_decoding: A form of the output, for a worker that keeps it, such as `{"json": SCHEMA}`.
            tool_choice: `required`, or `{"type": "function", "function": {"name": NAME}}`: the answer is a call of one
                of the tools, or of this one, kept by a chat server or by the worker's guided decoding.

        Raises:
            ConfigError: Tools and a thinking budget are both given, `tool_choice` requires a tool that is not, or
                nothing would read the calls.
        """
        if thinking_budget is not None and tools:
            raise ConfigError(
                "cannot be given with tools, since a forced answer holds no calls: leave one of them out",
                "thinking_budget",
            )
        required = None if tool_choice is None else RequiredCall.of(tools or (), tool_choice)
        passed = None
        if tools and check_tools(required is not None):
            required, passed = None, {"tools": list(tools), "tool_choice": tool_choice or "auto"}
        if required is not None:
            guided_decoding = required.guide
        has_stops = False  # which must not end thinking
        for task in tasks:
            if sampling_params:
                set_sampling_params(task, sampling_params)
            if guided_decoding is not None:
                task.custom_input_params = {**(task.custom_input_params or {}), GUIDED_DECODING: guided_decoding}
            if passed is not None:
                note(task, tools=passed)
            task.worker_tag = WorkerTag.GENERATION
            task.streaming_output_flag |= self.streaming
            apply_sampling_params(task, self.sampling_params)
            if task.max_tokens is not None and task.input_tokens is not None:
                task.max_tokens = self.budget_within_context(WorkerTag.GENERATION, task, task.max_tokens, 0)
            if task.stop:
                has_stops = prompt_family(task).thinks
        if thinking_budget is not None:
            # A limit that leaves no room after the budget ends the thinking anyway.
            bounded = [task for task in tasks if task.max_tokens is None or task.max_tokens > thinking_budget]
            tasks = [task for task in tasks if not any(task is each for each in bounded)]
            yield from _at_once([self._within(thinking_budget, task).process([task]) for task in bounded])
        program = current_program()
        if program is not None and (
            program.loops is not None or program.lifetime.answer_by is not None or has_stops or is_paced()
        ):
            watched = [task for task in tasks if self._is_watched(task, program)]
            if watched:
                yield from _at_once([self._watched(task) for task in watched])
                for task in watched if required else ():
                    task.customized_result_fields["answer"] = _tool_answer(task, required)
                tasks = [task for task in tasks if not any(task is each for each in watched)]
        held = [held_stops(task, prompt_family(task)) for task in tasks] if has_stops else []
        if tasks:
            yield tasks
        for task, stops in zip(tasks, held, strict=False):
            _end_answer(task, stops)
        for task in tasks:
            text = output_of(task)
            task.customized_result_fields["answer"] = _tool_answer(task, required) if tools else answer_of(task, text)
            task.customized_result_fields["exit_reason"] = "length" if finish_reason_of(task) == "length" else "end"

    def _is_watched(self, task: GenerationTask, program: Program) -> bool:
        """Return True if the task can be read while it is generated, to end it on a loop or in time."""
        if meta_of(task).is_chunk or meta_of(task).tools is not None:
            return False
        # Only the host can forward a worker's stream.
        is_shown = task.streaming_output_flag and program.caller.show is None
        is_one = type(task) is GenerationTask and (task.n or 1) == 1 and (task.best_of or 1) == 1
        is_bounded = task.max_tokens is not None or self._room(task) is not None
        return is_one and is_bounded and not is_shown and self.can_serve(WorkerTag.GENERATION, StreamGenerationTask)

    def _room(self, task: GenerationTask) -> int | None:
        """Tokens that fit after the task's prompt; None if unknown."""
        context_len = self.worker(WorkerTag.GENERATION).context_len
        return None if context_len is None or task.input_tokens is None else context_len - len(task.input_tokens)

    def _watched(self, task: GenerationTask) -> ControllerGenerator:
        room = self._room(task)
        wanted = task.max_tokens or room or 1
        chain: Chain = StreamChain(task, wanted if room is None else min(wanted, room), {}, max_lead=wanted)
        while not chain.ended:
            step = _SHOWN_TOKENS if task.streaming_output_flag else LOOP_STEP if task.stop else chain.max_tokens
            yield from chain.grow(chain.num_tokens + step)
            if not chain.ended:
                show(task, chain.text, chain.prefix.token_ids)
        if chain.finish_reason in CUT:
            params = {"temperature": 0.0, "max_tokens": FORCED_TOKENS}
            yield from conclude(chain, params)
            return
        prefix = chain.prefix
        if chain.is_stopped:
            yield from chain.leave(prefix)
        reason = "length" if chain.finish_reason == "length" else "end"
        finish(task, prefix.text, prefix.token_ids, answer_of(task, prefix.text), reason)
        task.logprobs = prefix.logprobs

    def _within(self, thinking_budget: int, task: GenerationTask) -> BudgetForcingController:
        """Build the controller of a thinking budget; the task's `max_tokens` includes thinking and answer."""
        family, room, answer_tokens = prompt_family(task), self._room(task), _ANSWER_TOKENS
        if task.max_tokens is not None:
            answer_tokens = task.max_tokens - thinking_budget
        if room is not None:
            answer_tokens = min(answer_tokens, room - thinking_budget - longest_len(family.close, family.close_closed))
        forcing = BudgetForcingController(
            thinking_budget, max_answer_tokens=max(1, answer_tokens), insist_on_answer=False, kept_by="server"
        )
        forcing.capabilities = self.capabilities
        return forcing


def _at_once(branches: Sequence[ControllerGenerator]) -> ControllerGenerator:
    if len(branches) == 1:
        yield from branches[0]
    elif branches:
        yield side_by_side(branches)


def _end_answer(task: GenerationTask, stops: StopStrings) -> None:
    """Cut a task's output at a stop string behind its thinking."""
    if not stops:
        return
    family, text = prompt_family(task), output_of(task)
    task.stop = list(stops.strings)
    at = family.split(text, thinking_is_open(task, family), stops).stopped_at
    if at is None:
        return
    task.output_str, task.finish_reason = text[:at], "stop"
    if task.output_tokens is not None:
        num_tokens = num_tokens_to(stops.end_of(text, at), task.output_tokens)
        task.output_tokens = task.output_tokens[:num_tokens]
        task.logprobs = task.logprobs and task.logprobs[:num_tokens]


def _tool_answer(task: GenerationTask, required: RequiredCall | None) -> str | None:
    """Return an answer's calls in canonical JSON, or its prose; None if it is empty or a required call is cut.

    The program keeps the calls as they were made, by this answer.
    """
    text = reading_of(task, output_of(task)).answer
    calls: Sequence[ToolCall | None] = meta_of(task).calls if required is None else [required.read(text)]
    made = [call for call in calls if call is not None]
    if not made:
        return None if required is not None else text.strip() or None
    answer, program = canonical(made), current_program()
    if program is not None:
        program.calls.setdefault(answer, made)
    return answer
