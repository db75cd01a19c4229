"""Base class of this package's controllers.

A controller implements `run` for one task, or overrides `process` for many. It must not mutate attributes during a
request, because `clone` shares them.
"""

from __future__ import annotations

import copy
import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import scaffolding_ext.protocol.worker
from scaffolding_ext import require
from scaffolding_ext.controllers.needs import UNBOUND, Capabilities, Needs, check_worker, joined
from scaffolding_ext.errors import ConfigError, NoOutputError
from scaffolding_ext.prompts.prompting import Prompting, Turn
from scaffolding_ext.prompts.sampling_params import GUIDED_DECODING
from scaffolding_ext.protocol import (
    Controller,
    ControllerGenerator,
    GenerationTask,
    ParallelProcess,
    ScaffoldingOutput,
    Task,
    Worker,
)
from scaffolding_ext.protocol.relay import relay
from scaffolding_ext.protocol.worker import WorkerTag, tag_name, tag_names, worker_for, worker_key
from scaffolding_ext.registry import Registry
from scaffolding_ext.request.program import Program, Question, current_program, in_program, record
from scaffolding_ext.request.results import Completion

if TYPE_CHECKING:
    from scaffolding_ext.controllers.repetition import Loops

# Fields that make sense for a single generation only; votes strip them before sampling.
ONE_GENERATION = frozenset({"n", "best_of", "num_logprobs", "stop", "seed", "echo"})
# Fields that a chain honours in all of its pieces; penalties would restart with each.
CHAIN_FIELDS = frozenset({"temperature", "top_p", "top_k", "max_tokens"})


class BaseController(Controller):
    """A controller with a program, prompting, capabilities, and a cheap clone.

    Sub-controllers are attributes, or items of an attribute that is a list, a tuple or a dict.

    Attributes:
        needs: Its requirements on workers and requests, without those of its sub-controllers.
        registries: Registries of its components that are not controllers, such as rules, by argument.
        prompting: Of a stack's outermost controller: applied to the prompt when a request starts. If it was never set,
            our host takes the prompting of the generation worker's model; None sends prompts unchanged.
        loops: Of a stack's outermost controller: detects chains that repeat themselves. Such a chain is ended and asked
            for its answer, in any controller. None watches none.
        audit: Of a stack's outermost controller: share of the requests, in [0, 1], drawn by their seeds, that run again
            after the answer with nothing to stop them (see `unstopped`).
    """

    WorkerTag: TypeAlias = scaffolding_ext.protocol.worker.WorkerTag
    needs: Needs = Needs()
    registries: ClassVar[Mapping[str, Registry]] = {}
    prompting: Prompting | None = None
    loops: Loops | None = None
    audit: float = 0.0

    def prepare(self, task: GenerationTask) -> None:
        """Make a task's samples bring what this reward controller reads besides their texts."""

    def unstopped(self) -> BaseController | None:
        """Return a clone whose rule never ends a request early, for audits; None if there is no such rule."""
        return None

    def task_types(self) -> tuple[str, ...]:
        """Question types that the controller, or a sub-controller, has a plan for; a request may name one."""
        inner = (sub.task_types() for sub in sub_controllers(self) if isinstance(sub, BaseController))
        return next(filter(None, inner), ())

    def __init__(self) -> None:
        super().__init__()
        self.capabilities: dict[str, Capabilities] = {}  # of all the stack's workers by tag, once bound
        self._foreign_keys: dict[str, Any] = {}

    def clone(self) -> BaseController:
        """Copy for one request: attributes are shared, sub-controllers cloned, task collections copied."""
        twin = object.__new__(self.__class__)
        twin.__dict__ = self.__dict__.copy()
        for name, value in self.__dict__.items():
            if _is_controller(type(value)):
                twin.__dict__[name] = value.clone()
            elif type(value) is dict:
                if value and any(map(_is_controller, map(type, value.values()))):
                    twin.__dict__[name] = {key: _cloned(item) for key, item in value.items()}
            elif type(value) in (list, tuple) and value and any(map(_is_controller, map(type, value))):
                twin.__dict__[name] = type(value)(map(_cloned, value))
        twin.task_collections = copy.deepcopy(self.task_collections) if self.task_collections else {}
        return twin

    def needs_by_tag(self) -> dict[str, Needs]:
        """Return the needs of the controller and its sub-controllers, by the worker's tag name."""
        found: dict[str, list[Needs]] = defaultdict(list)
        for tag in self.needs.tags:
            found[tag_name(tag)].append(self.needs.of(tag))
        for sub in sub_controllers(self):
            for name, needs in sub.needs_by_tag().items() if isinstance(sub, BaseController) else ():
                found[name].append(needs)
        return {name: joined(all_needs) for name, all_needs in found.items()}

    def check_roles(self, workers: Mapping[Any, Any]) -> None:
        """Refuse a stack without the controllers' workers; only tags are read, so workers need not be built."""
        for tag in self.needs.tags:
            if worker_key(workers, tag) is None:
                raise ConfigError(
                    f"{type(self).__name__} needs a worker {tag.value!r}; the stack has: {tag_names(workers)}",
                    "workers",
                )
        for sub in sub_controllers(self):
            if isinstance(sub, BaseController):
                sub.check_roles(workers)

    def bind(self, workers: Mapping[Any, Worker]) -> None:
        """Set the capabilities of the workers of the controller and its sub-controllers; replaces an earlier `bind`.

        Our host binds its clone; under upstream's host call it once, before the host is built.

        Args:
            workers: Workers by tag; keys are members of any enum, or plain values: equal values are the same tag.

        Raises:
            ConfigError: A required worker is missing, cannot serve a task that has no substitute, or reports fewer
                log-probabilities per token than are read.
        """
        self.check_roles(workers)
        require.number("audit", self.audit, least=0, most=1)
        continues = self.needs.continues_answers or self.loops is not None
        for tag in self.needs.tags:
            worker: Any = worker_for(workers, tag)
            check_worker(worker, tag, self.needs._replace(continues_answers=continues), type(self).__name__)
        self.capabilities = {tag_name(key): Capabilities.of(worker) for key, worker in workers.items()}
        self._foreign_keys = {tag_name(key): key for key in workers if tag_name(key) not in workers}
        for sub in sub_controllers(self):
            if isinstance(sub, BaseController):
                sub.bind(workers)

    def worker(self, tag: WorkerTag) -> Capabilities:
        """Return the capabilities of a tag's worker; unbound, only plain generation is assumed."""
        return self.capabilities.get(tag.value, UNBOUND)

    def can_serve(self, tag: WorkerTag, task_type: type[Task]) -> bool:
        return task_type in self.worker(tag).tasks

    def budget_within_context(self, tag: WorkerTag, task: GenerationTask, budget: int, reserved: int) -> int:
        """Lower a budget to the room that the worker's context leaves after the prompt and reserved tokens.

        Args:
            task: Its `input_tokens` are the prompt; if they are None, or the context is unknown, the budget stays.
            reserved: Tokens that must also fit: a suffix and its answer.
        """
        context_len = self.worker(tag).context_len
        if context_len is None or task.input_tokens is None:
            return budget
        room = context_len - len(task.input_tokens) - reserved
        if room < 1:
            raise ConfigError(
                f"the prompt has {len(task.input_tokens)} tokens, and asking for the answer needs {reserved}; "
                f"the worker's context is {context_len}: shorten the prompt or raise the worker's max_seq_len"
            )
        if room < budget:
            record("fallback", what="budget", asked=budget, given=room, reason="the worker's context")
        return min(room, budget)

    def generate(
        self,
        prompt: str,
        *,
        history: Sequence[Turn] = (),
        raw: bool = False,
        streaming: bool = False,
        last_turn: Turn | None = None,
        **kwargs: Any,
    ) -> ControllerGenerator:
        """Run one request; under a host that opens no program, one is opened here."""
        how = history, raw, streaming, last_turn
        return (yield from in_program(functools.partial(self._generate, prompt, how, **kwargs)))

    def _generate(
        self, prompt: str, how: tuple[Sequence[Turn], bool, bool, Turn | None], program: Program, /, **kwargs: Any
    ) -> ControllerGenerator:
        history, raw, streaming, last_turn = how
        task = GenerationTask.create_from_prompt(prompt)
        task.streaming_output_flag = streaming
        program.loops = self.loops
        if self.audit and program.audit is None:
            record("fallback", what="audit", reason="this host ends with the answer")
        prompting = self.prompting
        if prompting is not None:
            if kwargs.keys() & {GUIDED_DECODING, "tool_choice"}:  # which leave no place for a box
                prompting = prompting.without_suffix()
            program.question = Question(prompt, history, raw, kwargs.get("tools"), last_turn, prompting)
            program.question.put(task)
            family, is_open, shown = prompting.family, None, task.input_str or ""
            if not raw:
                family, is_open = prompting.family_behind(shown), prompting.is_open(shown)
            program.question = program.question._replace(family=family, is_open=is_open)
        elif history:
            raise ConfigError(
                "holds earlier turns, and this stack has no prompting that renders them: set `prompt`, or send one "
                "turn",
                "history",
            )
        elif kwargs.get("tools"):
            raise ConfigError(
                "are given, and this stack has no prompting that shows them to the model: set `prompt`, or leave "
                "them out",
                "tools",
            )
        work = self.process([task], **kwargs)
        yield from _addressed(work, self._foreign_keys) if self._foreign_keys else work
        if task.output_str is None:
            raise NoOutputError(
                f"{type(self).__name__} ended without an output; its worker may have failed: read its log"
            )
        fields = task.customized_result_fields
        logprobs = getattr(task, "logprobs", None) or None
        ended = fields.get("answer"), fields.get("exit_reason")
        return Completion(task.output_str, task.output_tokens, *ended, program, logprobs)

    def process(self, tasks: list[Any], **kwargs: Any) -> ControllerGenerator:
        if len(tasks) == 1:
            yield from self.run(tasks[0], **kwargs)
        elif tasks:
            yield ParallelProcess([self.clone() for _ in tasks], [[task] for task in tasks], [kwargs for _ in tasks])

    def run(self, task: GenerationTask, **kwargs: Any) -> ControllerGenerator:
        """Do one task: yield work, then write the output into the task (see `finish`)."""
        raise TypeError(f"{type(self).__name__} must implement run() or process()")


def attributes_of(controller: Controller) -> BaseController:
    """Return the controller; for a foreign one, a controller with default attributes."""
    return controller if isinstance(controller, BaseController) else BaseController()


def sub_controllers(controller: Controller) -> Iterator[Controller]:
    for value in vars(controller).values():
        items = value.values() if type(value) is dict else value if type(value) in (list, tuple) else (value,)
        yield from (item for item in items if _is_controller(type(item)))


# Cached by type: an ABC's check is slow, and each clone checks each attribute.
_is_controller: Callable[[type], bool] = functools.lru_cache(4096)(lambda kind: issubclass(kind, Controller))


def _cloned(item: Any) -> Any:
    return item.clone() if _is_controller(type(item)) else item


def _addressed(work: Iterable[Any], keys: Mapping[str, Any]) -> ControllerGenerator:
    """Pass work through, and give each task the key under which upstream's host keeps its worker."""

    def address(tasks: Iterable[Task]) -> None:
        for task in tasks:
            task.worker_tag = keys.get(tag_name(task.worker_tag), task.worker_tag)

    return relay(work, before=address)


def finish(
    task: GenerationTask,
    text: str,
    token_ids: list[int] | None,
    answer: str | None = None,
    exit_reason: str | None = None,
) -> None:
    task.output_str, task.output_tokens = text, token_ids
    task.customized_result_fields["answer"] = answer
    task.customized_result_fields["exit_reason"] = exit_reason


def show(task: GenerationTask, text: str, token_ids: list[int] | None) -> None:
    """Send a text to a streaming caller. It must be final: no later decision may change it."""
    program = current_program()
    if task.streaming_output_flag and program is not None and program.caller.show is not None:
        program.caller.show(ScaffoldingOutput(text, token_ids))


def sampling_params_of(controller: Controller) -> Mapping[str, Any]:
    """Return a controller's sampling fields; upstream's controllers and ours use the same name."""
    return getattr(controller, "sampling_params", None) or {}


def side_by_side(branches: Sequence[ControllerGenerator]) -> ParallelProcess:
    process = ParallelProcess([], [], [])
    process.sub_gens = list(branches)
    return process


def honoured_by(controller: Controller) -> frozenset[str]:
    """Return the keywords that a request may give to a controller; a foreign controller has none."""
    return attributes_of(controller).needs.fields


def checked_task_type(controller: Controller, name: str) -> str:
    """Return the name of a type if a request may give it to the controller; else ConfigError."""
    known = attributes_of(controller).task_types() if "task_type" in honoured_by(controller) else ()
    if name in known:
        return name
    if not known:
        raise ConfigError(
            f"is {name!r}, and {type(controller).__name__} has no plan for types: leave it out", "task_type"
        )
    raise ConfigError(f"is {name!r}; the plan has the types {', '.join(known)}: give one, or leave it out", "task_type")
