"""A request as one object, its *program*, which everyone who works for the request finds in a context variable.

The host opens a program for each request; under a host that knows none, `BaseController.generate` opens it.
Controllers, workers and schedulers find it with `current_program()`. The functions of this module act on it;
outside any program they do nothing.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scaffolding_ext.protocol import Task
from scaffolding_ext.protocol.notes import Purpose, TokenCounts, notes_of
from scaffolding_ext.request.caller import Caller
from scaffolding_ext.request.figures import Figure, PublishedFigures
from scaffolding_ext.request.identity import Identity
from scaffolding_ext.request.ledger import Ledger, Meter
from scaffolding_ext.request.lifetime import Lifetime
from scaffolding_ext.request.parts import current_parts
from scaffolding_ext.request.place import Place
from scaffolding_ext.request.progress import Steps
from scaffolding_ext.request.question import NO_QUESTION
from scaffolding_ext.request.seeds import BranchSeeds, derive_seed
from scaffolding_ext.request.trace import Trace

if TYPE_CHECKING:
    from scaffolding_ext.controllers.repetition import Loops

_program: contextvars.ContextVar[Program | None] = contextvars.ContextVar("program", default=None)


class Program:
    """Everything that is known of one request, from its submission on.

    Args:
        seed: Seed of the run; the request's seed derives from it, the sample id and the epoch. None draws no seeds.
        sample_id: Names the sample within the run.
        epoch: Repetition of the sample.
        clock: Seconds from any origin, monotonic.

    Attributes:
        identity: Which request it is.
        question: What the user asked, and the prompting that puts it to the model.
        caller: Who asked: the salt of the KV, and where text is shown.
        lifetime: When the request began, when its answer is wanted, and what happens at its end.
        seeds: The seeds that its branches draw.
        loops: Ends chains that repeat themselves; None where nobody watches for them.
        place: Its place among the requests that wait, and how far it is.
        ledger: Its tokens, by purpose.
        meter: Counts in the ledger what its tasks cost, and how long they took.
        trace: Its decisions.
        figures: What its controllers published for evaluations.
    """

    __slots__ = (
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
        self.place = Place(self.identity, self.lifetime, self.ledger)
        self.meter = Meter(self.ledger, clock, self.lifetime.began, current_parts)
        self.trace = Trace(self.lifetime)
        self.figures = PublishedFigures()

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
    """Make the program the current one of the calling context; for hosts."""
    return _program.set(program)


def leave_program() -> None:
    """Leave the calling context without a program; for hosts."""
    _program.set(None)


def record(event: str, **figures: Any) -> None:
    """Append a decision to the current program's trace; outside any program it is dropped."""
    program = _program.get()
    if program is not None:
        program.trace.record(event, **figures)


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
        program.figures.publish(section, **figures)


def publish(steps: Steps) -> None:
    """Say how far the current program is; see `Place.publish`. Outside any program it is dropped."""
    program = _program.get()
    if program is not None:
        program.place.publish(steps)


def priority_of(task: Task) -> float:
    """For workers: the task's place in the waiting line; the controller's choice overrules the program's."""
    own, program = notes_of(task).priority, _program.get()
    return program.place.priority if program is not None and not own else own


def cache_salt_of(task: Task) -> str | None:
    """For workers: who may share the task's KV: `cache_salt` in its `custom_input_params`, else its caller's."""
    own, program = (getattr(task, "custom_input_params", None) or {}).get("cache_salt"), _program.get()
    return program.caller.cache_salt if program is not None and own is None else own


def elapsed() -> float:
    """Seconds since the current program began; 0 outside any."""
    program = _program.get()
    return 0.0 if program is None else program.lifetime.elapsed()


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
        for ledger in current_parts()[0]:
            ledger.discard(purpose, num_tokens, to)
