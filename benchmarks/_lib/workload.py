"""Recorded programs on a simulated engine: arrivals by chance, and how long each program takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks._lib.programs import CHAIN, VOTE, Floats, Problem
from benchmarks._lib.recorded_programs import RecordedProgram
from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.controllers.budgets.queueing.simulation import NEVER
from scaffolding_ext.evaluation.traffic.simulator import serve_programs
from scaffolding_ext.scheduling import Fifo, Policy


class Workload(NamedTuple):
    """Recorded programs and the engine that serves them.

    Attributes:
        problems: What was asked.
        programs: What it came to, each with its deadline.
        queue: Places, and what sharing costs.
        seconds_per_token: Of a chain alone.
    """

    problems: list[Problem]
    programs: list[RecordedProgram]
    queue: Queue
    seconds_per_token: float

    def rate_at(self, load: float) -> float:
        """Arrivals a second that keep the full engine busy for that share of the time."""
        work = float(np.mean([program.num_tokens for program in self.programs])) * self.seconds_per_token
        return load * self.queue.capacity / work

    def drawn(self, num_programs: int, load: float, rng: np.random.Generator) -> tuple[list[int], Floats]:
        """Programs by chance, and when each arrives."""
        chosen = rng.integers(len(self.programs), size=num_programs).tolist()
        return chosen, np.cumsum(rng.standard_exponential(num_programs)) / self.rate_at(load)

    def times(self, chosen: Sequence[int], arrivals: Floats, policy: Policy) -> Floats:
        """Seconds that each of these takes in the simulated engine."""
        programs = [program.work for program in self.of(chosen)]
        within = self.deadlines(chosen)
        served = serve_programs(programs, arrivals, self.queue, self.seconds_per_token, policy, within)
        return served.departures - arrivals

    def of(self, chosen: Sequence[int]) -> list[RecordedProgram]:
        """The programs of these numbers."""
        return [self.programs[number] for number in chosen]

    def deadlines(self, chosen: Sequence[int]) -> Floats:
        """Seconds within which each of these is wanted."""
        within = [self.programs[number].deadline for number in chosen]
        return np.array([NEVER if each is None else each for each in within])


def with_deadlines(load: Workload, slack: float) -> Workload:
    """The same programs, each wanted within so many times what its kind takes alone."""
    far_apart = 1e6 * np.arange(len(load.programs), dtype=float)
    alone = load.times(range(len(load.programs)), far_apart, Fifo())
    kinds = np.array([problem.num_samples for problem in load.problems])
    within = {kind: slack * float(alone[kinds == kind].mean()) for kind in (CHAIN, VOTE)}
    programs = [
        program._replace(deadline=within[kind]) for program, kind in zip(load.programs, kinds.tolist(), strict=True)
    ]
    return load._replace(programs=programs)
