"""Runs draft/target systems question by question in turn, and keeps when and for what time passed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from model_latency import Chunk, SetLatency
from take_over_rules import Coin

from scaffolding_ext.controllers.draft_target_chain import DraftTargetChain
from scaffolding_ext.controllers.take_over import TakeOverRule
from scaffolding_ext.prompting import Prompting
from scaffolding_ext.protocol import Controller, ControllerGenerator, Worker
from scaffolding_ext.results import ScaffoldingResult
from scaffolding_ext.runtime import ScaffoldingLlm
from scaffolding_ext.workers.budgeted import BudgetedWorker
from scaffolding_ext.workers.huggingface import HuggingFaceWorker

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


class ScoredCoin(Coin):
    """A coin that has the target score every chunk all the same, so that it costs what a rule by scores costs."""

    scores_chunks = True


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
    chunks: list[Chunk]
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
        return cls(ends, [Chunk(*chunk) for chunk in chunks], seconds, waited, engines, most_calls, most_tokens)


class Measured(NamedTuple):
    """What some systems did on some questions.

    Attributes:
        timed: By system, each question.
        load: Load average of the machine before and after.
        late: By model whose latency was set: seconds that its engine took too long, over those that were set.
    """

    timed: dict[str, list[Timed]]
    load: tuple[float, float]
    late: dict[str, float]


class System(NamedTuple):
    """Who decides, and on which workers.

    Attributes:
        controller: The controller.
        draft: The draft.
        target: The target, without a budget.
        max_calls: Of the target at once.
    """

    controller: Controller
    draft: Worker
    target: Worker
    max_calls: int = UNLIMITED


class TimingLab:
    """The engines and the seeds of timed runs.

    Args:
        engines: The engine of each model.
        prompting: Of the models.
        seed: Of the runs; all systems have the same.
        rng: Orders the systems at each question.
        tell: Called after each group of questions of each system.
        store: Folder of what was run before; None keeps nothing.
    """

    def __init__(
        self,
        engines: Mapping[str, HuggingFaceWorker],
        prompting: Prompting,
        seed: int,
        rng: np.random.Generator,
        tell: Callable[[], object],
        store: Path | None,
    ) -> None:
        self.engines, self.prompting, self.seed = engines, prompting, seed
        self.rng, self.tell, self.store = rng, tell, store

    def measured(self, name: str, systems: Mapping[str, System], prompts: Sequence[str], at_once: int = 1) -> Measured:
        """What `interleaved` gives, with how busy the machine was; from the store where it was run before."""
        path = None if self.store is None else self.store / f"{name}.json"
        if path is not None and path.exists():
            timed, load, late = json.loads(path.read_text(encoding="utf-8"))
            rows = {system: [Timed.from_json(row) for row in found] for system, found in timed.items()}
            return Measured(rows, tuple(load), late)
        before = os.getloadavg()[0]
        found = self.interleaved(systems, prompts, at_once)
        late: dict[str, float] = {}
        for tag in ("draft", "target"):
            workers = {id(worker): worker for system in systems.values() if (worker := getattr(system, tag))}
            slowed = [worker for worker in workers.values() if isinstance(worker, SetLatency) and worker.set_s]
            late |= {tag: sum(worker.late_s for worker in slowed) / sum(w.set_s for w in slowed)} if slowed else {}
        measured = Measured(found, (before, os.getloadavg()[0]), late)
        if path is not None:
            path.write_text(json.dumps(measured), encoding="utf-8")
        return measured

    def interleaved(
        self, systems: Mapping[str, System], prompts: Sequence[str], at_once: int = 1
    ) -> dict[str, list[Timed]]:
        """What each system did on each question.

        All systems answer a question before the next one begins, in an order that is drawn, so that other load on the
        machine hits them alike.

        Args:
            systems: By name.
            prompts: The questions.
            at_once: Questions that run side by side; what the engines did can only be told for one.
        """
        found: dict[str, list[Timed]] = {name: [] for name in systems}
        groups = [list(enumerate(prompts))[start : start + at_once] for start in range(0, len(prompts), at_once)]
        for group in groups:
            for name in self.rng.permutation(list(systems)).tolist():
                found[name] += self._run(systems[name], group)
                self.tell()
        return found

    def _run(self, system: System, group: list[tuple[int, str]]) -> list[Timed]:
        system.controller.prompting = self.prompting  # type: ignore[attr-defined]  # every controller of ours has it
        before = {name: engine.metrics for name, engine in self.engines.items()}
        with ExitStack() as opened:
            target = BudgetedWorker(system.target, system.max_calls)
            workers = {"draft": target if system.draft is system.target else system.draft, "target": target}
            llm = opened.enter_context(ScaffoldingLlm(system.controller, workers, seed=self.seed))
            running = [llm.generate_async(prompt, sample_id=str(number)) for number, prompt in group]
            results = [result.result() for result in running]
        busy: dict[str, Busy] = {}
        for name, engine in self.engines.items() if len(group) == 1 else ():
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
        Chunk(e["chain"], e["turn"], e["num_draft_tokens"], e["num_target_tokens"], e["seconds_waited"])
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
