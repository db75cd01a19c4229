"""One request's identity, seeds, token ledger and decision trace: its *program*, carried in a context variable.

The host opens a program for each request; under a host that knows none, `BaseController.generate` opens it. Whoever
runs on behalf of the request (controllers, workers, schedulers) finds it with `current_program()`.
"""

from __future__ import annotations

import contextvars
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scaffolding_ext.protocol import ControllerGenerator, ScaffoldingOutput, Task, current_scope
from scaffolding_ext.protocol.notes import Purpose, TokenCounts, notes_of
from scaffolding_ext.protocol.relay import Visit
from scaffolding_ext.request.figures import Figure, added
from scaffolding_ext.request.ledger import Asked as AskedTasks
from scaffolding_ext.request.ledger import Ledger, Meter, Parts
from scaffolding_ext.request.progress import Progress, Steps
from scaffolding_ext.request.seeds import derive_seed

if TYPE_CHECKING:
    from scaffolding_ext.controllers.chain.repetition import Loops
    from scaffolding_ext.prompts.prompting import Prompting

_program: contextvars.ContextVar[Program | None] = contextvars.ContextVar("program", default=None)
_parts: contextvars.ContextVar[Parts] = contextvars.ContextVar("parts", default=((), ()))
_program_ids = itertools.count()


def current_program() -> Program | None:
    """The program on whose behalf the calling code runs, or None outside any."""
    return _program.get()


def enter_program(program: Program) -> contextvars.Token[Program | None]:
    """Make the program the current one of the calling context; for hosts."""
    return _program.set(program)


def leave_program() -> None:
    """Leave the calling context without a program; for hosts."""
    _program.set(None)


class Asked(NamedTuple):
    """What the user asked.

    Attributes:
        prompt: The user's last words.
        history: The turns before them, each with its `role` and its `content`.
        raw: Whether the prompt went to the model as it is, without template and suffix.
        tools: Tools that the model was told of.
        last_turn: What the last turn had beside its content, where it was not the user's.
    """

    prompt: str = ""
    history: Sequence[Mapping[str, str]] = ()
    raw: bool = False
    tools: Sequence[Mapping[str, Any]] | None = None
    last_turn: Mapping[str, Any] | None = None


class Program:
    """One request's identity, seeds, ledger and trace.

    Args:
        seed: Seed of the run. None draws no seeds: each worker uses its own randomness.
        sample_id: Names the sample within the run; seeds depend on it.
        epoch: Repetition of the sample; seeds depend on it.
        clock: Seconds from any origin, monotonic; for the trace.

    Attributes:
        id: Unique within the process, whatever the sample is called.
        sample_id: As given.
        epoch: As given.
        ledger: The tokens, by purpose.
        prompting: The `Prompting` that was applied to the request's prompt, or None.
        asked: What it was applied to.
        at_end: Called when the request has ended, well or not, under a host that ends no scopes.
        began: When it began, which under our host is when it was submitted, by its clock.
        cache_salt: Keeps the KV of its requests apart from programs with another salt; None where all share.
        deadline: When the caller wants it to have ended, by that clock; None where nobody said.
        order: Its place among the programs that wait, by its progress: the lower, the sooner; None where none is kept.
        loops: Ends chains that repeat themselves; None where nobody watches for them.
        show: Hands the caller a part of the output, as long as the request runs; None under a host without streams.
    """

    __slots__ = (
        "_clock",
        "_figures",
        "_meter",
        "_num_draws",
        "_steps",
        "_steps_of",
        "_trace",
        "asked",
        "at_end",
        "began",
        "cache_salt",
        "deadline",
        "epoch",
        "id",
        "ledger",
        "loops",
        "order",
        "prompting",
        "sample_id",
        "seed",
        "show",
    )

    def __init__(
        self,
        seed: int | None = None,
        sample_id: str | None = None,
        epoch: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.id = f"program-{next(_program_ids)}"
        self.sample_id = sample_id
        self.epoch = epoch
        self.seed = None if seed is None else derive_seed(seed, sample_id, epoch)
        self.ledger = Ledger()
        self.at_end: list[Callable[[], object]] = []
        self.show: Callable[[ScaffoldingOutput], object] | None = None
        self.cache_salt: str | None = None
        self.loops: Loops | None = None
        self.deadline: float | None = None
        self.order: Callable[[Progress], float] | None = None
        self._trace: list[dict[str, Any]] | None = None
        self._figures: dict[str, dict[str, Any]] | None = None
        self.prompting: Prompting | None = None
        self.asked = Asked()
        self._clock = clock
        self.began = clock()
        self._num_draws: dict[tuple[int, ...], int] = {}
        self._steps = Steps()
        self._steps_of: tuple[int, ...] | None = None  # the branch whose controller told them
        self._meter = Meter(self.ledger, clock, self.began, _parts.get)

    @property
    def number(self) -> int:
        """Its place among the programs of the process: the lower, the older."""
        return int(self.id.rpartition("-")[2])

    @property
    def progress(self) -> Progress:
        """How far it is, by the ledger and by what its controller published."""
        return Progress(self.number, self.began, self.deadline, self.ledger.num_decoded, self._steps)

    @property
    def priority(self) -> float:
        """Its place among the waiting programs: the lowest is served first; 0 without a policy."""
        return 0.0 if self.order is None else self.order(self.progress)

    def publish(self, steps: Steps) -> None:
        """For controllers: say how far the request is. Of nested controllers the outermost is heard."""
        path = _branch_path()
        if self._steps_of is None or path == self._steps_of[: len(path)]:
            self._steps, self._steps_of = steps, path

    @property
    def trace(self) -> list[dict[str, Any]]:
        """The decisions in order, each a JSON-serialisable dict with `event`, `branch` and `seconds`."""
        if self._trace is None:
            self._trace = []
        return self._trace

    @property
    def figures(self) -> dict[str, dict[str, Any]]:
        """What controllers published of the request: figure by name, by section; see `request.figures`."""
        return self._figures or {}

    @property
    def seconds(self) -> dict[str, float]:
        """How long the request waited for the tasks of each purpose, and when its first token came; see `Meter`."""
        return self._meter.seconds

    @property
    def has_trace(self) -> bool:
        """Whether anything was decided."""
        return self._trace is not None

    def next_seed(self) -> int | None:
        """The next seed for the branch that asks, or None where the program has no seed.

        It depends on the program's seed, the branch path and how many seeds this branch drew before, not on other
        branches.
        """
        if self.seed is None:
            return None
        path = _branch_path()
        draw = self._num_draws.get(path, 0)
        self._num_draws[path] = draw + 1
        return derive_seed(self.seed, path, draw)

    def generator(self) -> np.random.Generator:
        """A numpy generator from the branch's next seed (from fresh entropy where the program has no seed)."""
        return np.random.default_rng(self.next_seed())

    def elapsed(self) -> float:
        """Seconds since the program began, as the trace's `seconds`."""
        return round(self._clock() - self.began, 6)

    def record(self, event: str, **figures: Any) -> None:
        """Append a decision to the trace with the figures it was taken on (JSON-serialisable values)."""
        self.trace.append({"event": event, "branch": list(_branch_path()), "seconds": self.elapsed(), **figures})

    def keep_steps(self) -> AskedTasks:
        """For hosts, before the request runs: what is asked for will be kept in this list, step by step."""
        steps: AskedTasks = []
        self._meter.steps = steps
        return steps

    def publish_figures(self, section: str, **figures: Figure) -> None:
        """Add figures of the request to a section of an evaluation; see the function of this name."""
        if self._figures is None:
            self._figures = {}
        known = self._figures.setdefault(section, {})
        for name, value in figures.items():
            known[name] = added(known.get(name), value, name)

    def meter(self, generator: Iterable[Any]) -> ControllerGenerator:
        """Pass a controller's work through, counting in the ledger what its tasks cost, branches included.

        Returns:
            A generator with the same yields and the same return value.
        """
        return self._meter.watch(generator)

    def close(self) -> None:
        """For hosts: the request has ended; what only a running one needs is freed."""
        self._meter.close()
        self._num_draws.clear()
        self.show = None
        for call in self.at_end:
            call()
        self.at_end.clear()


def _branch_path() -> tuple[int, ...]:
    scope = current_scope.get()
    return () if scope is None else tuple(scope.branch_path)


def record(event: str, **figures: Any) -> None:
    """Append a decision to the current program's trace; outside any program it is dropped."""
    program = _program.get()
    if program is not None:
        program.record(event, **figures)


def publish_figures(section: str, **figures: Figure) -> None:
    """Publish what a controller did in this request: its section in `eval`, in reports and in `summary.json`.

    Published several times in a request (by the samples of a vote, say), figures add up. Outside any program they are
    dropped.

    Args:
        section: Whose figures they are; the name of the controller's class, as a rule.
        **figures: A number (shown as its mean over requests), a `Share` (the quotient of both sums), counts by name (a
            line each), or the `Answers` of a vote's own samples (shown as best@n, maj@n and mean@n).

    Raises:
        TypeError: A figure changes its kind.
        ArgumentTypeError: A figure is nothing of these.
        ConfigError: A number is not finite.
    """
    program = _program.get()
    if program is not None:
        program.publish_figures(section, **figures)


def publish(steps: Steps) -> None:
    """Say how far the current program is; see `Program.publish`. Outside any program it is dropped."""
    program = _program.get()
    if program is not None:
        program.publish(steps)


def priority_of(task: Task) -> float:
    """For workers: the task's place in the waiting line; the controller's choice overrules the program's."""
    own, program = notes_of(task).priority, _program.get()
    return program.priority if program is not None and not own else own


def cache_salt_of(task: Task) -> str | None:
    """For workers: who may share the task's KV: `cache_salt` in its `custom_input_params`, else its program's."""
    own, program = (getattr(task, "custom_input_params", None) or {}).get("cache_salt"), _program.get()
    return program.cache_salt if program is not None and own is None else own


def elapsed() -> float:
    """Seconds since the current program began; 0 outside any."""
    program = _program.get()
    return 0.0 if program is None else program.elapsed()


def next_seed() -> int | None:
    """The current program's next seed for this branch; None outside any program or where it has no seed."""
    program = _program.get()
    return None if program is None else program.next_seed()


def enter_part(ledger: Ledger, look: Visit | None = None) -> None:
    """Begin a part of the request, which is the calling branch of a `ParallelProcess` with all branches within it.

    Args:
        ledger: The program's meter counts in it, too, what the part costs.
        look: Gets each step of the part on its way to the host, before the parts around this one get it.
    """
    ledgers, looks = _parts.get()
    _parts.set(((*ledgers, ledger), looks if look is None else (look, *looks)))


def count(purpose: Purpose, counts: TokenCounts) -> None:
    """For workers: count tokens that were computed for the current program, but for none of its tasks."""
    program = _program.get()
    if program is not None and any(counts):
        program.ledger.add(purpose, *counts)
        for ledger in _parts.get()[0]:
            ledger.add(purpose, *counts)


def discard(purpose: Purpose, num_tokens: int, to: Purpose = Purpose.DISCARDED) -> None:
    """Move tokens generated for `purpose` to `discarded`, in the current program's ledger and those of its parts.

    Args:
        purpose: What they were counted under.
        num_tokens: How many.
        to: `rejected`, where a rule turned them down.

    Raises:
        ValueError: Fewer tokens were counted for that purpose.
    """
    program = _program.get()
    if program is not None:
        program.ledger.discard(purpose, num_tokens, to)
        for ledger in _parts.get()[0]:
            ledger.discard(purpose, num_tokens, to)
