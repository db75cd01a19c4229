"""Finds the quality that a judge of steps needs for a search to pay.

    python -m benchmarks.studies.judge_quality --num_questions 60 --store runs/judge_quality --plot_path runs/judge.png

An exact checker judges the embedded model's steps. Its judgement is blurred to an AUC within a question of 0.5 to 1,
and every search runs with it. Beside them stand a plain vote, best of n and a weighted vote with the same judge on
whole solutions. An AUC of 0.5 is the same tree with random selection. Every search is held against the vote twice: at
as many decoded tokens, and at as many tokens of policy and judge together.

A node's seed derives from its path, so that all searches of a question walk through one tree of steps, and each step is
written once. Questions run in blocks; blocks that the store holds are not run again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from benchmarks._lib.command import benchmark, plotted, size, stored, track
from benchmarks._lib.drawing import Figures, below, coloured, drawing, of, points
from benchmarks._lib.lab import Lab
from benchmarks._lib.report import Report
from benchmarks._lib.searching import (
    BlurredJudge,
    Curve,
    RememberingWorker,
    Searched,
    draw_problems,
    sample_curves,
    search_all,
    shift_of,
)
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.controllers.tree.strategies.adaptive_branching import AdaptiveBranching
from scaffolding_ext.controllers.tree.strategies.base import Strategy
from scaffolding_ext.controllers.tree.strategies.beam import Beam
from scaffolding_ext.controllers.tree.strategies.best_first import BestFirst
from scaffolding_ext.controllers.tree.strategies.best_of_n import BestOfN
from scaffolding_ext.controllers.tree.strategies.dvts import DVTS
from scaffolding_ext.controllers.tree.strategies.mcts import MCTS
from scaffolding_ext.controllers.tree.strategies.particle_filter import ParticleFilter
from scaffolding_ext.controllers.tree.strategies.rebase import Rebase
from scaffolding_ext.tinylm.grammar import Problem

AUCS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
STEP_LEN = 48  # tokens
MAX_TOKENS = 1000  # of a solution
SOLUTION_LEN = 500  # tokens of a solution, about: the searches that have no end of their own get as many a solution
ELECTED = "a vote weighed by scores"
GREEDY_CHAIN = "one chain, greedy"
BASES = {"decoded": "decoded tokens", "all_tokens": "tokens of policy and judge"}


class Cell(NamedTuple):
    """A search with a judge."""

    name: str
    width: int
    auc: float

    @property
    def label(self) -> str:
        return f"{self.name} {self.width}, AUC {self.auc:g}"


def strategies(width: int) -> dict[str, Strategy]:
    """The strategies that are compared, each of about `width` solutions' tokens."""
    return {
        "beam": Beam(width, max(1, width // 4)),
        "DVTS": DVTS(max(1, width // 4), 4),
        "REBASE": Rebase(width),
        "particle filter": ParticleFilter(width),
        "best first": BestFirst(),
        "MCTS": MCTS(rollouts=True),
        "adaptive branching": AdaptiveBranching("beta", saturation=1.0, max_depth=2),
    }


def controller_of(cell: Cell, judge: BlurredJudge, num_votes: int) -> SearchController:
    """The search of a cell; an AUC of 0 stands for the whole solutions that votes are made of."""
    strategy = strategies(cell.width)[cell.name] if cell.auc else BestOfN(num_votes)
    ends_itself = isinstance(strategy, Beam | DVTS | Rebase | ParticleFilter | BestOfN)
    return SearchController(
        strategy,
        judge,
        steps=STEP_LEN,
        max_tokens=MAX_TOKENS,
        budget={"nodes": 100 * cell.width} if ends_itself else {"tokens": SOLUTION_LEN * cell.width},
        sampling_params={"temperature": 0.8},
    )


def run_cells(lab: Lab, problems: Sequence[Any], cells: Sequence[Cell], num_votes: int, block: int) -> dict[Cell, Any]:
    """Every cell, a block of questions after the other."""
    samples = Cell("vote", num_votes, 0.0)
    found: dict[Cell, list[Searched]] = {cell: [] for cell in (samples, *cells)}
    blocks = [problems[at : at + block] for at in range(0, len(problems), block)]
    for number, own in enumerate(blocks):
        by_question = {problem.question: problem for problem in own}
        for cell in track(found, f"block {number + 1} of {len(blocks)}"):
            controller = controller_of(cell, BlurredJudge(by_question, cell.auc or 1.0, lab.seed), num_votes)
            key = f"{cell.name.replace(' ', '_')}_{cell.auc}_{cell.width}_{number}_{len(own)}_{lab.seed}"
            rows = lab.stored(key, lambda c=controller, o=own: [each._asdict() for each in search_all(lab, c, o)])
            found[cell] += [Searched(**row) for row in rows]
        for worker in lab.workers.values():
            worker.forget()  # type: ignore[attr-defined]
    return found


def add_samples(report: Report, samples: Sequence[Searched], aucs: Sequence[float]) -> Curve:
    """Figures of votes over whole solutions, and of judges on them."""
    questions = [each.question for each in samples]
    curve = sample_curves(samples, report.rng)["vote"]
    most = curve.right.shape[1]
    for number in sorted({1, 4, 8, 16, most} & set(range(1, most + 1))):
        report.difference(f"vote of {number}: accuracy, %", curve.right[:, number - 1], questions=questions, scale=100)
        report.figure(f"vote of {number}: decoded tokens", float(curve.tokens[:, number - 1].mean()))
    report.difference("any sample right, %", [any(e.is_right) for e in samples], questions=questions, scale=100)
    for auc in aucs:
        for name, own in sample_curves(samples, report.rng, shift_of(auc)).items():
            for number in sorted({4, 8, most} & set(range(1, most + 1))):
                label = f"{name} {number}, AUC {auc:g}"
                right, tokens = own.right[:, number - 1], float(own.tokens[:, number - 1].mean())
                report.difference(f"{label}: accuracy, %", right, questions=questions, scale=100)
                report.figure(f"{label}: tokens of policy and judge", tokens)
                report.difference(
                    f"{label}: points above a vote of as many tokens of policy and judge",
                    right,
                    curve.at(tokens),
                    questions,
                    scale=100,
                )
    return curve


def greedy_chains(lab: Lab, problems: Sequence[Problem]) -> list[tuple[str | None, int]]:
    """Answer and tokens of one greedy chain of each question."""
    params = {"temperature": 0.0, "max_tokens": MAX_TOKENS}

    def answered() -> list[tuple[str | None, int]]:
        results = lab.answers(NativeGenerationController(params), [problem.question for problem in problems])
        return [(result.answer, result.program.ledger.total.decoded) for result in results]

    return [(answer, tokens) for answer, tokens in lab.stored(f"greedy_{len(problems)}_{lab.seed}", answered)]


def add_greedy(
    report: Report, problems: Sequence[Problem], chains: Sequence[tuple[str | None, int]], curve: Curve
) -> None:
    """Figures of one greedy chain, and what votes have over it."""
    right = np.array([answer == problem.answer for problem, (answer, _) in zip(problems, chains, strict=True)], float)
    report.difference(f"{GREEDY_CHAIN}: accuracy, %", right, scale=100)
    report.difference(f"{GREEDY_CHAIN}: decoded tokens", [tokens for _, tokens in chains])
    for number in sorted({1, 4, 8, 16} & set(range(1, curve.right.shape[1] + 1))):
        name = f"vote of {number}: points above {GREEDY_CHAIN}"
        report.difference(name, curve.right[:, number - 1], right, scale=100)


def add_cells(report: Report, found: Mapping[Cell, Sequence[Searched]], curve: Curve) -> None:
    """Figures of every search against the vote at as many tokens; its leaves vote, weighed by their scores."""
    for cell, rows in found.items():
        if not cell.auc:
            continue
        questions = [each.question for each in rows]
        right = [float(each.is_right[each.elected]) for each in rows]
        report.difference(f"{cell.label}, {ELECTED}: accuracy, %", right, questions=questions, scale=100)
        for base, words in BASES.items():
            tokens = [getattr(each, base) for each in rows]
            report.difference(f"{cell.label}: {words}", tokens, questions=questions)
            name = f"{cell.label}, {ELECTED}: points above a vote of as many {words}"
            report.difference(name, right, curve.at(float(np.mean(tokens))), questions, scale=100)


def plot(figures: Figures, path: Path) -> None:
    """Points above a vote at equal tokens by the judge's AUC, a panel a width and a way to count tokens."""
    elected = f", {ELECTED}: points above a vote of as many "
    found = [re.fullmatch(rf"(.+) (\d+), AUC ([\d.]+){re.escape(elected)}decoded tokens", name) for name in figures]
    cells = [Cell(each[1], int(each[2]), float(each[3])) for each in found if each is not None]
    names = list(dict.fromkeys(cell.name for cell in cells))
    widths, aucs = sorted({cell.width for cell in cells}), sorted({cell.auc for cell in cells})
    shape = len(widths), len(BASES)
    with drawing(path, *shape, figsize=(5 * shape[1], 4.6 * shape[0]), squeeze=False) as (figure, axes):
        for line, width in zip(axes, widths, strict=True):
            for axis, base in zip(line, BASES.values(), strict=True):
                for number, name in enumerate(names):
                    own = {auc: of(figures, f"{Cell(name, width, auc).label}{elected}{base}") for auc in aucs}
                    drawn = {auc + 0.004 * (number - len(names) / 2): each for auc, each in own.items() if each}
                    thin = {"elinewidth": 0.7, "capsize": 2, "ms": 3.5}
                    points(axis, list(drawn), list(drawn.values()), name, **thin, **lined(number))
                axis.axhline(0, color="black", linewidth=0.8)
                axis.set_xticks(aucs)
                axis.set(xlabel="AUC of the judge, within a question", ylabel="points above a plain vote (95 %)")
                axis.set_title(f"Above 0 a search of {width} solutions beats\na vote of as many {base}")
        below(figure, axes[0, 0], 4)


def lined(number: int) -> dict[str, Any]:
    """Colour and shape of a strategy."""
    shape = coloured(number)
    return {"color": shape["color"], "fmt": f"{shape.get('fmt', 'o')}-"}


@benchmark("studies.judge_quality --num_questions 60 --store runs/judge_quality")
@size("--num_questions", 60, quick=4, help="Questions.", least=2)
@click.option(
    "--width", type=click.IntRange(4), multiple=True, help="Solutions of a search; 4 and 8 where none is given."
)
@size("--num_votes", 16, quick=8, help="Solutions that votes are made of.", least=2)
@size("--block", 20, quick=4, help="Questions that run together.")
@click.option("--least_steps", default=10, show_default=True, help="Fewest operations of a question.")
@click.option("--model", default="tinylm/target", show_default=True, help="Who writes.")
@click.option("--only", multiple=True, help="Strategies; all where none is named.")
@click.option("--auc", multiple=True, type=click.FloatRange(0.5, 1.0), help="Judges; 0.5 to 1 where none is named.")
@stored
@plotted
def main(
    report: Report,
    num_questions: int,
    width: tuple[int, ...],
    num_votes: int,
    block: int,
    least_steps: int,
    model: str,
    only: tuple[str, ...],
    auc: tuple[float, ...],
    store: Path | None,
    plot_path: Path | None,
) -> None:
    """From which quality of its judge on does a search beat a vote at equal tokens?"""
    problems = draw_problems(num_questions, report.seed, least_steps)
    is_quick = bool(report.setting.get("quick"))
    widths = width or ((4,) if is_quick else (4, 8))
    names = only or tuple(strategies(4))
    aucs = auc or ((0.5, 1.0) if is_quick else AUCS)
    cells = [Cell(name, own, each) for each in aucs for own in widths for name in names]
    with Lab({"generation": model}, seed=report.seed, store=store, worker=RememberingWorker, max_batch_size=64) as lab:
        found = run_cells(lab, problems, cells, num_votes, block)
        chains = greedy_chains(lab, problems)
    samples = found[Cell("vote", num_votes, 0.0)]
    curve = add_samples(report, samples, aucs)
    add_greedy(report, problems, chains, curve)
    add_cells(report, found, curve)
    if plot_path is not None:
        plot(report.figures, plot_path)


if __name__ == "__main__":
    main()
