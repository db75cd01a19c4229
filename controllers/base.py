"""The contract of this package's controllers.

A controller implements `run` for one task, or overrides `process` for many. It keeps nothing of a request in its
attributes that it changes in place: `clone` shares them.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import weakref
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from scaffolding_ext.errors import ConfigError, NoOutputError
from scaffolding_ext.program import Program, current_program, enter_program, record
from scaffolding_ext.prompting import DEFAULT_FAMILY, PromptFamily, Prompting, family_named
from scaffolding_ext.protocol import (
    Controller,
    ControllerGenerator,
    GenerationTask,
    ParallelProcess,
    Task,
    Worker,
    current_scope,
)
from scaffolding_ext.results import Completion
from scaffolding_ext.tasks import WorkerTag

_PLAIN_TYPES = frozenset({type(None), bool, int, float, str, tuple, list, dict})  # skips a slower isinstance in clone()


class _Opened:
    """A program that `generate` opened, because its host opens none.

    Such a host may start a request in the context of the one that made room for it, where the old program is still set.
    """

    def __init__(self) -> None:
        self.program = Program()
        self.has_returned = False
        self._scope = current_scope.get()
        task = _running_task()
        self._task = None if task is None else weakref.ref(task)

    def is_over(self) -> bool:
        """Whether the program's request has ended; one that failed leaves its generator suspended."""
        if self.has_returned:
            return True
        scope = current_scope.get()
        if scope is not None and self._scope is not None:
            return scope.request_id != self._scope.request_id
        task = None if self._task is None else self._task()  # a host without scopes
        return self._task is not None and (task is None or task.done())


_opened: contextvars.ContextVar[_Opened | None] = contextvars.ContextVar("opened", default=None)


def _running_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # driven outside of an event loop
        return None


class Capabilities(NamedTuple):
    """What a controller knows of a worker.

    Attributes:
        tasks: Task types that it serves natively.
        context_len: Prompt and generated tokens that one of its tasks may have; None where it does not say.
    """

    tasks: frozenset[type[Any]]
    context_len: int | None


_UNBOUND = Capabilities(frozenset({GenerationTask}), None)


class BaseController(Controller):
    """A controller with a program, prompting, capabilities, and a clone that copies nothing large.

    Each sub-controller must be an attribute of its own: `clone` and `bind` do not look into lists or dicts.

    Attributes:
        required_tags: The workers that this controller itself sends tasks to; a stack without them is refused.
        required_tasks: Task types that must be served natively, because nothing can take their place.
        prompting: Set on the outermost controller of a stack: applied to the prompt when a request starts.
    """

    required_tags: ClassVar[tuple[WorkerTag, ...]] = (WorkerTag.GENERATION,)
    required_tasks: ClassVar[tuple[type[Task], ...]] = ()
    prompting: Prompting | None = None

    def __init__(self) -> None:
        super().__init__()
        self._capabilities: dict[str, Capabilities] = {}

    def clone(self) -> BaseController:
        """A copy for one request: attributes are shared, sub-controllers cloned, task collections copied."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        for name, value in self.__dict__.items():
            if type(value) not in _PLAIN_TYPES and isinstance(value, Controller):
                twin.__dict__[name] = value.clone()
        twin.task_collections = copy.deepcopy(self.task_collections) if self.task_collections else {}
        return twin

    def bind(self, workers: Mapping[Any, Worker]) -> None:
        """Tell the controller what its workers can do; call it once when the stack is built.

        Raises:
            ConfigError: A worker that the controller needs is missing, or cannot serve a task that nothing can replace.
        """
        for tag in self.required_tags:
            worker = workers.get(tag)
            if worker is None:
                known = ", ".join(sorted({str(getattr(key, "value", key)) for key in workers})) or "none"
                raise ConfigError(
                    f"{type(self).__name__} needs a worker {tag.value!r}; the stack has: {known}", "workers"
                )
            served = frozenset(type(worker).task_handlers)
            for task_type in self.required_tasks:
                if task_type not in served:
                    raise ConfigError(
                        f"{type(worker).__name__} cannot serve {task_type.__name__}, which {type(self).__name__} needs",
                        f"workers.{tag.value}",
                    )
            self._capabilities[tag.value] = Capabilities(served, getattr(worker, "max_seq_len", None))
        compare = workers.get(WorkerTag.COMPARE)
        if compare is not None:
            self._capabilities[WorkerTag.COMPARE.value] = Capabilities(frozenset(type(compare).task_handlers), None)
        for value in self.__dict__.values():
            bind = getattr(value, "bind", None) if isinstance(value, Controller) else None
            if bind is not None:
                bind(workers)

    def can_serve(self, tag: WorkerTag, task_type: type[Task]) -> bool:
        """Whether the worker of that tag serves the task type natively; unbound, plain generation alone is assumed."""
        return task_type in self._capabilities.get(tag.value, _UNBOUND).tasks

    def budget_within_context(self, tag: WorkerTag, task: GenerationTask, budget: int, reserved: int) -> int:
        """The budget, lowered to what the worker's context leaves after the prompt and some reserved tokens.

        Args:
            tag: The worker that continues the prompt.
            task: Its `input_tokens` are the prompt; where they are None, or the context unknown, the budget stays.
            budget: Tokens wanted.
            reserved: Tokens that must fit beyond it: a suffix and what it asks for.

        Raises:
            ConfigError: The prompt leaves no room at all.
        """
        context_len = self._capabilities.get(tag.value, _UNBOUND).context_len
        if context_len is None or task.input_tokens is None:
            return budget
        room = context_len - len(task.input_tokens) - reserved
        if room < 1:
            raise ConfigError(
                f"the prompt has {len(task.input_tokens)} tokens, and asking for the answer needs {reserved}; "
                f"the worker's context is {context_len}: shorten the prompt or raise the worker's max_seq_len"
            )
        if room < budget:
            record("lowered", what="budget", asked=budget, given=room, reason="the worker's context")
        return min(room, budget)

    def generate(self, prompt: str, **kwargs: Any) -> ControllerGenerator:
        """Run one request; under a host that opens no program, one is opened here."""
        program = current_program()
        opened = _opened.get()
        if program is not None and (opened is None or opened.program is not program or not opened.is_over()):
            return (yield from self._generate(prompt, program, **kwargs))
        opened = _Opened()
        _opened.set(opened)
        enter_program(opened.program)
        try:
            return (yield from opened.program.meter(self._generate(prompt, opened.program, **kwargs)))
        finally:
            opened.has_returned = True

    def _generate(self, prompt: str, program: Program, **kwargs: Any) -> ControllerGenerator:
        task = GenerationTask.create_from_prompt(prompt)
        if self.prompting is not None:
            program.prompting = self.prompting
            self.prompting.apply(task)
        yield from self.process([task], **kwargs)
        if task.output_str is None:
            raise NoOutputError(
                f"{type(self).__name__} ended without an output; its worker may have failed: read its log"
            )
        fields = task.customized_result_fields
        return Completion(task.output_str, task.output_tokens, fields.get("answer"), fields.get("exit_reason"))

    def process(self, tasks: list[Any], **kwargs: Any) -> ControllerGenerator:
        """Do the tasks, each by `run`; several at once run in parallel branches."""
        if len(tasks) == 1:
            yield from self.run(tasks[0], **kwargs)
        elif tasks:
            yield ParallelProcess([self.clone() for _ in tasks], [[task] for task in tasks], [kwargs for _ in tasks])

    def run(self, task: GenerationTask, **kwargs: Any) -> ControllerGenerator:
        """Do one task: yield work, then write the output into it (see `finish`)."""
        raise TypeError(f"{type(self).__name__} must implement run() or process()")


def finish(
    task: GenerationTask,
    text: str,
    token_ids: list[int] | None,
    answer: str | None = None,
    exit_reason: str | None = None,
) -> None:
    """Write a controller's output into the task that it was given."""
    task.output_str, task.output_tokens = text, token_ids
    task.customized_result_fields["answer"] = answer
    task.customized_result_fields["exit_reason"] = exit_reason


def prompt_family() -> PromptFamily:
    """The prompt family of the running request: its prompting's, else the default."""
    program = current_program()
    prompting: Prompting | None = program.prompting if program is not None else None
    return family_named(DEFAULT_FAMILY) if prompting is None else prompting.family


def encode(text: str) -> list[int] | None:
    """Token ids of a piece of text by the running request's prompting; None where it has none (then text is sent)."""
    program = current_program()
    prompting: Prompting | None = program.prompting if program is not None else None
    return None if prompting is None else prompting.encode(text)


def decode(token_ids: list[int]) -> str | None:
    """The text of token ids by the running request's prompting; None where it has none."""
    program = current_program()
    prompting: Prompting | None = program.prompting if program is not None else None
    return None if prompting is None else prompting.decode(token_ids)


def longest_len(*texts: str) -> int:
    """Tokens of the longest of some texts; where the running request has no prompting, at most its UTF-8 bytes."""
    return max(len(text.encode()) if (ids := encode(text)) is None else len(ids) for text in texts)
