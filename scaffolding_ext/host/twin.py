"""Audits by a twin: the same request from the same seeds, run by a clone of its controller that no rule stops.

The request's finished generations are kept, and the twin's equal ones are answered from them. What the request cut
short is generated from its beginning.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from scaffolding_ext.controllers.answer_classes import classify
from scaffolding_ext.controllers.base import BaseController, sub_controllers
from scaffolding_ext.controllers.rule import DecisionRule
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.dispatch import Dispatcher
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask, StreamGenerationTask, Task
from scaffolding_ext.protocol.meta import PAUSED, TokenCounts, ToolCall, meta_of, note
from scaffolding_ext.protocol.task_results import finish_reason_of
from scaffolding_ext.request.audit import AuditFinding
from scaffolding_ext.request.program import DEADLINE
from scaffolding_ext.request.results import Completion
from scaffolding_ext.request.seeds import branch_path, derive_seed

if TYPE_CHECKING:
    from scaffolding_ext.request.program import Program

WHOLE = ("vote", "end", "length")  # exit reasons of requests that no rule has stopped
_RESULTS = ("output_str", "output_tokens", "finish_reason", "logprobs")
# Fields that do not decide what is generated: results, and the ways in which a task is sent and streamed.
_IGNORED = {
    *(*_RESULTS, "context_logits", "customized_result_fields", "ttft_s", "latency_s", "request_id", "meta"),
    *("usage_prompt_tokens", "usage_completion_tokens", "llm_request_params", "streaming_output_flag"),
    *("streaming_output_list", "cancel_flag", "streaming_step", "request_handle", "end_flag"),
}


def check_seed(controller: Controller, seed: int | None) -> None:
    """Refuse audits without a seed: the twin would draw other samples, and chance would count as a changed answer."""
    if getattr(controller, "audit", 0.0) and seed is None:
        raise ConfigError("needs a seed, from which the twin draws the same samples: set seed", "audit")


def twin_of(controller: Controller, kwargs: Mapping[str, Any], program: Program) -> BaseController | None:
    """Draw from the seed if a request is audited, and return the controller of its twin; None if it is not."""
    own = kwargs.get("controller", controller)  # `serve` sets one per request
    if not isinstance(own, BaseController) or not own.audit:
        return None
    check_seed(own, program.seeds.seed)
    twin = own.unstopped() if derive_seed(program.seeds.seed, "audit") / 2**63 < own.audit else None
    if twin is not None:
        _copy_rules(twin)
    return twin


def _copy_rules(twin: BaseController) -> None:
    """Give the twin copies of the rules as they are now: it decides by them, and teaches the stack's nothing."""
    for name, value in vars(twin).items():
        if isinstance(value, DecisionRule):
            setattr(twin, name, copy.deepcopy(value))
    for sub in sub_controllers(twin):
        if isinstance(sub, BaseController):
            _copy_rules(sub)


def is_comparable(output: Any) -> bool:
    return isinstance(output, Completion) and output.exit_reason != DEADLINE


def compared(
    controller: Controller, twin: BaseController, early: Any, prompt: str, kwargs: Mapping[str, Any]
) -> ControllerGenerator:
    """Answer the request again, and return how the answers compare."""
    if early.exit_reason in WHOLE:  # the rate is that of all requests, stopped early or not
        return AuditFinding(early.answer, early.answer, False)
    if "controller" in kwargs:
        whole = yield from controller.generate(prompt, **{**kwargs, "controller": twin})
    else:
        whole = yield from twin.generate(prompt, **kwargs)
    first, second = yield from classify(twin, [early.answer, whole.answer])
    return AuditFinding(early.answer, whole.answer, first != second)


class _Kept(NamedTuple):
    asked: dict[str, Any]
    results: dict[str, Any]
    counts: TokenCounts | None
    calls: tuple[ToolCall, ...]


class RecordingDispatcher(Dispatcher):
    """Keeps what one request generates, for its twin.

    A generation answers the twin's if it is of the same branch and all fields are equal that decide what is generated,
    the seed among them.

    Attributes:
        reused: Tokens of the generations that were not run again.
    """

    def __init__(self, plain: Dispatcher, known: Mapping[Any, _Kept] | None = None) -> None:
        self.__dict__.update(plain.__dict__)
        self.kept: dict[Any, _Kept] = {}
        self.reused = TokenCounts()
        self._known = known or {}
        # By id, since streams come several times; the task is held, so that no other one gets its id.
        self._running: dict[int, tuple[Task, Any, dict[str, Any]]] = {}

    async def _run_task(self, task: Task) -> None:
        if not isinstance(task, GenerationTask) or type(task) not in (GenerationTask, StreamGenerationTask):
            await super()._run_task(task)
            return
        if id(task) not in self._running:
            asked = {name: value for name, value in task.__dict__.items() if name not in _IGNORED}
            key = branch_path(), task.seed, task.max_tokens, len(task.input_str or ""), len(task.input_tokens or ())
            known = self._known.get(key)
            if known is not None and known.asked == asked:
                self._answer(task, known)
                return
            self._running[id(task)] = task, key, asked
        try:
            await super()._run_task(task)
        except BaseException:  # failed or cancelled
            del self._running[id(task)]
            raise
        if isinstance(task, StreamGenerationTask) and not (task.end_flag or task.cancel_flag):
            return
        _, key, asked = self._running.pop(id(task))
        if not getattr(task, "cancel_flag", False) and finish_reason_of(task) != PAUSED:
            results = {name: task.__dict__.get(name) for name in _RESULTS}
            self.kept[key] = _Kept(asked, results, meta_of(task).counts, meta_of(task).calls)

    def _answer(self, task: GenerationTask, known: _Kept) -> None:
        task.__dict__.update(known.results)
        note(task, calls=known.calls)
        if known.counts is not None:
            note(task, counts=known.counts)
            self.reused = TokenCounts(*map(sum, zip(self.reused, known.counts, strict=True)))
        if isinstance(task, StreamGenerationTask):
            task.end_flag = True
