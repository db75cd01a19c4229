"""One request: everything that is known of it, from its submission on, and the functions that know the current one.

`current_program()` is the request on whose behalf the calling code runs, under either host."""

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
from scaffolding_ext.protocol.meta import Purpose, TokenCounts, meta_of
from scaffolding_ext.request.figures import FIGURES, Figure, PublishedFigures
from scaffolding_ext.request.ledger import Ledger, Meter, current_parts
from scaffolding_ext.request.seeds import BranchSeeds, branch_path, derive_seed

if TYPE_CHECKING:
    from scaffolding_ext.controllers.repetition import Loops
    from scaffolding_ext.prompts.prompting import TextPrompting
    from scaffolding_ext.protocol import GenerationTask, ScaffoldingOutput
    from scaffolding_ext.request.audit import Audit


class StepCounts(NamedTuple):
    """The steps of a program, such as the samples of a vote or the probes of a chain.

    Attributes:
        kind: Programs of one kind have like steps, so their costs can be averaged.
        num_left: Steps that may still come, running ones included (the paper's remaining knob).
        certaindex: How settled the answer is, in [0, 1]; a program that is certain stops.
    """

    kind: str = ""
    num_done: int = 0
    num_left: int = 1
    certaindex: float = 0.0


class Progress(NamedTuple):
    """A program at one moment; `arrived` and `deadline` are seconds of a monotonic clock."""

    number: int
    arrived: float
    deadline: float | None = None
    num_tokens: int = 0
    steps: StepCounts = StepCounts()


_numbers = itertools.count()
DEADLINE = "deadline"  # exit reason of what the request's deadline has ended
LAST_STEP = 0.05  # share of the time until a deadline that ending a request may take
_NOTHING_SAID = StepCounts()
_program: contextvars.ContextVar[Program | None] = contextvars.ContextVar("program", default=None)


class Identity:
    """Tells one request from all others; the lower its number, the older the request."""

    __slots__ = ("epoch", "id", "number", "sample_id")

    def __init__(self, sample_id: str | None = None, epoch: int = 0) -> None:
        self.number = next(_numbers)
        self.id = f"program-{self.number}"
        self.sample_id = sample_id
        self.epoch = epoch


class Caller:
    """Who waits for a request's answer.

    Attributes:
        cache_salt: Requests share KV only with requests of the same salt; None where all share.
        keeps_samples: Whether the caller wants the samples of a vote beside its answer.
    """

    __slots__ = ("cache_salt", "keeps_samples", "name", "show")

    def __init__(self) -> None:
        self.name: str | None = None
        self.cache_salt: str | None = None
        self.keeps_samples = False
        self.show: Callable[[ScaffoldingOutput], object] | None = None


class Lifetime:
    """The time from a request's submission to its end.

    Attributes:
        clock: Seconds from any origin, monotonic.
        began: When the request was submitted, by the clock; under a foreign host, when its controller began.
        deadline: When its caller wants the answer, by the clock; None if nobody said. A late request goes on.
        answer_by: The same, for controllers, which answer by then with the best that they have; a time-out is none.
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
        """Seconds until controllers are to answer, which leaves a share for the last step; None without a deadline."""
        if self.answer_by is None:
            return None
        return self.answer_by - LAST_STEP * (self.answer_by - self.began) - self.clock()

    def without_deadline(self) -> Lifetime:
        """The same time with nobody who waits; it ends with this one."""
        other = copy.copy(self)
        other.deadline, other.answer_by, other._at_end = None, None, ()
        self.at_end(other.end)
        return other

    def elapsed(self) -> float:
        """Seconds since the request began, to the microsecond."""
        return round(self.clock() - self.began, 6)

    def at_end(self, call: Callable[[], object]) -> None:
        self._at_end += (call,)

    def end(self) -> None:
        """For hosts: the request has ended. Each function is called once, in order."""
        calls, self._at_end = self._at_end, ()
        with contextlib.ExitStack() as stack:  # which calls them all, whichever of them fails
            for call in reversed(calls):
                stack.callback(call)


class Question(NamedTuple):
    """What the user asked.

    Attributes:
        history: The turns before them, each with its `role` and its `content`.
        raw: Whether the prompt goes to the model as it is, without template and suffix.
        last_turn: The fields of the last turn beside its content, if it is not the user's.
        prompting: Renders the question for the model; None if the stack has no prompting. Then no field is set.
    """

    prompt: str = ""
    history: Sequence[Mapping[str, str]] = ()
    raw: bool = False
    tools: Sequence[Mapping[str, Any]] | None = None
    last_turn: Mapping[str, Any] | None = None
    prompting: TextPrompting | None = None

    def put(self, task: GenerationTask, words: str | None = None) -> None:
        """Write the rendered question into a task; `words` replace the user's last. ConfigError if it cannot be."""
        assert self.prompting is not None, "without a prompting nothing renders the question"
        task.input_str = self.prompt if words is None else words
        if self.last_turn is None and self.tools is None:
            self.prompting.apply(task, self.history, self.raw)
        else:
            self.prompting.apply(task, self.history, self.raw, tools=self.tools, last_turn=self.last_turn)


NO_QUESTION = Question()


class QueuePlace:
    """A request's place in the waiting line; `observe` reads from its trace how far it is.

    Attributes:
        order: The policy: the lower its number, the sooner the request is served. None if no policy orders requests.
    """

    __slots__ = ("_ledger", "_lifetime", "_number", "_said_by", "_steps", "order")

    def __init__(self, number: int, lifetime: Lifetime, ledger: Ledger) -> None:
        self.order: Callable[[Progress], float] | None = None
        self._number = number
        self._lifetime = lifetime
        self._ledger = ledger
        self._steps = _NOTHING_SAID
        self._said_by: list[int] | None = None  # the branch of the controller that told the steps

    @property
    def progress(self) -> Progress:
        """How far the request is, by its ledger and by what its controller published."""
        lifetime = self._lifetime
        return Progress(self._number, lifetime.began, lifetime.deadline, self._ledger.num_decoded, self._steps)

    @property
    def priority(self) -> float:
        return 0.0 if self.order is None else self.order(self.progress)

    def observe(self, decision: Mapping[str, Any]) -> None:
        """Take the steps of a decision that tells its `left` ones; of nested controllers the outermost counts."""
        if "left" not in decision:
            return
        path = decision["branch"]
        if self._said_by is None or path == self._said_by[: len(path)]:
            kind = decision.get("controller", self._steps.kind)
            self._steps = StepCounts(kind, decision.get("done", 0), decision["left"], decision.get("certaindex", 0.0))
            self._said_by = path


class Trace(list[dict[str, Any]]):
    """A request's decisions in order, each a JSON-serialisable dict with `event`, `branch`, `seconds` and its figures.

    A copy is a plain list. Each of the `observers` is called with each decision: progress, figures and spans are
    reduced from the trace.
    """

    __slots__ = ("_lifetime", "observers")

    def __init__(self, lifetime: Lifetime, *observers: Callable[[Mapping[str, Any]], object]) -> None:
        self._lifetime = lifetime
        self.observers = list(observers)

    def record(self, event: str, **figures: Any) -> None:
        decision = {"event": event, "branch": list(branch_path()), "seconds": self._lifetime.elapsed(), **figures}
        self.append(decision)
        for observe in self.observers:
            observe(decision)

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """The trace without figures, which are kept and shown as sums."""
        return [event for event in self if event["event"] != FIGURES]

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[dict[str, Any]]]]:
        return list, (list(self),)


class Program:
    """Everything that is known of one request, from its submission on.

    Args:
        seed: Seed of the run; the request's seed derives from it, the sample id and the epoch. None draws no seeds.

    Attributes:
        loops: Ends chains that repeat themselves; None if nobody watches for them.
        meter: Counts in the ledger what its tasks cost, and how long they took.
        audit: What goes on behind its answer; None under a host that ends with the answer.
        audit_share: Share of the stack's requests that are audited.
    """

    __slots__ = (
        "audit",
        "audit_share",
        "caller",
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
        self.meter = Meter(self.ledger, clock, self.lifetime.began, current_parts)
        self.figures = PublishedFigures()
        self.trace = Trace(self.lifetime, self.place.observe, self.figures.observe)
        self.audit: Audit | None = None
        self.audit_share = 0.0

    def behind_the_answer(self) -> Program:
        """For hosts: the same request for its audit: without a deadline, and with a ledger and a trace of its own."""
        other = copy.copy(self)
        other.lifetime = lifetime = self.lifetime.without_deadline()
        other.ledger = Ledger()
        other.place = QueuePlace(self.identity.number, lifetime, other.ledger)
        other.place.order = self.place.order
        other.meter = Meter(other.ledger, lifetime.clock, lifetime.began, current_parts)
        other.trace = Trace(lifetime)
        return other

    def close(self) -> None:
        """For hosts: the request has ended; what only a running one needs is freed."""
        self.meter.close()
        self.seeds.clear()
        self.caller.show = None
        self.lifetime.end()


def current_program() -> Program | None:
    """The program on whose behalf the calling code runs, or None outside any."""
    return _program.get()


def enter_program(program: Program) -> contextvars.Token[Program | None]:
    return _program.set(program)


def leave_program() -> None:
    _program.set(None)


def record(event: str, **figures: Any) -> None:
    """Append a decision to the current program's trace; outside any program it is dropped."""
    program = _program.get()
    if program is not None:
        program.trace.record(event, **figures)


def publish_figures(section: str, **figures: Figure) -> None:
    """Record what a controller did as its section in `eval`, in reports and in `summary.json`; see `figures.added`.

    Figures that are recorded several times in a request add up. Outside any program they are dropped.

    Args:
        section: The name of the controller's class, as a rule.
        **figures: A number (shown as its mean over requests), a `Ratio` (the quotient of both sums), counts by name (a
            line each), or the `Answers` of a vote's own samples (shown as best@n, maj@n and mean@n).
    """
    record(FIGURES, section=section, figures=figures)


def priority_of(task: Task) -> float:
    """For workers: the task's priority, as its controller says, or else as the program's policy does."""
    own, program = meta_of(task).priority, _program.get()
    return program.place.priority if program is not None and not own else own


def cache_salt_of(task: Task) -> str | None:
    """For workers: who may share the task's KV: `cache_salt` in its `custom_input_params`, else its caller's."""
    own, program = (getattr(task, "custom_input_params", None) or {}).get("cache_salt"), _program.get()
    return program.caller.cache_salt if program is not None and own is None else own


def elapsed() -> float:
    program = _program.get()
    return 0.0 if program is None else program.lifetime.elapsed()


def seconds_left() -> float | None:
    """`Lifetime.left` of the current program; None outside any."""
    program = _program.get()
    return None if program is None else program.lifetime.left


def next_seed() -> int | None:
    """The current program's next seed for this branch; None outside any program or where it has no seed."""
    program = _program.get()
    return None if program is None else program.seeds.next()


def count(purpose: Purpose, counts: TokenCounts) -> None:
    """For workers: count tokens that were computed for the current program, but for none of its tasks."""
    program = _program.get()
    if program is not None and any(counts):
        program.ledger.add(purpose, *counts)
        for ledger in current_parts()[0]:
            ledger.add(purpose, *counts)


def discard(purpose: Purpose, num_tokens: int, to: Purpose = Purpose.DISCARDED) -> None:
    """Move decoded tokens, in the program's ledger and those of its parts; ValueError if `purpose` has fewer."""
    program = _program.get()
    if program is not None:
        program.ledger.discard(purpose, num_tokens, to)
        for ledger in current_parts()[0]:
            ledger.discard(purpose, num_tokens, to)


def in_program(process: Callable[[Program], ControllerGenerator]) -> ControllerGenerator:
    """Run one request in the current program; a host of TensorRT-LLM opens none, so one is opened and metered here."""
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
        if current_program() is opened.program:  # a generator that is freed late may end in another's context
            leave_program()


class _Opened:
    """A program that `in_program` opened.

    The host may start a request in the context of an earlier one, where the old program is still set.
    """

    def __init__(self) -> None:
        self.program = Program()
        self.has_returned = False
        self._scope = current_scope.get()
        task = _running_task()
        self._task = None if task is None else weakref.ref(task)

    def close_at_end(self) -> None:
        """Close the program when its request's task is done; a host without scopes says it to nobody."""
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
