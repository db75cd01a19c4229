"""Programs of an embedded model: recorded once, and served again as they arrive by chance."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks._lib.lab import Lab
from benchmarks._lib.recorded_programs import RecordedProgram, recorded_vote
from benchmarks._lib.runs import TEMPERATURE
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.scheduling import Fifo, Policy

Floats = npt.NDArray[np.float64]
CHAIN, VOTE = 1, 16  # samples of a program of each kind
NO_DEADLINE = 1e6  # seconds


class Problem(NamedTuple):
    """A program that can be served: a question, and how many samples its vote may draw."""

    prompt: str
    num_samples: int


def controller(max_tokens: int) -> MajorityVoteController:
    """A vote that stops early; of one sample it is a single chain."""
    chain = NativeGenerationController({"temperature": TEMPERATURE, "max_tokens": max_tokens})
    return MajorityVoteController(chain, VOTE)


class Recording(NamedTuple):
    """What programs sent, and how fast the engine was then.

    Attributes:
        programs: In the order of the problems.
        alone: Seconds a token of a chain that runs alone.
        full: Seconds a token of each chain in a full batch.
        overhead: What a program costs the engine that never runs out of them, times the seconds of its tokens: prompts
            are read, too, and places are empty while a round waits for its last sample.
    """

    programs: list[RecordedProgram]
    alone: float
    full: float
    overhead: float


def recorded(lab: Lab, problems: Sequence[Problem], max_tokens: int, places: int) -> Recording:
    """Run the programs, all at once."""

    def run() -> dict[str, Any]:
        made = controller(max_tokens)
        made.prompting = lab.prompting
        alone, before = seconds_a_token(lab, 1), seconds_a_token(lab, places)
        with ScaffoldingLlm(made, dict(lab.workers), seed=lab.seed) as llm:
            results = [llm.generate_async(each.prompt, sample_num=each.num_samples) for each in problems]
            traces = [result.result().program.trace for result in results]
        kept = [[event for event in trace if event["event"] in ("allocate", "vote")] for trace in traces]
        rate = programs_a_second(lab, problems, max_tokens)
        full = (before + seconds_a_token(lab, places)) / 2
        return {"traces": kept, "programs_a_second": rate, "alone": alone, "full": full}

    found = lab.stored("programs", run)
    programs = [recorded_vote(trace, each.num_samples) for trace, each in zip(found["traces"], problems, strict=True)]
    ideal = float(np.mean([program.num_tokens for program in programs])) * found["full"] / places
    return Recording(programs, found["alone"], found["full"], 1 / found["programs_a_second"] / ideal)


def programs_a_second(lab: Lab, problems: Sequence[Problem], max_tokens: int) -> float:
    """Programs that the engine ends in a second while it never runs out of them: the middle half of a crowd."""
    crowd = np.zeros(len(problems))
    ended = np.sort(served(lab, problems, crowd, crowd + NO_DEADLINE, Fifo(), max_tokens))
    first, last = len(ended) // 4, 3 * len(ended) // 4
    return float((last - first) / (ended[last] - ended[first]))


def seconds_a_token(lab: Lab, num_chains: int, num_tokens: int = 256) -> float:
    """Seconds a token of each of so many chains side by side; the median of three times."""

    def seconds() -> float:
        tasks = [
            GenerationTask(input_tokens=[5, 6, 7], max_tokens=num_tokens, ignore_eos=True, temperature=1.0)
            for _ in range(num_chains)
        ]
        started = time.perf_counter()
        lab.ask("generation", tasks)
        return (time.perf_counter() - started) / num_tokens

    return float(np.median([seconds() for _ in range(3)]))


def served(
    lab: Lab, problems: Sequence[Problem], arrivals: Floats, deadlines: Floats, policy: Policy, max_tokens: int
) -> Floats:
    """Seconds from each program's arrival to its end, on the engine.

    Args:
        lab: Its engine serves.
        problems: In order of arrival, shape [num_programs].
        arrivals: Seconds from now.
        deadlines: Seconds from the arrival of each.
        policy: Of the host.
        max_tokens: Of a chain.
    """
    made = controller(max_tokens)
    made.prompting = lab.prompting
    with ScaffoldingLlm(made, dict(lab.workers), len(problems), seed=lab.seed, scheduling=policy) as llm:

        async def time_of(number: int, started: float) -> float:
            await asyncio.sleep(started + arrivals[number] - time.perf_counter())
            problem, deadline = problems[number], float(deadlines[number])
            came = time.perf_counter()
            asked = {"sample_id": str(number), "sample_num": problem.num_samples, "deadline": deadline}
            await llm.generate_async(problem.prompt, **asked)
            return time.perf_counter() - came

        async def all_times() -> list[float]:
            started = time.perf_counter()
            return await asyncio.gather(*(time_of(number, started) for number in range(len(problems))))

        return np.array(asyncio.run(all_times()))
