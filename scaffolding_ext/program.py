"""One request's identity, seeds, token ledger and decision trace: its *program*, carried in a context variable.

The host opens a program for each request; under a host that knows none, `BaseController.generate` opens it. Whoever
runs on behalf of the request (controllers, workers, schedulers) finds it with `current_program()`.
"""

from __future__ import annotations

import contextvars
import hashlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from scaffolding_ext.protocol import ControllerGenerator, ParallelProcess, Task, current_scope
from scaffolding_ext.tasks import Purpose, TokenCounts, purpose_of, token_counts_of

_program: contextvars.ContextVar[Program | None] = contextvars.ContextVar("program", default=None)
_program_ids = itertools.count()
_NOTHING = TokenCounts()


def current_program() -> Program | None:
    """The program on whose behalf the calling code runs, or None outside any."""
    return _program.get()


def enter_program(program: Program) -> contextvars.Token[Program | None]:
    """Make the program the current one of the calling context; for hosts."""
    return _program.set(program)


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from any parts; equal parts give equal seeds, whatever ran before."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class Ledger:
    """Every token of a program, by purpose and by how it was had.

    Attributes:
        num_unmetered_tasks: Tasks whose worker told nothing from which tokens could be counted.
    """

    # Counts are kept as plain tuples: unlike named ones, the garbage collector need not look at them.
    __slots__ = ("_counts", "num_unmetered_tasks")

    def __init__(self) -> None:
        self._counts: dict[Purpose, tuple[int, int, int]] = {}
        self.num_unmetered_tasks = 0

    @property
    def by_purpose(self) -> dict[Purpose, TokenCounts]:
        """Counts under each purpose that occurred."""
        return {purpose: TokenCounts(*counts) for purpose, counts in self._counts.items()}

    @property
    def total(self) -> TokenCounts:
        """The sum over all purposes, discarded work included."""
        return TokenCounts(*map(sum, zip(*self._counts.values(), strict=True))) if self._counts else _NOTHING

    def add(self, purpose: Purpose, decoded: int = 0, prefilled: int = 0, reused: int = 0) -> None:
        """Count tokens under a purpose."""
        before = self._counts.get(purpose, (0, 0, 0))
        self._counts[purpose] = (before[0] + decoded, before[1] + prefilled, before[2] + reused)

    def discard(self, purpose: Purpose, num_tokens: int) -> None:
        """Move decoded tokens that were counted under `purpose` to `discarded`: they did not reach the output.

        Raises:
            ValueError: Fewer tokens were decoded for that purpose.
        """
        decoded = self._counts.get(purpose, _NOTHING)[0]
        if not 0 <= num_tokens <= decoded:
            raise ValueError(f"cannot discard {num_tokens} tokens: {decoded} were decoded for {purpose}")
        if num_tokens:
            self.add(purpose, -num_tokens)
            self.add(Purpose.DISCARDED, num_tokens)

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable copy."""
        return {
            "total": self.total._asdict(),
            "by_purpose": {str(purpose): counts._asdict() for purpose, counts in self.by_purpose.items()},
            "num_unmetered_tasks": self.num_unmetered_tasks,
        }


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
    """

    __slots__ = (
        "_clock",
        "_counted",
        "_num_draws",
        "_started",
        "_trace",
        "epoch",
        "id",
        "ledger",
        "prompting",
        "sample_id",
        "seed",
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
        self._trace: list[dict[str, Any]] | None = None
        self.prompting: Any = None
        self._clock = clock
        self._started = clock()
        self._num_draws: dict[tuple[int, ...], int] = {}
        self._counted: dict[int, tuple[Task, TokenCounts]] = {}

    @property
    def trace(self) -> list[dict[str, Any]]:
        """The decisions in order, each a JSON-serialisable dict with `event`, `branch` and `seconds`."""
        if self._trace is None:
            self._trace = []
        return self._trace

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

    def record(self, event: str, **figures: Any) -> None:
        """Append a decision to the trace with the figures it was taken on (JSON-serialisable values)."""
        seconds = round(self._clock() - self._started, 6)
        self.trace.append({"event": event, "branch": list(_branch_path()), "seconds": seconds, **figures})

    def meter(self, generator: Iterable[Any]) -> ControllerGenerator:
        """Pass a controller's work through, counting in the ledger what its tasks cost, branches included.

        Returns:
            A generator with the same yields and the same return value.
        """
        inner = iter(generator)
        try:
            while True:
                try:
                    work = next(inner)
                except StopIteration as stop:
                    return stop.value
                if isinstance(work, ParallelProcess):
                    work.sub_gens = [self.meter(branch) for branch in work.sub_gens]
                    yield work
                    continue
                try:
                    yield work
                finally:
                    self._count(work)
        finally:
            _close(inner)

    def close(self) -> None:
        """For hosts: the request has ended; what only a running one needs is freed."""
        self._counted.clear()
        self._num_draws.clear()

    def _count(self, work: Any) -> None:
        if not isinstance(work, (list, tuple)):
            return
        for task in work:
            if not isinstance(task, Task):
                continue
            counts = token_counts_of(task)
            if counts is None:
                self.ledger.num_unmetered_tasks += _should_cost_tokens(task)
                continue
            purpose = purpose_of(task)
            streaming = hasattr(task, "end_flag")
            if streaming:  # the same task comes back with cumulative counts: count what is new
                before = self._counted.get(id(task), (task, _NOTHING))[1]
                self._counted[id(task)] = (task, counts)
                counts = counts.minus(before)
            if counts.prefilled or counts.reused:
                self.ledger.add(purpose.read, 0, counts.prefilled, counts.reused)
            self.ledger.add(purpose.written, counts.decoded)


def _branch_path() -> tuple[int, ...]:
    scope = current_scope.get()
    return () if scope is None else tuple(scope.branch_path)


def _should_cost_tokens(task: Task) -> bool:
    return hasattr(task, "input_tokens") or hasattr(task, "branches") or hasattr(task, "suffixes")


def _close(generator: Iterator[Any]) -> None:
    close = getattr(generator, "close", None)  # plain iterators (upstream's task-collection wrappers) have none
    if close is not None:
        close()


def record(event: str, **figures: Any) -> None:
    """Append a decision to the current program's trace; outside any program it is dropped."""
    program = _program.get()
    if program is not None:
        program.record(event, **figures)


def next_seed() -> int | None:
    """The current program's next seed for this branch; None outside any program or where it has no seed."""
    program = _program.get()
    return None if program is None else program.next_seed()
