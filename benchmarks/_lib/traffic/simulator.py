"""Event simulation of programs on a batching engine, under a policy and at any arrival rate.

It uses the same policies and waiting line as real requests.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from benchmarks._lib.traffic.engine import NEVER, BatchingEngine
from benchmarks._lib.traffic.programs import Program, RoundEnd, Work
from scaffolding_ext import require
from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats
from scaffolding_ext.request.program import Progress
from scaffolding_ext.scheduling import Fifo, Policy, WaitingLine

PATIENCE = 512  # like the embedded engine


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
    patience: int = PATIENCE,
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
        patience: Maximum number of later requests that may start before a waiting one.
    """
    require.number("seconds_per_token", seconds_per_token, above=0)
    engine: BatchingEngine[_Request] = BatchingEngine(queue.places, queue.speed)
    due = np.full(len(programs), NEVER) if deadlines is None else arrivals + deadlines
    simulation = _Simulation(programs, policy or Fifo(), engine, seconds_per_token, patience)
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
        engine: BatchingEngine[_Request],
        seconds_per_token: float,
        patience: int,
    ) -> None:
        self._programs = programs
        self._policy = policy
        self._engine = engine
        self._seconds_per_token = seconds_per_token
        self._line: WaitingLine[_Request] = WaitingLine(patience)
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
    return [request for turn in zip_longest(*rounds) for request in turn if request is not None]
