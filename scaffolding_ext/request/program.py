"""State of one request from its submission on, and functions on the current one.

`current_program()` is the request on whose behalf the calling code runs, under either host.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import itertools
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from scaffolding_ext.protocol import ControllerGenerator, Task, current_scope
from scaffolding_ext.protocol.meta import Purpose, TokenCounts, ToolCall, meta_of
from scaffolding_ext.request.figures import FIGURES, Figure, PublishedFigures
from scaffolding_ext.request.ledger import Ledger, Meter
from scaffolding_ext.request.parts import current_parts
from scaffolding_ext.request.seeds import BranchSeeds, derive_seed
from scaffolding_ext.request.trace import Trace

if TYPE_CHECKING:
    from scaffolding_ext.controllers.repetition import Loops
    from scaffolding_ext.prompts.families import PromptFamily
    from scaffolding_ext.prompts.prompting import Prompting
    from scaffolding_ext.protocol import GenerationTask, ScaffoldingOutput
    from scaffolding_ext.request.audit import Audit


class StepCounts(NamedTuple):
    """Steps of a program, such as the samples of a vote or the probes of a chain.

    Attributes:
        kind: Programs of one kind have similar steps, so their costs can be averaged.
        num_left: Steps that may still come, running ones included (the paper's remaining knob).
        certaindex: Certainty of the answer, in [0, 1]; a certain program stops.
    """

    kind: str = ""
    num_done: int = 0
    num_left: int = 1
    certaindex: float = 0.0


class Progress(NamedTuple):
    """A program at one moment; `arrived` and `deadline` are seconds of a monotonic clock.

    Attributes:
        num_cached: Prompt tokens of the waiting task whose KV the engine has; 0 if it does not say.
    """

    number: int
    arrived: float
    deadline: float | None = None
    num_tokens: int = 0
    steps: StepCounts = StepCounts()
    num_cached: int = 0


_numbers = itertools.count()
DEADLINE = "deadline"  # exit reason of work that the request's deadline ended
LAST_STEP = 0.05  # share of the time until a deadline reserved for ending a request
_NO_STEPS = StepCounts()
_program: contextvars.ContextVar[Program | None] = contextvars.ContextVar("program", default=None)


class Identity:
    __slots__ = ("epoch", "id", "number", "sample_id")

    def __init__(self, sample_id: str | None = None, epoch: int = 0) -> None:
        self.number = next(_numbers)
        self.id = f"program-{self.number}"
        self.sample_id = sample_id
        self.epoch = epoch


class Caller:
    """The recipient of a request's answer.

    Attributes:
        keeps_samples: True if the caller wants the samples of a vote beside its answer.
    """

    __slots__ = ("keeps_samples", "show")

    def __init__(self) -> None:
        self.keeps_samples = False
        self.show: Callable[[ScaffoldingOutput], object] | None = None


class Lifetime:
    """The time from a request's submission to its end.

    Attributes:
        clock: Seconds from any origin, monotonic.
        began: Time of submission; under a foreign host, the controller's start.
        deadline: Time at which the caller wants the answer; None if there is none. A late request continues.
        answer_by: Deadline for controllers, which then give the best answer so far; unlike `deadline` never a time-out.
    """

    __slots__ = ("_at_end", "answer_by", "began", "clock", "deadline")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.began = clock()
        self.deadline: float | None = None
        self.answer_by: float | None = None
        self._at_end: tuple[Callable[[], object], ...] = ()

    @property
    def left(self) -> float | None:
        """Seconds until controllers must answer, less a share for the last step; None without a deadline."""
        if self.answer_by is None:
            return None
        return self.answer_by - LAST_STEP * (self.answer_by - self.began) - self.clock()

    def without_deadline(self) -> Lifetime:
        """Return the same lifetime without deadlines; it ends with this one."""
        other = copy.copy(self)
        other.deadline, other.answer_by, other._at_end = None, None, ()
        self.at_end(other.end)
        return other

    def elapsed(self) -> float:
        return round(self.clock() - self.began, 6)

    def at_end(self, call: Callable[[], object]) -> None:
        self._at_end += (call,)

    def end(self) -> None:
        """For hosts: end the request and call each function once, in order."""
        calls, self._at_end = self._at_end, ()
        with contextlib.ExitStack() as stack:  # calls all of them even if some fail
            for call in reversed(calls):
                stack.callback(call)


class Question(NamedTuple):
    """The user's question.

    Attributes:
        history: The earlier turns, each with its `role` and `content`.
        raw: Send the prompt to the model unchanged, without template and suffix.
        last_turn: Fields of the last turn beside its content, if it is not the user's.
        prompting: Renders the question for the model; None, with all fields unset, if the stack has no prompting.
        family: The family behind the rendered question; None without a prompting.
        is_open: True if the rendered question ends in open thinking; None if that is not known.
    """

    prompt: str = ""
    history: Sequence[Mapping[str, str]] = ()
    raw: bool = False
    tools: Sequence[Mapping[str, Any]] | None = None
    last_turn: Mapping[str, Any] | None = None
    prompting: Prompting | None = None
    family: PromptFamily | None = None
    is_open: bool | None = None

    def put(self, task: GenerationTask, words: str | None = None) -> None:
        """Write the rendered question into a task; `words` replace the user's last. ConfigError if that fails."""
        assert self.prompting is not None, "without a prompting nothing renders the question"
        task.input_str = self.prompt if words is None else words
        if self.last_turn is None and self.tools is None:
            self.prompting.apply(task, self.history, self.raw)
        else:
            self.prompting.apply(task, self.history, self.raw, tools=self.tools, last_turn=self.last_turn)


NO_QUESTION = Question()


class QueuePlace:
    """A request's place in the queue; `observe` reads its progress from its trace.

    Attributes:
        order: The policy: requests with lower numbers are served first. None if no policy orders requests.
    """

    __slots__ = ("_ledger", "_lifetime", "_number", "_reported_by", "_steps", "order")

    def __init__(self, number: int, lifetime: Lifetime, ledger: Ledger) -> None:
        self.order: Callable[[Progress], float] | None = None
        self._number = number
        self._lifetime = lifetime
        self._ledger = ledger
        self._steps = _NO_STEPS
        self._reported_by: list[int] | None = None  # branch of the controller that reported the steps

    @property
    def progress(self) -> Progress:
        lifetime = self._lifetime
        return Progress(self._number, lifetime.began, lifetime.deadline, self._ledger.num_decoded, self._steps)

    @property
    def priority(self) -> float:
        return 0.0 if self.order is None else self.order(self.progress)

    def observe(self, decision: Mapping[str, Any]) -> None:
        """Take the steps of a decision that reports `left`; of nested controllers the outermost counts."""
        if "left" not in decision:
            return
        path = decision["branch"]
        if self._reported_by is None or path == self._reported_by[: len(path)]:
            kind = decision.get("controller", self._steps.kind)
            self._steps = StepCounts(kind, decision.get("done", 0), decision["left"], decision.get("certaindex", 0.0))
            self._reported_by = path


class Program:
    """State of one request.

    Args:
        seed: Seed of the run; the request's seed derives from it, the sample id and the epoch. None draws no seeds.

    Attributes:
        loops: Ends chains that repeat themselves; None if they are not watched.
        audit: The request's audit; None under a host that ends with the answer.
        can_roll: True if the host serves `RollingBranches`.
        calls: Tool calls of its answers, as they were made, by their canonical JSON.
    """

    __slots__ = (
        "audit",
        "caller",
        "calls",
        "can_roll",
        "figures",
        "identity",
        "ledger",
        "lifetime",
        "loops",
        "meter",
        "place",
        "question",
        "seeds",
        "trace",
    )

    def __init__(
        self,
        seed: int | None = None,
        sample_id: str | None = None,
        epoch: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = Identity(sample_id, epoch)
        self.question = NO_QUESTION
        self.caller = Caller()
        self.lifetime = Lifetime(clock)
        self.seeds = BranchSeeds(None if seed is None else derive_seed(seed, sample_id, epoch))
        self.loops: Loops | None = None
        self.ledger = Ledger()
        self.place = QueuePlace(self.identity.number, self.lifetime, self.ledger)
        self.meter = Meter(self.ledger, clock, current_parts)
        self.figures = PublishedFigures()
        self.trace = Trace(self.lifetime.elapsed, self.place.observe, self.figures.observe)
        self.audit: Audit | None = None
        self.can_roll = False
        self.calls: dict[str, Sequence[ToolCall]] = {}

    def twin(self) -> Program:
        """For hosts: return the same request for its audit: the same seeds, no deadline, a fresh ledger and trace."""
        other = copy.copy(self)
        other.seeds = BranchSeeds(self.seeds.seed)
        other.lifetime = lifetime = self.lifetime.without_deadline()
        other.ledger = Ledger()
        other.place = QueuePlace(self.identity.number, lifetime, other.ledger)
        other.place.order = self.place.order
        other.meter = Meter(other.ledger, lifetime.clock, current_parts)
        other.trace = Trace(lifetime.elapsed)
        return other

    def close(self) -> None:
        """For hosts: end the request and free what only a running one needs."""
        self.meter.close()
        self.seeds.clear()
        self.caller.show = None
        self.lifetime.end()


def current_program() -> Program | None:
    return _program.get()


def enter_program(program: Program) -> contextvars.Token[Program | None]:
    return _program.set(program)


def leave_program() -> None:
    _program.set(None)


def record(event: str, **figures: Any) -> None:
    """Append a decision to the current program's trace; dropped outside any program."""
    program = _program.get()
    if program is not None:
        program.trace.record(event, **figures)


def publish_figures(section: str, **figures: Figure) -> None:
    """Record a controller's figures as its section in `eval`, in reports and in `summary.json`; see `figures.added`.

    Figures recorded several times in a request add up. Outside any program they are dropped.

    Args:
        section: Usually the name of the controller's class.
        **figures: A number (shown as its mean over requests), a `Ratio` (the quotient of both sums), counts by name (a
            line each), or the `Answers` of a vote's samples (shown as best@n, maj@n and mean@n).
    """
    record(FIGURES, section=section, figures=figures)


def priority_of(task: Task, num_cached: Callable[[], int] | None = None) -> float:
    """For workers: return the task's priority, set by its controller or else by the program's policy.

    Args:
        num_cached: Counts the tokens of the task's prompt whose KV the worker has.
    """
    own, program = meta_of(task).priority, _program.get()
    if program is None or own or program.place.order is None:
        return own
    return program.place.order(program.place.progress._replace(num_cached=num_cached() if num_cached else 0))


def cache_salt_of(task: Task) -> str | None:
    """For workers: return the salt that limits KV sharing: `cache_salt` in `custom_input_params`."""
    salt: str | None = (getattr(task, "custom_input_params", None) or {}).get("cache_salt")
    return salt


def elapsed() -> float:
    program = _program.get()
    return 0.0 if program is None else program.lifetime.elapsed()


def seconds_left() -> float | None:
    program = _program.get()
    return None if program is None else program.lifetime.left


def next_seed() -> int | None:
    """Draw the current program's next seed for this branch; None without a program or a seed."""
    program = _program.get()
    return None if program is None else program.seeds.next()


def count(purpose: Purpose, counts: TokenCounts) -> None:
    """For workers: count tokens computed for the current program but for none of its tasks."""
    program = _program.get()
    if program is not None and any(counts):
        program.ledger.add(purpose, *counts)
        for part in current_parts():
            part.ledger.add(purpose, *counts)


def discard(purpose: Purpose, num_tokens: int, to: Purpose = Purpose.DISCARDED) -> None:
    """Move decoded tokens in the ledgers of the program and its parts; ValueError if `purpose` has fewer."""
    program = _program.get()
    if program is not None:
        program.ledger.discard(purpose, num_tokens, to)
        for part in current_parts():
            part.ledger.discard(purpose, num_tokens, to)


def in_program(process: Callable[[Program], ControllerGenerator]) -> ControllerGenerator:
    """Run one request in the current program; TensorRT-LLM's host opens none, so one is opened and metered here."""
    program = current_program()
    opened = _opened.get()
    if program is not None and (opened is None or opened.program is not program or not opened.is_over()):
        return (yield from process(program))
    opened = _Opened()
    _opened.set(opened)
    opened.close_at_end()
    enter_program(opened.program)
    try:
        return (yield from opened.program.meter.watch(process(opened.program)))
    finally:
        opened.has_returned = True
        if current_program() is opened.program:  # a generator freed late may end in another context
            leave_program()


class _Opened:
    """A program that `in_program` opened.

    The host may start a request in the context of an earlier one, in which the old program is still set.
    """

    def __init__(self) -> None:
        self.program = Program()
        self.has_returned = False
        self._scope = current_scope.get()
        task = _running_task()
        self._task = None if task is None else weakref.ref(task)

    def close_at_end(self) -> None:
        """Close the program when its request's task is done, because a host without scopes reports no end."""
        task = None if self._task is None else self._task()
        if self._scope is None and task is not None:
            task.add_done_callback(lambda _: self.program.close())

    def is_over(self) -> bool:
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
