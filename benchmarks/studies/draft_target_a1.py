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

import click
import numpy as np

from benchmarks._lib.command import benchmark, size, stored
from benchmarks._lib.lab import MODELS, Lab, questions_of
from benchmarks._lib.provenance import DATA
from benchmarks._lib.report import Report
from benchmarks.studies.conformal import Answered, Setting, answered, calibrated, controller
from benchmarks.studies.conformal_replay import scored_chunks
from scaffolding_ext.controllers.draft_target.aggregate import budget_prediction
from scaffolding_ext.controllers.draft_target.calibration_file import ConformalCalibration
from scaffolding_ext.controllers.draft_target.conformal_draft_target import ConformalDraftTargetController
from scaffolding_ext.controllers.draft_target.conformal_rule import ConformalRule
from scaffolding_ext.controllers.draft_target.growing_rule import GrowingRule
from scaffolding_ext.controllers.draft_target.p_values import leave_one_out_p_values, p_values
from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.evaluation.run.datasets import EMBEDDED, Example

SHORT, LONG = 34, 48  # tokens of a chunk
ALPHAS = (0.25, 0.4)
MAX_TOKENS = 720
SHOWN_TURNS = 4


def setting_of(chunk_tokens: int, num_chains: int, max_turns: int, on_reject: str) -> Setting:
    """The setting of chains of this study."""
    return Setting(num_chains, chunk_tokens, MAX_TOKENS, max_turns, on_reject)


def with_rule(setting: Setting, rule: ConformalRule | GrowingRule) -> ConformalDraftTargetController:
    """The controller of a setting with a rule."""
    return controller(setting, rule=rule)


def calibration_of(setting: Setting, alpha: float, turns: Sequence[Sequence[float]]) -> ConformalCalibration:
    """The calibration that chains of a setting left."""
    rule = controller(setting, alpha, turns).rule
    assert isinstance(rule, ConformalRule)
    assert rule.calibration is not None
    return rule.calibration


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
    own = setting_of(LONG, num_chains, SHOWN_TURNS, "resample")
    for alpha in ALPHAS:
        for chunk_tokens in (SHORT, LONG):
            made_by = own._replace(chunk_tokens=chunk_tokens, num_chains=max(2, num_chains // 2))
            turns = calibrated(lab, f"pools_{chunk_tokens}_{alpha}", controller(made_by, alpha), samples).turns
            made = calibration_of(made_by, alpha, turns)
            rule = ConformalRule(alpha, calibration=made, any_chunk_len=chunk_tokens != LONG)
            answers = answered(lab, f"pools_of_{chunk_tokens}_{alpha}", with_rule(own, rule), samples)
            add_rates(report, f"pools of {chunk_tokens} tokens for {LONG}, alpha {alpha}", answers, alpha)


def orders(report: Report, lab: Lab, samples: Sequence[Example], num_chains: int) -> None:
    """First turns of all questions before the run, and of those so far."""
    own = setting_of(LONG, num_chains, 15, "continue")
    alpha = ALPHAS[1]
    turns = calibrated(lab, "first_turns", controller(own._replace(max_turns=1), alpha), samples).turns
    before = ConformalRule(alpha, calibration=calibration_of(own, alpha, turns[:1]), pool="first_turn")
    rules = {"before the run": before, "as questions come": GrowingRule(alpha, min_questions=1, pool="first_turn")}
    for name, rule in rules.items():
        answers = answered(lab, f"first turns {name}".replace(" ", "_"), with_rule(own, rule), samples)
        add_rates(report, f"first turns scored {name}, alpha {alpha}", answers, alpha)


def recorded(report: Report, runs: Path) -> None:
    """First turns of recorded runs, ranked among those of the other questions and among the question's own."""
    chunks = scored_chunks(read_recording([runs]))
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
    samples = questions_of(EMBEDDED, num_problems, report.seed)
    with Lab(MODELS, seed=report.seed, store=store, max_batch_size=128) as lab:
        for part in (lengths, orders):
            part(report, lab, samples, num_chains)


if __name__ == "__main__":
    main()
