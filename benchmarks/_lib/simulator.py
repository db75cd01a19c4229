"""Programs of requests on a simulated engine that batches, under a policy and at any arrival rate.

The engine serves up to so many requests at once, each slower the more there are. Policies and the waiting line are
those of real requests.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats
from scaffolding_ext.request.program import Progress, StepCounts
from scaffolding_ext.scheduling import Fifo, Policy, WaitingLine

PATIENCE = 512  # later requests that may start before a waiting one, like the embedded engine
NEVER = float("inf")


class BatchingEngine:
    """Requests served side by side at one speed.

    One clock of the work done for each request suffices: a request ends when the clock has advanced by its service
    time.

    Attributes:
        next_end: End of the next request if no other begins before; infinite without requests.
    """

    def __init__(self, queue: Queue) -> None:
        self._rates = [0.0, *(float(queue.speed(size)) for size in range(1, queue.places + 1))]
        self.now = self._clock = 0.0
        self.next_end = NEVER
        self._batch: list[tuple[float, int, _Request]] = []  # clock time of each end, and its number
        self._numbers = itertools.count()

    @property
    def has_place(self) -> bool:
        """True if another request may begin."""
        return len(self._batch) < len(self._rates) - 1

    def begin(self, request: _Request, service: float) -> None:
        """Begin a request that would take `service` seconds by itself."""
        heapq.heappush(self._batch, (self._clock + service, next(self._numbers), request))
        self._foresee()

    def advance(self, now: float) -> None:
        """Advance to a time not later than `next_end`."""
        self._clock += self._rates[len(self._batch)] * (now - self.now)
        self.now = now

    def end(self) -> _Request:
        """Advance to `next_end` and return the request that ends there."""
        self.now = self.next_end
        self._clock, _, request = heapq.heappop(self._batch)
        if not self._batch:
            self._clock = 0.0  # keeps it precise
        self._foresee()
        return request

    def stop(self, request: _Request) -> float:
        """Remove a running request; returns the seconds of service it has left."""
        place = next(place for place, (*_, each) in enumerate(self._batch) if each is request)
        left = self._batch[place][0] - self._clock
        self._batch[place] = self._batch[-1]
        self._batch.pop()
        heapq.heapify(self._batch)
        if not self._batch:
            self._clock = 0.0
        self._foresee()
        return left

    def _foresee(self) -> None:
        rate = self._rates[len(self._batch)]
        self.next_end = self.now + (self._batch[0][0] - self._clock) / rate if self._batch else NEVER


class RequestRound(NamedTuple):
    """Requests that a program sends at once.

    The round ends when all of them have ended, or at `until`. Requests that are still running then are stopped.

    Attributes:
        num_tokens: Tokens that each request decodes if it runs to its end; at least one request.
        steps: The program's progress when it sends them.
    """

    num_tokens: tuple[float, ...]
    steps: StepCounts = StepCounts()
    until: float = NEVER


class RoundEnd(NamedTuple):
    """End of a round.

    Attributes:
        ended: Indices of the requests that ran to their end, in the order of their ends.
    """

    now: float
    ended: tuple[int, ...]


Work = Generator[RequestRound, RoundEnd, Any]
"""The work of a program: it yields rounds, is sent the end of each, and returns its answer."""

Program = Callable[[float, float], Work]
"""Begins a program, given its arrival and its deadline in simulated seconds (infinite without one)."""


def fixed_program(*rounds: RequestRound) -> Program:
    """A program of these rounds, whose answer is None."""

    def work(now: float, deadline: float) -> Work:
        yield from (each for each in rounds)  # a tuple's iterator has no send()

    return work


def arrival_times(rate: float, number: int, rng: np.random.Generator) -> Floats:
    """Seconds at which requests of a Poisson process arrive, increasing, shape [number]."""
    return np.cumsum(rng.gamma(1.0, 1 / rate, number))


class Served(NamedTuple):
    """Results of programs, each array of shape [num_programs].

    Attributes:
        departures: Seconds at which each left.
        num_tokens: Tokens that each decoded, including those of stopped requests.
    """

    departures: Floats
    num_tokens: Floats
    answers: list[Any]


def serve_programs(
    programs: Sequence[Program],
    arrivals: Floats,
    queue: Queue,
    seconds_per_token: float,
    policy: Policy | None = None,
    deadlines: Floats | None = None,
) -> Served:
    """Serve programs with an engine that takes waiting requests in a policy's order.

    Requests that start to wait at the same moment are interleaved, one of each program.

    Args:
        programs: In order of arrival.
        arrivals: Seconds, non-decreasing, shape [num_programs].
        queue: Places of the engine, and its slowdown when they are taken.
        seconds_per_token: Of a request that runs by itself.
        policy: Orders the requests, and learns from programs that end; None: first come, first served.
        deadlines: Seconds from its arrival within which each program is wanted, shape [num_programs].
    """
    require.number("seconds_per_token", seconds_per_token, above=0)
    engine = BatchingEngine(queue)
    due = np.full(len(programs), NEVER) if deadlines is None else arrivals + deadlines
    simulation = _Simulation(programs, policy or Fifo(), engine, seconds_per_token)
    simulation.run([*arrivals.tolist(), NEVER], due.tolist())
    return simulation.served()


class _Running:
    """A program that has arrived: its progress, and the requests of its current round."""

    def __init__(self, progress: Progress, work: Work) -> None:
        self.progress = progress
        self.work = work
        self.num_decoded = 0.0
        self.begin_round(0)

    def begin_round(self, number: int) -> None:
        self.round_number = number
        self.ended: list[int] = []
        self.open: dict[int, _Request] = {}


class _Request:
    __slots__ = ("index", "is_running", "num_tokens", "program")

    def __init__(self, program: _Running, index: int, num_tokens: float) -> None:
        self.program = program
        self.index = index
        self.num_tokens = num_tokens
        self.is_running = False


class _Simulation:
    def __init__(
        self,
        programs: Sequence[Program],
        policy: Policy,
        engine: BatchingEngine,
        seconds_per_token: float,
    ) -> None:
        self._programs = programs
        self._policy = policy
        self._engine = engine
        self._seconds_per_token = seconds_per_token
        self._line: WaitingLine[_Request] = WaitingLine(PATIENCE)
        self._departures = [NEVER] * len(programs)
        self._num_tokens = [0.0] * len(programs)
        self._answers: list[Any] = [None] * len(programs)
        self._alarms: list[tuple[float, int, int, _Running]] = []  # (until, program, round, ...)

    def served(self) -> Served:
        return Served(np.array(self._departures), np.array(self._num_tokens), self._answers)

    def run(self, comes: Sequence[float], due: Sequence[float]) -> None:
        engine, line, alarms = self._engine, self._line, self._alarms
        num_come = 0
        while (now := min(comes[num_come], engine.next_end, alarms[0][0] if alarms else NEVER)) < NEVER:
            rounds: list[list[_Request]] = []
            while engine.next_end == now:
                rounds.append(self._end(engine.end()))
            engine.advance(now)
            while alarms and alarms[0][0] <= now:
                _, _, number, program = heapq.heappop(alarms)
                if number == program.round_number and program.open:
                    rounds.append(self._end_round(program))
            while comes[num_come] == now:
                rounds.append(self._arrive(num_come, now, due[num_come]))
                num_come += 1
            for request in rounds[0] if len(rounds) == 1 else _by_turns(rounds):
                if request.program.open.get(request.index) is request:  # its round may have ended at the same time
                    line.add(request, self._policy.priority(request.program.progress))
            while line and engine.has_place:
                request = line[0]
                line.remove(request)
                request.is_running = True
                engine.begin(request, request.num_tokens * self._seconds_per_token)

    def _arrive(self, number: int, now: float, due: float) -> list[_Request]:
        program = _Running(Progress(number, now, None if due == NEVER else due), self._programs[number](now, due))
        return self._next_round(program, None)

    def _end(self, request: _Request) -> list[_Request]:
        """Count a request that has ended; return the next round if this ends its own."""
        program = request.program
        del program.open[request.index]
        self._count(program, request.num_tokens)
        program.ended.append(request.index)
        return [] if program.open else self._end_round(program)

    def _end_round(self, program: _Running) -> list[_Request]:
        """Stop the requests that still run or wait, and start the next round."""
        for request in program.open.values():
            if request in self._line:
                self._line.remove(request)
            elif request.is_running:
                left = self._engine.stop(request) / self._seconds_per_token
                self._count(program, max(0.0, request.num_tokens - left))
        program.open.clear()
        return self._next_round(program, RoundEnd(self._engine.now, tuple(program.ended)))

    def _count(self, program: _Running, num_tokens: float) -> None:
        program.num_decoded += num_tokens
        program.progress = program.progress._replace(num_tokens=round(program.num_decoded))

    def _next_round(self, program: _Running, end: RoundEnd | None) -> list[_Request]:
        now, number = self._engine.now, program.progress.number
        try:
            following = next(program.work) if end is None else program.work.send(end)
        except StopIteration as stop:
            self._departures[number], self._num_tokens[number] = now, program.num_decoded
            self._answers[number] = stop.value
            steps = program.progress.steps
            steps = steps._replace(num_done=steps.num_done + len(program.ended), num_left=0)
            self._policy.learn(program.progress._replace(steps=steps))
            return []
        program.progress = program.progress._replace(steps=following.steps)
        program.begin_round(program.round_number + 1)
        new = [_Request(program, index, each) for index, each in enumerate(following.num_tokens)]
        program.open = {request.index: request for request in new}
        if following.until < NEVER:
            heapq.heappush(self._alarms, (max(now, following.until), number, program.round_number, program))
        return new


def _by_turns(rounds: Iterable[list[_Request]]) -> list[_Request]:
    return [request for turn in itertools.zip_longest(*rounds) for request in turn if request is not None]
