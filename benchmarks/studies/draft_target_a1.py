"""Measures A1's variants: pools of shorter chunks (figure 6), and pools made before and during the run.

    python -m benchmarks.studies.draft_target_a1 --data FOLDER --json

*lengths*: at the paper's ratio of 500 to 700 tokens, pools of chunks of 34 tokens rank chunks of 48, beside pools of
48, each made by other chains on the same questions. *orders*: every chunk is ranked among first ones, of all questions
before the run (as published), or of the questions so far (`growing`). *own runs*: the first turns of A1's own runs
(see `studies.conformal_replay`), each question's ranked among those of the others (marginal) or among each other
(conditional).

A figure beside the rate of take-over is the accuracy of the predicted budget: 1 less the relative error of alpha times
a question's decisions as a forecast of its take-overs.

Reference: A1, arXiv 2509.15148, figure 6, and its released code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks._lib.command import benchmark, recorded, size
from benchmarks._lib.drafts import RUNS, read_drafts
from benchmarks._lib.report import Report
from benchmarks.studies.conformal_replay import scored_chunks
from scaffolding_ext import HuggingFaceWorker, Prompting, ScaffoldingLlm
from scaffolding_ext.controllers.draft_target.aggregate import budget_prediction
from scaffolding_ext.controllers.draft_target.calibration_file import (
    ConformalCalibration,
    DraftTargetSetting,
    LevelScores,
    TurnScores,
)
from scaffolding_ext.controllers.draft_target.conformal_draft_target import ConformalDraftTargetController
from scaffolding_ext.controllers.draft_target.conformal_rule import ConformalRule
from scaffolding_ext.controllers.draft_target.growing_rule import GrowingRule
from scaffolding_ext.controllers.draft_target.p_values import leave_one_out_p_values, p_values
from scaffolding_ext.evaluation.calibrate.conformal_run import CalibrateDraftTargetController, turns_in
from scaffolding_ext.evaluation.run.datasets import EMBEDDED, load_dataset
from scaffolding_ext.request.results import ScaffoldingResult

SHORT, LONG = 34, 48  # tokens of a chunk
ALPHAS = (0.25, 0.4)
MAX_TOKENS = 720
SHOWN_TURNS = (0, 3)
CALIBRATION_SEED = 1_000_000  # added to the seed of the answers
AT_ONCE = 8  # questions: with 16 chains each, as many rows as the engines have, so that no chain's KV is evicted


class Setting(NamedTuple):
    """The settings that chains share.

    Attributes:
        num_chains: Chains a question.
        chunk_tokens: Tokens of a chunk, of draft and target alike.
        max_turns: Chunks of a chain.
        on_reject: What a rejection leads to.
    """

    num_chains: int
    chunk_tokens: int
    max_turns: int
    on_reject: Any

    def calibration(self, alpha: float, turns: Sequence[Sequence[float]]) -> ConformalCalibration:
        """The calibration of chains of this setting that left these scores, by turn."""
        scores = [TurnScores(scores=list(turn), rate=alpha, low=None, high=None) for turn in turns]
        made_with = DraftTargetSetting(
            draft_model=None,
            target_model=None,
            draft_tokens=self.chunk_tokens,
            target_tokens=self.chunk_tokens,
            on_reject=self.on_reject,
        )
        return ConformalCalibration(
            source="held_out",
            setting=made_with,
            num_chains=self.num_chains,
            seed=0,
            questions=[],
            levels=[LevelScores(alpha=alpha, turns=scores)],
        )

    def controller(self, rule: ConformalRule | GrowingRule) -> ConformalDraftTargetController:
        """The controller with a rule."""
        return ConformalDraftTargetController(
            draft_tokens=self.chunk_tokens,
            target_tokens=self.chunk_tokens,
            num_chains=self.num_chains,
            max_turns=self.max_turns,
            max_tokens=MAX_TOKENS,
            on_reject=self.on_reject,
            rule=rule,
        )


class Lab(NamedTuple):
    """The embedded draft and target, and the questions that they are asked."""

    workers: Mapping[str, HuggingFaceWorker]
    prompts: Sequence[str]
    seed: int

    def answers(self, controller: Any, prompts: Sequence[str], seed: int, at_once: int) -> list[ScaffoldingResult]:
        controller.prompting = Prompting.for_model("tinylm/target")
        with ScaffoldingLlm(controller, dict(self.workers), seed=seed, max_parallel_requests=at_once) as llm:
            results: list[ScaffoldingResult] = llm.generate(list(prompts))
            return results

    def calibrated(self, setting: Setting, alpha: float) -> ConformalCalibration:
        """A calibration by chains on the questions, whose seeds are not those of the answers."""
        made = setting.controller(ConformalRule(alpha, calibration=setting.calibration(alpha, ())))
        calibrating = CalibrateDraftTargetController(made, list(self.prompts))
        (result,) = self.answers(calibrating, self.prompts[:1], self.seed + CALIBRATION_SEED, 1)
        return setting.calibration(alpha, [turn.scores for turn in turns_in(result.program.trace)])

    def add(self, report: Report, name: str, setting: Setting, rule: ConformalRule | GrowingRule) -> None:
        """Rates by turn, and the accuracy of predicted budgets on the first turn and over all."""
        results = self.answers(setting.controller(rule), self.prompts, self.seed, AT_ONCE)
        chunks = [
            (question, event["turn"], event["event"] == "take_over")
            for question, result in enumerate(results)
            for event in result.program.trace
            if event["event"] in ("accept", "take_over")
        ]
        for turn in (*SHOWN_TURNS, None):
            own = [(question, is_taken) for question, at, is_taken in chunks if turn in (None, at)]
            if own:
                questions, taken = zip(*own, strict=True)
                report.difference(
                    f"{name}: rate{'' if turn is None else f' at turn {turn}'}", taken, questions=questions
                )
        for label, last in (("first turn", 0), ("all turns", setting.max_turns)):
            counts = [
                [t for q, turn, t in chunks if q == question and turn <= last] for question in range(len(results))
            ]
            accuracies = [budget_prediction(sum(each), len(each), rule.alpha) for each in counts if each]
            report.difference(f"{name}: accuracy of the predicted budget, {label}", accuracies)


def lengths(report: Report, lab: Lab, num_chains: int) -> None:
    """Pools of shorter chunks, and of chunks as long."""
    own = Setting(num_chains, LONG, max(SHOWN_TURNS) + 1, "resample")
    for alpha in ALPHAS:
        for chunk_tokens in (SHORT, LONG):
            made_by = own._replace(chunk_tokens=chunk_tokens, num_chains=max(2, num_chains // 2))
            made = lab.calibrated(made_by, alpha)
            rule = ConformalRule(alpha, calibration=made, any_chunk_len=chunk_tokens != LONG)
            lab.add(report, f"pools of {chunk_tokens} tokens for {LONG}, alpha {alpha}", own, rule)


def orders(report: Report, lab: Lab, num_chains: int) -> None:
    """First turns of all questions before the run, and of those so far."""
    own = Setting(num_chains, LONG, 15, "continue")
    alpha = ALPHAS[-1]
    made = lab.calibrated(own._replace(max_turns=1), alpha)
    before = ConformalRule(alpha, calibration=made, pool="first_turn")
    rules = {"before the run": before, "as questions come": GrowingRule(alpha, min_questions=1, pool="first_turn")}
    for name, rule in rules.items():
        lab.add(report, f"first turns scored {name}, alpha {alpha}", own, rule)


def own_runs(report: Report, runs: Path) -> None:
    """First turns of recorded runs, ranked among those of the other questions and among the question's own."""
    chunks = scored_chunks(read_drafts(runs))
    first = chunks.turn == 0
    questions, scores = chunks.question[first], chunks.score[first]
    alpha = ALPHAS[-1]
    for coverage in ("marginal", "conditional"):
        taken, accuracies = np.zeros(len(scores)), []
        for question in np.unique(questions):
            own = questions == question
            if coverage == "marginal":
                taken[own] = p_values(scores[~own], scores[own], "random", report.rng) <= alpha
            else:
                taken[own] = leave_one_out_p_values(scores[own], "random", report.rng) <= alpha
            accuracies.append(budget_prediction(taken[own].sum(), own.sum(), alpha))
        name = f"A1's runs, first turns, {coverage}, alpha {alpha}"
        report.difference(f"{name}: rate", taken, questions=questions)
        report.difference(f"{name}: accuracy of the predicted budget", accuracies)
        of_all = budget_prediction(taken.sum(), len(taken), alpha)
        report.figure(f"{name}: accuracy of the predicted budget of all", of_all)


@benchmark("studies.draft_target_a1 --data FOLDER")
@recorded
@size("--num_problems", 50, quick=2, help="Questions.", least=2)
@size("--num_chains", 8, quick=2, help="Chains of a question.", least=2)
def main(report: Report, data: Path, num_problems: int, num_chains: int) -> None:
    """Measure A1's variants."""
    own_runs(report, data / RUNS)
    prompts = [sample.prompt for sample in load_dataset(EMBEDDED, num_samples=num_problems, seed=report.seed)]
    draft, target = (HuggingFaceWorker(f"tinylm/{tag}", max_batch_size=128) for tag in ("draft", "target"))
    with draft, target:
        lab = Lab({"draft": draft, "target": target}, prompts, report.seed)
        lengths(report, lab, num_chains)
        orders(report, lab, num_chains)


if __name__ == "__main__":
    main()
