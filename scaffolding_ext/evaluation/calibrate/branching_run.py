"""Branching calibration: a stack's branches with full verification, and every verdict after each layer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from scaffolding_ext.answers import Verdict, equal
from scaffolding_ext.controllers.tree.calibration_file import BranchingCalibration, BranchingFigures
from scaffolding_ext.controllers.tree.gates.confidence import fit_gate
from scaffolding_ext.controllers.tree.gates.layer_exit import fit_layer_exit, judged_exit, median_layer_exit
from scaffolding_ext.controllers.tree.kv_share_branching import KVShareBranchingController
from scaffolding_ext.controllers.tree.score import ControllerScorer, VerdictScorer
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.evaluation.run.runner import evaluate
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import TaskStatus
from scaffolding_ext.protocol.branching import VerifyTask
from scaffolding_ext.protocol.worker import WorkerTag, WrappingWorker, worker_key
from scaffolding_ext.registry import search_scorers
from scaffolding_ext.request.program import current_program
from scaffolding_ext.stack.build import build_stack, check_stack
from scaffolding_ext.stack.config import ComponentConfig, StackConfig

NO_GATES = {"gates": {"skip": False, "decode_exit": False}, "calibration": None}


class BranchedProblem(NamedTuple):
    """Branches of one problem, all judged at full depth, with an entry per branch.

    Attributes:
        confidences: Mean probability of the likeliest token.
        entropies: After each layer, in nats, shape (branches, layers).
        layer_scores: P(yes) after each layer, shape (branches, layers).
    """

    answers: list[str | None]
    confidences: list[float]
    scores: list[float]
    entropies: list[list[float]]
    layer_scores: list[list[float]]

    def chosen(self) -> int:
        """Return the branch that is selected at full depth: by its score, weighed by its confidence."""
        return int(np.argmax(np.asarray(self.scores) * np.sqrt(self.confidences)))


class _Recorder(WrappingWorker):
    """Keeps a worker's verify tasks, by sample."""

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        self.verified: dict[str, VerifyTask] = {}

    async def _hand_on(self, task: Any) -> TaskStatus | None:
        program = current_program()
        if isinstance(task, VerifyTask) and program is not None:
            self.verified[str(program.identity.sample_id)] = task
        return await self.worker.run_task(task)


def run_branches(config: StackConfig, samples: Sequence[Example]) -> list[BranchedProblem]:
    """Write and judge the branches of a stack's controller on samples, without skipping or early exits.

    Args:
        config: A stack whose outermost controller is a KVShareBranchingController of depth 1 without a reward
            controller, and whose worker `generation` is a HuggingFaceWorker. Its scorer is replaced by verdicts; the
            arguments of a scorer `verdict` are kept.

    Raises:
        ConfigError: The stack does not meet this.
    """
    config = _without_gates(config)
    with build_stack(config) as llm:
        workers = dict(llm.workers)
        key = worker_key(workers, WorkerTag.GENERATION)
        worker = workers[key]
        recorder = workers[key] = _Recorder(worker)
        with ScaffoldingLlm(
            llm.prototype_controller, workers, config.max_parallel_requests, seed=config.seed
        ) as judged:
            records = evaluate(judged, samples)
        curves = asyncio.run(_read_every_layer(worker, recorder.verified))
    problems = []
    for sample, record in zip(samples, records, strict=True):
        if record.error is not None:
            raise ConfigError(f"sample {sample.id} failed: {record.error}", "controller")
        events = {event["event"]: event for event in record.trace}
        written = events["branches"]
        problems.append(
            BranchedProblem(
                written["answers"],
                written["confidences"],
                events["verify"]["scores"],
                [[entropy for entropy, _ in curve] for curve in curves[sample.id]],
                [[score for _, score in curve] for curve in curves[sample.id]],
            )
        )
    return problems


async def _read_every_layer(
    worker: Any, verified: Mapping[str, VerifyTask]
) -> dict[str, list[list[tuple[float, float]]]]:
    curves = {}
    for sample, task in verified.items():
        asked = replace(task, layer_exit=None, every_layer=True)
        await worker.run_task(asked)
        curves[sample] = asked.curves or []
    return curves


def calibrate(
    problems: Sequence[BranchedProblem], *, model: str, dataset: str, seed: int, least_agreement: float = 0.99
) -> BranchingCalibration:
    """Fit the thresholds to branches that were all judged.

    Raises:
        ConfigError: There is no problem.
    """
    if not problems:
        raise ConfigError("is empty: give a dataset with problems", "dataset")
    gate = fit_gate([problem.confidences for problem in problems])
    leaders = [gate.leader(problem.confidences) for problem in problems]
    skipped = [(each, leader) for each, leader in zip(problems, leaders, strict=True) if leader is not None]
    same = [_same_answer(each.answers[leader], each.answers[each.chosen()]) for each, leader in skipped]
    verdicts = (
        np.concatenate([problem.entropies for problem in problems]),
        np.concatenate([np.array(p.layer_scores) * np.sqrt(p.confidences)[:, None] for p in problems]),
        np.repeat(np.arange(len(problems)), [len(problem.scores) for problem in problems]),
    )
    fit = fit_layer_exit(*verdicts, least_agreement)
    median = judged_exit(median_layer_exit(verdicts[0]), *verdicts)
    return BranchingCalibration(
        model=model,
        data=dataset,
        branching_factor=len(problems[0].scores),
        seed=seed,
        least_agreement=least_agreement,
        skip_gate=gate,
        layer_exit=fit.rule,
        median_exit=median_layer_exit(verdicts[0]),
        figures=BranchingFigures(
            num_problems=len(problems),
            skip_rate=len(skipped) / len(problems),
            skip_agreement=float(np.mean(same)) if same else None,
            exit_agreement=fit.agreement,
            exit_share=fit.exit_share,
            depth=fit.depth,
            median_agreement=median.agreement,
            median_depth=median.depth,
        ),
    )


def _same_answer(answer: str | None, other: str | None) -> bool:
    """Compare two answers; two missing answers are the same."""
    if answer is None or other is None:
        return answer is other
    return answer == other or equal(answer, other) is Verdict.EQUAL


def _without_gates(config: StackConfig) -> StackConfig:
    """Return the stack whose branches are all written and judged at full depth.

    Raises:
        ConfigError: It is not a stack of a `KVShareBranchingController` on a `HuggingFaceWorker`, with verdicts.
    """
    worker = config.workers.get(WorkerTag.GENERATION.value)
    if worker is None or worker.type != "HuggingFaceWorker":
        raise ConfigError("must be a HuggingFaceWorker, the only worker that reads single layers", "workers.generation")
    controller = check_stack(config)
    if not isinstance(controller, KVShareBranchingController):
        raise ConfigError(
            f"is a {type(controller).__name__}; calibrate the KVShareBranchingController by itself", "controller.type"
        )
    if controller.branching_factor < 2 or isinstance(controller.scorer, ControllerScorer):
        raise ConfigError("must write several branches, without a reward controller", "controller.args")
    args = config.controller.args
    scorer = _full_verdict(args.get("scorer"))
    component = ComponentConfig(type=config.controller.type, args={**args, **NO_GATES, "scorer": scorer})
    return config.model_copy(update={"controller": component})


def _full_verdict(scorer: Any) -> dict[str, Any]:
    """Return the verdict of a stack's scorer, read at the last layer; the plain one if it has none."""
    kind = scorer.get("type") if isinstance(scorer, Mapping) else None
    args: dict[str, Any] = dict(scorer.get("args") or {}) if isinstance(scorer, Mapping) and kind else {}
    factory = search_scorers.resolve(kind) if kind else None
    return {"type": "verdict", "args": {**(args if factory is VerdictScorer else {}), "layer_exit": False}}
