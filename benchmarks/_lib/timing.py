"""Runs draft/target systems question by question in turn, and keeps when and for what time passed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from benchmarks._lib.lab import MODELS, Lab
from benchmarks._lib.latency import SetLatency
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.draft_target.chain import DraftTargetChain
from scaffolding_ext.controllers.draft_target.conformal_draft_target import ConformalDraftTargetController
from scaffolding_ext.controllers.draft_target.take_over import TakeOverRule
from scaffolding_ext.evaluation.preflight.schedule import ScheduledChunk
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask, Worker
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.request.program import next_seed
from scaffolding_ext.request.results import ScaffoldingResult
from scaffolding_ext.workers.budgeted import BudgetedWorker

UNLIMITED = 10_000  # calls: a budget that only counts


class InStep(TakeOverRule):
    """Another rule's decisions, but at every turn all chains wait for each other.

    Args:
        rule: Decides.
    """

    def __init__(self, rule: TakeOverRule) -> None:
        self.rule, self.scores_chunks = rule, rule.scores_chunks

    def for_request(self) -> InStep:
        return InStep(self.rule.for_request())

    def in_step(self, turn: int) -> bool:
        return True

    def decide(self, chains: Sequence[DraftTargetChain], rngs: Sequence[np.random.Generator]) -> ControllerGenerator:
        return (yield from self.rule.decide(chains, rngs))

    def figures(self) -> dict[str, Any]:
        return self.rule.figures()


class Seeded(BaseController):
    """Gives the chains of another controller seeds that do not depend on which of them run side by side.

    Args:
        controller: Of draft and target.
    """

    required_tags: tuple[WorkerTag, ...] = ()

    def __init__(self, controller: ConformalDraftTargetController) -> None:
        super().__init__()
        self.controller = controller

    def run(self, task: GenerationTask, **kwargs: Any) -> ControllerGenerator:
        """Answer the task's prompt."""
        task.seed = next_seed()
        yield from self.controller.process([task])


class Busy(NamedTuple):
    """What an engine did for a request.

    Attributes:
        seconds: Spent in steps.
        num_steps: Steps.
        num_decoded: Tokens decoded.
        num_read: Tokens read or scored, not reused.
    """

    seconds: float
    num_steps: int
    num_decoded: int
    num_read: int


class Timed(NamedTuple):
    """What a system did on one question.

    Attributes:
        ends: Seconds from the request to each chain's end.
        chunks: Its chunks.
        seconds: From the request to its result.
        waited: Seconds that each call of the target waited for its place.
        busy: By engine; empty where questions ran side by side.
        most_calls: Calls that the target had at once.
        most_tokens: Tokens that these calls could come to hold at once: read, and still to be written.
    """

    ends: list[float]
    chunks: list[ScheduledChunk]
    seconds: float
    waited: list[float]
    busy: dict[str, Busy]
    most_calls: int
    most_tokens: int

    @classmethod
    def from_json(cls, row: list[Any]) -> Timed:
        """As it was stored."""
        ends, chunks, seconds, waited, busy, most_calls, most_tokens = row
        engines = {name: Busy(*done) for name, done in busy.items()}
        return cls(
            ends, [ScheduledChunk(*chunk) for chunk in chunks], seconds, waited, engines, most_calls, most_tokens
        )


class Measured(NamedTuple):
    """What some systems did on some questions.

    Attributes:
        timed: By system, each question.
        load: Load averages of the machine, before and after each group of questions.
        late: By model whose latency was set: seconds that its engine took too long, and those that were set.
    """

    timed: dict[str, list[Timed]]
    load: list[float]
    late: dict[str, tuple[float, float]]


class System(NamedTuple):
    """Who decides, and on which workers.

    Attributes:
        controller: The controller.
        draft: The draft.
        target: The target, without a budget.
        max_calls: Of the target at once.
    """

    controller: ConformalDraftTargetController
    draft: Worker
    target: Worker
    max_calls: int = UNLIMITED


class Timer:
    """Runs systems in turn, and keeps when and for what time passed.

    Args:
        lab: Has the engines, the store, and the seed, which all systems share.
        rng: Orders the systems at each question.
        warm_up: A question that is not timed, so that the engines have met every shape before the first that is.
        tell: Called after each group of questions of each system.
    """

    def __init__(self, lab: Lab, rng: np.random.Generator, warm_up: str, tell: Callable[[], object]) -> None:
        self.lab, self.rng, self.tell = lab, rng, tell
        self.warm_up: str | None = warm_up

    def measured(self, name: str, systems: Mapping[str, System], prompts: Sequence[str], at_once: int = 1) -> Measured:
        """What each system did on each question, and how busy the machine was.

        All systems answer a question before the next one begins, in an order that is drawn, so that other load on the
        machine hits them alike. What was run before comes from the store.

        Args:
            name: Of this measurement in the store.
            systems: By name.
            prompts: The questions.
            at_once: Questions that run side by side; what the engines did can only be told for one.
        """
        numbered = list(enumerate(prompts))
        groups = [numbered[start : start + at_once] for start in range(0, len(prompts), at_once)]
        measured = [self._measured(f"{name}_{group[0][0]}", systems, group) for group in groups]
        timed = {system: [one for part in measured for one in part.timed[system]] for system in systems}
        loads = [load for part in measured for load in part.load]
        late = [{tag: part.late.get(tag, (0.0, 0.0)) for tag in MODELS} for part in measured]
        totals = {tag: (sum(part[tag][0] for part in late), sum(part[tag][1] for part in late)) for tag in MODELS}
        return Measured(timed, loads, {tag: total for tag, total in totals.items() if total[1]})

    def _measured(self, name: str, systems: Mapping[str, System], group: list[tuple[int, str]]) -> Measured:
        timed, load, late = self.lab.stored(name, lambda: self._measure(systems, group))
        rows = {system: [Timed.from_json(row) for row in found] for system, found in timed.items()}
        return Measured(rows, load, {tag: tuple(seconds) for tag, seconds in late.items()})

    def _measure(self, systems: Mapping[str, System], group: list[tuple[int, str]]) -> Measured:
        if self.warm_up is not None:
            for system in systems.values():
                self._run(system, [(0, self.warm_up)])
            self.warm_up = None
        found: dict[str, list[Timed]] = {}
        load, late = [os.getloadavg()[0]], {}
        for system in self.rng.permutation(list(systems)).tolist():
            workers = {"target": systems[system].target}
            slowed = workers | ({} if systems[system].draft in workers.values() else {"draft": systems[system].draft})
            before = {tag: (w.late_s, w.set_s) for tag, w in slowed.items() if isinstance(w, SetLatency)}
            found[system] = self._run(systems[system], group)
            for tag, (late_s, set_s) in before.items():
                so_far = late.get(tag, (0.0, 0.0))
                late[tag] = (so_far[0] + slowed[tag].late_s - late_s, so_far[1] + slowed[tag].set_s - set_s)
            self.tell()
        return Measured(found, [*load, os.getloadavg()[0]], late)

    def _run(self, system: System, group: list[tuple[int, str]]) -> list[Timed]:
        controller = Seeded(system.controller)
        controller.prompting = self.lab.prompting
        before = {name: engine.metrics for name, engine in self.lab.workers.items()}
        with ExitStack() as opened:
            target = BudgetedWorker(system.target, system.max_calls)
            workers = {"draft": target if system.draft is system.target else system.draft, "target": target}
            llm = opened.enter_context(ScaffoldingLlm(controller, workers, seed=self.lab.seed))
            running = [llm.generate_async(prompt, sample_id=str(number)) for number, prompt in group]
            results = [result.result() for result in running]
        busy: dict[str, Busy] = {}
        for name, engine in self.lab.workers.items() if len(group) == 1 else ():
            now, then = engine.metrics, before[name]
            busy[name] = Busy(
                now.busy_s - then.busy_s,
                now.num_steps - then.num_steps,
                now.num_decoded - then.num_decoded,
                now.num_prefilled - then.num_prefilled,
            )
        return [_timed(result, busy, target) for result in results]


def _timed(result: ScaffoldingResult, busy: dict[str, Busy], target: BudgetedWorker) -> Timed:
    trace = result.program.trace
    chunks = [
        ScheduledChunk(e["chain"], e["turn"], e["num_draft_tokens"], e["num_target_tokens"], e["seconds_waited"])
        for e in trace
        if e["event"] in ("accept", "take_over")
    ]
    return Timed(
        ends=[e["seconds"] for e in sorted(_of(trace, "end"), key=lambda e: e["chain"])],
        chunks=chunks,
        seconds=trace[-1]["seconds"],
        waited=[e["seconds_waited"] for e in _of(trace, "waited")],
        busy=busy,
        most_calls=target.most_calls,
        most_tokens=target.most_tokens,
    )


def _of(trace: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [entry for entry in trace if entry["event"] == event]
