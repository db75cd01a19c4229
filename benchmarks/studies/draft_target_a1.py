"""Measures A1's variants: pools of shorter chunks (figure 6), and pools made before and during the run.

    python -m benchmarks.studies.draft_target_a1 --runs FILE --store runs/a1 --json

*lengths*: at the paper's ratio of 500 to 700 tokens, pools of chunks of 34 tokens rank chunks of 48, beside pools of
48, each made by other chains on the same questions. *orders*: every chunk is ranked among first ones, of all questions
before the run (as published), or of the questions so far (`growing`). *recorded*: the first turns of A1's own runs
(FILE, see `studies.conformal_replay`), each question's ranked among those of the others (marginal) or among each other
(conditional).

A figure beside the rate of take-over is the accuracy of the predicted budget: 1 less the relative error of alpha times
a question's decisions as a forecast of its take-overs.

Reference: A1, arXiv 2509.15148, figure 6, and its released code.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from benchmarks._lib.command import benchmark, size, stored
from benchmarks._lib.drafts import read_drafts
from benchmarks._lib.lab import MODELS, Lab
from benchmarks._lib.provenance import DATA
from benchmarks._lib.report import Report
from benchmarks.studies.conformal_replay import scored_chunks
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
from scaffolding_ext.evaluation.run.datasets import EMBEDDED, Example, load_dataset
from scaffolding_ext.evaluation.run.scoring import score
from scaffolding_ext.request.results import ScaffoldingResult

SHORT, LONG = 34, 48  # tokens of a chunk
ALPHAS = (0.25, 0.4)
MAX_TOKENS = 720
SHOWN_TURNS = 4
CALIBRATION_SEED = 1_000_000  # added to the seed of the answers


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


class Chunk(NamedTuple):
    """A drafted chunk's turn, and whether the target took over."""

    turn: int
    is_taken: bool


class Answered(NamedTuple):
    """The chains on one question.

    Attributes:
        vote: Whether the vote was right.
        target_tokens: Tokens that the target decoded.
        chunks: In the order of their decisions.
    """

    vote: float
    target_tokens: int
    chunks: list[Chunk]


def answered(
    lab: Lab, name: str, setting: Setting, rule: ConformalRule | GrowingRule, samples: Sequence[Example]
) -> list[Answered]:
    """The answers to the questions; from the lab's store if they were given before."""

    def run() -> list[Answered]:
        results = lab.answers(setting.controller(rule), [sample.prompt for sample in samples])
        return [_answered(result, sample.target) for result, sample in zip(results, samples, strict=True)]

    found: list[Any] = lab.stored(name.replace(" ", "_"), run)
    return [Answered(*row)._replace(chunks=[Chunk(*chunk) for chunk in row[-1]]) for row in found]


def calibrated(lab: Lab, name: str, setting: Setting, alpha: float, samples: Sequence[Example]) -> list[list[float]]:
    """Scores by turn of calibration chains on the questions, whose seeds are not those of the answers."""

    def run() -> list[list[float]]:
        made = setting.controller(ConformalRule(alpha, calibration=setting.calibration(alpha, ())))
        calibrating = CalibrateDraftTargetController(made, [sample.prompt for sample in samples])
        (result,) = lab.answers(calibrating, [samples[0].prompt], seed=lab.seed + CALIBRATION_SEED, at_once=1)
        return [turn.scores for turn in turns_in(result.program.trace)]

    return lab.stored(name, run)


def _answered(result: ScaffoldingResult, truth: str) -> Answered:
    chunks = [event for event in result.program.trace if event["event"] in ("accept", "take_over")]
    return Answered(
        float(score(result.answer, truth).correct),
        sum(event["num_target_tokens"] + event.get("num_rule_tokens", 0) for event in chunks),
        [Chunk(event["turn"], event["event"] == "take_over") for event in chunks],
    )


def add_rates(report: Report, name: str, answers: Sequence[Answered], alpha: float) -> None:
    """Rates by turn, the accuracy of predicted budgets on the first turn and over all, and of the answers."""
    chunks = [(question, chunk) for question, one in enumerate(answers) for chunk in one.chunks]
    for turn in (*range(SHOWN_TURNS), None):
        own = [(question, chunk.is_taken) for question, chunk in chunks if turn in (None, chunk.turn)]
        label = f"{name}: rate" if turn is None else f"{name}: rate at turn {turn}"
        if own:
            questions, taken = zip(*own, strict=True)
            report.difference(label, taken, questions=questions)
    for label, most in (("first turn", 1), ("all turns", len(chunks))):
        counts = [[chunk.is_taken for chunk in one.chunks if chunk.turn < most] for one in answers]
        accuracies = [budget_prediction(sum(each), len(each), alpha) for each in counts if each]
        report.difference(f"{name}: accuracy of the predicted budget, {label}", accuracies)
    report.difference(f"{name}: vote right, %", [one.vote for one in answers], scale=100)
    report.difference(f"{name}: target tokens", [float(one.target_tokens) for one in answers])


def lengths(report: Report, lab: Lab, samples: Sequence[Example], num_chains: int) -> None:
    """Pools of shorter chunks, and of chunks as long."""
    own = Setting(num_chains, LONG, SHOWN_TURNS, "resample")
    for alpha in ALPHAS:
        for chunk_tokens in (SHORT, LONG):
            made_by = own._replace(chunk_tokens=chunk_tokens, num_chains=max(2, num_chains // 2))
            turns = calibrated(lab, f"pools_{chunk_tokens}_{alpha}", made_by, alpha, samples)
            made = made_by.calibration(alpha, turns)
            rule = ConformalRule(alpha, calibration=made, any_chunk_len=chunk_tokens != LONG)
            answers = answered(lab, f"pools_of_{chunk_tokens}_{alpha}", own, rule, samples)
            add_rates(report, f"pools of {chunk_tokens} tokens for {LONG}, alpha {alpha}", answers, alpha)


def orders(report: Report, lab: Lab, samples: Sequence[Example], num_chains: int) -> None:
    """First turns of all questions before the run, and of those so far."""
    own = Setting(num_chains, LONG, 15, "continue")
    alpha = ALPHAS[1]
    turns = calibrated(lab, "first_turns", own._replace(max_turns=1), alpha, samples)
    before = ConformalRule(alpha, calibration=own.calibration(alpha, turns[:1]), pool="first_turn")
    rules = {"before the run": before, "as questions come": GrowingRule(alpha, min_questions=1, pool="first_turn")}
    for name, rule in rules.items():
        answers = answered(lab, f"first turns {name}", own, rule, samples)
        add_rates(report, f"first turns scored {name}, alpha {alpha}", answers, alpha)


def recorded(report: Report, runs: Path) -> None:
    """First turns of recorded runs, ranked among those of the other questions and among the question's own."""
    chunks = scored_chunks(read_drafts(runs))
    first = chunks.turn == 0
    questions, scores = chunks.question[first], chunks.score[first]
    for alpha in ALPHAS:
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


@benchmark("studies.draft_target_a1 --store runs/a1")
@click.option("--runs", type=DATA, help="A1's released runs.")
@size("--num_problems", 50, quick=2, help="Questions.", least=2)
@size("--num_chains", 8, quick=2, help="Chains of a question.", least=2)
@stored
def main(report: Report, runs: Path | None, num_problems: int, num_chains: int, store: Path | None) -> None:
    """Measure A1's variants."""
    if runs is not None:
        recorded(report, runs)
    samples = load_dataset(EMBEDDED, num_samples=num_problems, seed=report.seed)
    with Lab(MODELS, seed=report.seed, store=store, max_batch_size=128) as lab:
        for part in (lengths, orders):
            part(report, lab, samples, num_chains)


if __name__ == "__main__":
    main()
