"""Recorded programs on a simulated engine, under a policy and at any arrival rate, event by event.

The policies, and the line in which requests wait, are those that serve real requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

import numpy as np

from benchmarks._lib.recorded_programs import RecordedProgram
from scaffolding_ext import require
from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.controllers.budgets.queueing.simulation import NEVER, BatchingEngine
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats
from scaffolding_ext.request.progress import Progress
from scaffolding_ext.scheduling.policies import Policy
from scaffolding_ext.scheduling.waiting_line import WaitingLine

PATIENCE = 512  # as that of our engine


def serve_programs(
    programs: Sequence[RecordedProgram],
    arrivals: Floats,
    policy: Policy,
    queue: Queue,
    seconds_per_token: float,
    patience: int = PATIENCE,
) -> Floats:
    """When each program leaves an engine that takes waiting requests in a policy's order.

    Requests that begin to wait at the same moment come by turns, one of each program.

    Args:
        programs: In order of arrival, each with a request at least.
        arrivals: Seconds, not falling, shape [num_programs].
        policy: Orders them, and learns from those that end.
        queue: Places of the engine, and how much slower it is when they are taken.
        seconds_per_token: Of a request that runs alone.
        patience: Later requests that may begin before one that waits.

    Returns:
        Seconds, shape [num_programs].
    """
    require.number("seconds_per_token", seconds_per_token, above=0)
    simulation = _Simulation(programs, policy, BatchingEngine(queue.places, queue.speed), seconds_per_token, patience)
    simulation.run([*arrivals.tolist(), NEVER])
    return np.array(simulation.departures)


class _Running:
    """A program that has arrived: how far it is, the rounds that follow, and the requests of the present one."""

    __slots__ = ("num_open", "num_sent", "progress", "rounds")

    def __init__(self, progress: Progress, program: RecordedProgram) -> None:
        self.progress = progress
        self.rounds = iter(program.rounds)
        self.num_sent = self.num_open = 0


class _Request:
    __slots__ = ("num_tokens", "program")

    def __init__(self, program: _Running, num_tokens: int) -> None:
        self.program = program
        self.num_tokens = num_tokens


class _Simulation:
    def __init__(
        self,
        programs: Sequence[RecordedProgram],
        policy: Policy,
        engine: BatchingEngine[_Request],
        seconds_per_token: float,
        patience: int,
    ) -> None:
        self.departures = [NEVER] * len(programs)
        self._programs = programs
        self._policy = policy
        self._engine = engine
        self._seconds_per_token = seconds_per_token
        self._line: WaitingLine[_Request] = WaitingLine(patience)

    def run(self, comes: Sequence[float]) -> None:
        engine, line = self._engine, self._line
        num_come = 0
        while (now := min(comes[num_come], engine.next_end)) < NEVER:
            rounds: list[list[_Request]] = []
            while engine.next_end == now:
                rounds.append(self._end(engine.end()))
            engine.advance(now)
            while comes[num_come] == now:
                rounds.append(self._arrive(num_come, now))
                num_come += 1
            for request in rounds[0] if len(rounds) == 1 else _by_turns(rounds):
                line.add(request, self._policy.priority(request.program.progress))
            while line and engine.has_place:
                request = line[0]
                line.remove(request)
                engine.begin(request, request.num_tokens * self._seconds_per_token)

    def _arrive(self, number: int, now: float) -> list[_Request]:
        program = self._programs[number]
        deadline = None if program.deadline is None else now + program.deadline
        return self._next_round(_Running(Progress(number, now, deadline), program))

    def _end(self, request: _Request) -> list[_Request]:
        """Count a request that has ended; returns the round that follows where it was the last of its own."""
        program = request.program
        program.num_open -= 1
        progress = program.progress
        program.progress = progress._replace(num_tokens=progress.num_tokens + request.num_tokens)
        return [] if program.num_open else self._next_round(program)

    def _next_round(self, program: _Running) -> list[_Request]:
        following = next(program.rounds, None)
        if following is None:
            self.departures[program.progress.number] = self._engine.now
            steps = program.progress.steps
            steps = steps._replace(num_done=steps.num_done + program.num_sent, num_left=0)
            self._policy.learn(program.progress._replace(steps=steps))
            return []
        program.progress = program.progress._replace(steps=following.steps)
        program.num_sent = program.num_open = len(following.num_tokens)
        return [_Request(program, num_tokens) for num_tokens in following.num_tokens]


def _by_turns(rounds: Iterable[list[_Request]]) -> list[_Request]:
    return [request for turn in zip_longest(*rounds) for request in turn if request is not None]
