"""How good must a judge of steps be for a search to pay?

    python -m benchmarks.studies.judge_quality --num_questions 60 --store runs/judge_quality --plot_path runs/judge.png

An exact checker judges the embedded model's steps. Its judgement is blurred to an AUC within a question of 0.5 to 1,
and every search runs with it. Beside them: a plain vote at as many decoded tokens, best of n and a weighted vote with
the same judge on whole solutions. An AUC of 0.5 is the same tree with random selection. The tokens that a judge reads
are counted, too. Cells that the store holds are not run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks._lib.command import benchmark, plotted, size, stored, track
from benchmarks._lib.drawing import drawing
from benchmarks._lib.lab import Lab
from benchmarks._lib.report import Report
from benchmarks._lib.searching import BlurredJudge, Searched, VoteCurve, draw_problems, search_all
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.controllers.tree.strategies.adaptive_branching import AdaptiveBranching
from scaffolding_ext.controllers.tree.strategies.base import Strategy
from scaffolding_ext.controllers.tree.strategies.beam import Beam
from scaffolding_ext.controllers.tree.strategies.best_of_n import BestOfN
from scaffolding_ext.controllers.tree.strategies.dvts import DVTS
from scaffolding_ext.controllers.tree.strategies.mcts import MCTS
from scaffolding_ext.controllers.tree.strategies.particle_filter import ParticleFilter
from scaffolding_ext.controllers.tree.strategies.rebase import Rebase

AUCS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
STEP_LEN = 48  # tokens
MAX_TOKENS = 1000  # of a solution


def strategies(width: int) -> dict[str, Strategy]:
    """The strategies that are compared, each of about `width` solutions' tokens."""
    return {
        "beam": Beam(width, max(1, width // 4)),
        "DVTS": DVTS(max(1, width // 4), 4),
        "REBASE": Rebase(width),
        "particle filter": ParticleFilter(width),
        "MCTS": MCTS(at_once=4),
        "adaptive branching": AdaptiveBranching("beta"),
    }


def run_cells(
    lab: Lab, problems: Sequence[Any], width: int, num_votes: int, names: Sequence[str], aucs: Sequence[float]
) -> dict[tuple[str, float], list[Searched]]:
    """Every strategy with every judge; the whole solutions that votes are made of stand under an AUC of 0."""
    by_question = {problem.question: problem for problem in problems}
    cells = [("vote", 0.0), *((name, auc) for auc in aucs for name in names)]
    found = {}
    for name, auc in track(cells, "cells"):
        judge = BlurredJudge(by_question, auc or 1.0, lab.seed)
        strategy = BestOfN(num_votes) if name == "vote" else strategies(width)[name]
        controller = SearchController(
            strategy,
            judge,
            steps=STEP_LEN,
            max_tokens=MAX_TOKENS,
            budget={"nodes": 12 * width} if name != "vote" else {"nodes": num_votes + 1},
            sampling_params={"temperature": 0.8},
        )
        key = f"{name.replace(' ', '_')}_{auc}_{width if auc else num_votes}_{len(problems)}_{lab.seed}"
        rows = lab.stored(key, lambda c=controller: [each._asdict() for each in search_all(lab, c, problems)])
        found[name, auc] = [Searched(**row) for row in rows]
    return found


def add_cells(report: Report, found: Mapping[tuple[str, float], list[Searched]]) -> dict[str, list[tuple[Any, ...]]]:
    """Figures of every cell against the vote at as many decoded tokens; returns what is drawn."""
    samples = found["vote", 0.0]
    curve = VoteCurve(samples, report.rng)
    questions = [each.question for each in samples]
    for number in (1, 4, 8, curve.right.shape[1]):
        report.difference(f"vote of {number}: accuracy, %", curve.right[:, number - 1], questions=questions, scale=100)
        report.figure(f"vote of {number}: decoded tokens", float(curve.tokens[:, number - 1].mean()))
    drawn: dict[str, list[tuple[Any, ...]]] = {}
    for (name, auc), cells in found.items():
        if not auc:
            continue
        tokens = float(np.mean([each.decoded for each in cells]))
        label = f"{name}, AUC {auc}"
        report.figure(f"{label}: decoded tokens", tokens)
        report.figure(f"{label}: computed tokens", float(np.mean([each.computed for each in cells])))
        report.difference(
            f"{label}: oracle, %", [float(any(e.is_right)) for e in cells], questions=questions, scale=100
        )
        report.figure(f"{label}: distinct answers", float(np.mean([len(set(e.answers)) for e in cells])))
        for chosen in ("best", "elected"):
            right = [float(each.is_right[getattr(each, chosen)]) for each in cells]
            accuracy = report.difference(f"{label}, {chosen}: accuracy, %", right, questions=questions, scale=100)
            gain = report.difference(
                f"{label}, {chosen}: points above a vote of as many decoded tokens",
                right,
                curve.at(tokens),
                questions,
                scale=100,
            )
            drawn.setdefault(f"{name}, {chosen}", []).append((auc, accuracy, gain))
    return drawn


def plot(drawn: Mapping[str, Sequence[tuple[Any, ...]]], path: Path) -> None:
    """Draw the points that each search lies above a vote at equal decoded tokens, by the judge's AUC."""
    with drawing(path, 1, 2, figsize=(12, 4.6), sharey=True) as (_, axes):
        for axis, chosen in zip(axes, ("best", "elected"), strict=True):
            for name, points in drawn.items():
                if name.endswith(chosen):
                    aucs, _, gains = zip(*points, strict=True)
                    axis.plot(aucs, [gain.value for gain in gains], "o-", label=name.partition(",")[0])
                    axis.fill_between(aucs, [gain.low for gain in gains], [gain.high for gain in gains], alpha=0.12)
            axis.axhline(0, color="grey", linewidth=0.8)
            axis.set(xlabel="AUC of the judge, within a question", title=f"answer: {chosen} leaf")
            axis.legend(fontsize=8)
        axes[0].set(ylabel="points above a plain vote of as many decoded tokens")


@benchmark("studies.judge_quality --num_questions 60 --store runs/judge_quality")
@size("--num_questions", 60, quick=6, help="Questions.", least=2)
@size("--width", 8, quick=4, help="Solutions of a search.", least=4)
@size("--num_votes", 24, quick=8, help="Solutions that votes are made of.", least=2)
@click.option("--least_steps", default=10, show_default=True, help="Fewest operations of a question.")
@click.option("--model", default="tinylm/target", show_default=True, help="Who writes.")
@click.option("--only", multiple=True, help="Strategies; all where none is named.")
@click.option("--auc", multiple=True, type=click.FloatRange(0.5, 1.0), help="Judges; 0.5 to 1 where none is named.")
@stored
@plotted
def main(
    report: Report,
    num_questions: int,
    width: int,
    num_votes: int,
    least_steps: int,
    model: str,
    only: tuple[str, ...],
    auc: tuple[float, ...],
    store: Path | None,
    plot_path: Path | None,
) -> None:
    """From which quality of its judge on does a search beat a vote at equal tokens?"""
    problems = draw_problems(num_questions, report.seed, least_steps)
    with Lab({"generation": model}, seed=report.seed, store=store, max_batch_size=64) as lab:
        found = run_cells(lab, problems, width, num_votes, only or tuple(strategies(width)), auc or AUCS)
    drawn = add_cells(report, found)
    if plot_path is not None:
        plot(drawn, plot_path)


if __name__ == "__main__":
    main()
