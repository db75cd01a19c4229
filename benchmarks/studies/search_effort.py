"""Does certaindex foretell what is left to do? Of chains, votes, MCTS and REBASE alike (Dynasor, figures 5 and 12).

    python -m benchmarks.studies.search_effort --store runs/search --plot_path runs/search_effort.png

A question is looked at once, early: a chain after a number of looks, a vote, MCTS and REBASE after their first
solutions. What is left is the share of the whole effort from there on to the point after which the answer never changes
again: tokens of the chain, or of all solutions. Searches run once through rising widths, as `tune` records them; a
vote is best of n. Each signal is correlated with what is left, over questions: Pearson's r with an interval from
resampled questions.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from scipy.stats import pearsonr

from benchmarks._lib.command import benchmark, plotted, size, stored
from benchmarks._lib.drawing import Figures, drawing, of, points
from benchmarks._lib.lab import Lab
from benchmarks._lib.report import Report
from benchmarks._lib.searching import RememberingWorker, Searched, draw_problems
from benchmarks.studies.search import LEVELS, run_lots
from scaffolding_ext.answers import group
from scaffolding_ext.controllers.certaindex import entropy_certaindex, reward_certaindex, window_consistency
from scaffolding_ext.controllers.tree.score import LogprobScorer
from scaffolding_ext.controllers.tree.stops import Unchanged
from scaffolding_ext.controllers.tree.strategies.base import Strategy
from scaffolding_ext.controllers.tree.strategies.best_of_n import BestOfN
from scaffolding_ext.controllers.tree.strategies.mcts import MCTS
from scaffolding_ext.controllers.tree.strategies.rebase import Rebase
from scaffolding_ext.controllers.vote.voting import vote
from scaffolding_ext.evaluation.recordings.draw import draw, recording_stack
from scaffolding_ext.evaluation.recordings.read import read_recording
from scaffolding_ext.evaluation.recordings.recording import Looks
from scaffolding_ext.stack.load import load_config

WIDTHS = (4, 8, 16)
NUM_LOOKS, WINDOW, LOOK_EVERY = 6, 3, 32
NUM_RESAMPLES = 1000
BINS = (0.0, 1e-9, 0.4, 0.7, 1.0 - 1e-9, 1.0 + 1e-9)  # of certaindex, for the picture


class Effort(NamedTuple):
    """One question at its early look.

    Attributes:
        signals: Certaindex by its forms.
        left: Share of the effort that is left until the answer stands, in [0, 1].
    """

    signals: dict[str, float]
    left: float


def of_search(search: Searched) -> Effort:
    """A search after the first round with as many solutions as its first width."""
    classes, rounds = group(search.answers), [each for each in search.rounds if each[1]]
    leaders = [vote(classes[:num]) for _, num in rounds]
    settled = next(at for at in range(len(rounds)) if len(set(leaders[at:])) == 1)
    early = next(at for at, (_, num) in enumerate(rounds) if num >= min(WIDTHS[0], len(classes)))
    seen = rounds[early][1]
    values = [min(1.0, max(0.0, value)) for value in search.values[:seen]]
    signals = {
        "certaindex, entropy": entropy_certaindex(classes[:seen]),
        "certaindex, mean reward": reward_certaindex(values, "mean"),
        "certaindex, highest reward": reward_certaindex(values, "max"),
    }
    return Effort(signals, max(0, rounds[settled][0] - rounds[early][0]) / rounds[-1][0])


def of_chain(looks: Looks, final: int) -> Effort | None:
    """A chain at its early look; None where it had ended by then, or is never asked for its own answer."""
    classes = [probe.answer_class for probe in looks.probes]
    if len(classes) <= NUM_LOOKS:
        return None
    positions = [probe.prefix.num_tokens for probe in looks.probes]
    settled = next((at for at in range(len(classes)) if set(looks.forced[at:].tolist()) == {final}), len(classes) - 1)
    signal = window_consistency(classes[:NUM_LOOKS], WINDOW)
    left = max(0, positions[settled] - positions[NUM_LOOKS - 1]) / looks.length
    return Effort({"certaindex, equal answers": signal}, left)


def chains(problems: Sequence[Any], model: str, store: Path) -> list[Effort]:
    """One chain a question, whole and looked at on the way."""
    questions = store / "questions.jsonl"
    store.mkdir(parents=True, exist_ok=True)
    rows = [{"id": str(n), "prompt": each.question, "target": each.answer} for n, each in enumerate(problems)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    stack = {
        "controller": {"type": "NativeGenerationController", "args": {"sampling_params": {"temperature": 0.8}}},
        "workers": {"generation": {"type": "HuggingFaceWorker", "args": {"model": model}}},
        "dataset": {"source": str(questions)},
        "max_parallel_requests": 32,
        "seed": 0,
    }
    draw(recording_stack(load_config(stack), 1, LOOK_EVERY, 0), store / "chains", lambda message: None)
    found = read_recording([store / "chains"]).questions
    efforts = [of_chain(each.looks[0], int(each.classes[0])) for each in found if each.looks]
    return [each for each in efforts if each is not None]


def searches(lab: Lab, problems: Sequence[Any]) -> dict[str, list[Effort]]:
    """Votes, MCTS and REBASE, run through all their widths."""
    parts: dict[str, Any] = {"scorer": LogprobScorer(), "budget": 10_000, "stop": Unchanged(rounds=10**6)}
    grown: dict[str, tuple[str, Strategy, int]] = {
        "vote": ("best of n", BestOfN(), 1),
        "MCTS": ("MCTS", MCTS(rollouts=True, at_once=2, max_depth=LEVELS), 2),
        "REBASE": ("REBASE", Rebase(max_depth=LEVELS), 1),
    }
    return {
        label: [
            of_search(each)
            for each in run_lots(
                lab,
                problems,
                f"{name} of rising widths",
                strategy=strategy,
                widths=[nodes * width for width in WIDTHS],
                **parts,
            )
        ]
        for label, (name, strategy, nodes) in grown.items()
    }


def add_efforts(report: Report, label: str, efforts: Sequence[Effort]) -> None:
    """How each signal goes with what is left, and what is left by the signal."""
    left = np.array([each.left for each in efforts])
    report.difference(f"{label}: effort left, %", left, scale=100)
    report.figure(f"{label}: questions", len(efforts))
    for name in efforts[0].signals:
        signal = np.array([each.signals[name] for each in efforts])
        if np.ptp(signal) == 0 or np.ptp(left) == 0:
            continue
        drawn = [report.rng.integers(len(left), size=len(left)) for _ in range(NUM_RESAMPLES)]
        values = [pearsonr(signal[own], left[own]).statistic for own in drawn]
        low, high = np.nanquantile(values, (0.025, 0.975))
        report.figure(f"{label}, {name}: Pearson", float(pearsonr(signal, left).statistic), float(low), float(high))
    signal = np.array([next(iter(each.signals.values())) for each in efforts])
    for name, (low, high) in _bins(label).items():
        inside = (signal >= low) & (signal < high)
        if inside.sum() > 1:
            report.figure(f"{name}: mean", float(signal[inside].mean()))
            report.difference(f"{name}: effort left, %", left[inside], scale=100)


def _bins(label: str) -> dict[str, tuple[float, float]]:
    """The bins of certaindex, by the names of their figures."""
    return {f"{label}, certaindex {low:.1f} to {high:.1f}": (low, high) for low, high in itertools.pairwise(BINS)}


def plot(figures: Figures, path: Path) -> None:
    """Effort left by certaindex, an axes a way to spend it."""
    labels = [name.removesuffix(": questions") for name in figures if name.endswith(": questions")]
    with drawing(path, 1, len(labels), figsize=(4 * len(labels), 3.6), sharey=True) as (_, grid):
        for axes, label in zip(grid, labels, strict=True):
            pairs = [(of(figures, f"{name}: mean"), of(figures, f"{name}: effort left, %")) for name in _bins(label)]
            known = [(x.value, y) for x, y in pairs if x is not None and y is not None]
            points(axes, [x for x, _ in known], [y for _, y in known])
            axes.set(xlabel="certaindex at the early look", title=label)
            axes.set_xlim(-0.05, 1.05)
        grid[0].set(ylabel="effort that is left, % of all")
        grid[0].set_ylim(0, None)


@benchmark("studies.search_effort --store runs/search --plot_path runs/search_effort.png")
@size("--num_questions", 100, quick=4, help="Questions.", least=2)
@click.option("--least_steps", default=10, show_default=True, help="Fewest operations of a question.")
@click.option("--model", default="tinylm/target", show_default=True, help="Who writes.")
@stored
@plotted
def main(
    report: Report, num_questions: int, least_steps: int, model: str, store: Path | None, plot_path: Path | None
) -> None:
    """Does certaindex foretell what is left to do, of chains, votes, MCTS and REBASE alike?"""
    if store is None:
        raise click.UsageError("give --store, where the chains are recorded")
    problems = draw_problems(num_questions, report.seed, least_steps)
    found = {"chain": chains(problems, model, store / f"effort_{num_questions}_{report.seed}")}
    with Lab({"generation": model}, seed=report.seed, store=store, worker=RememberingWorker, max_batch_size=64) as lab:
        found |= searches(lab, problems)
    for label, efforts in found.items():
        add_efforts(report, label, efforts)
        name = next(iter(efforts[0].signals))
        pearson = report.figures.get(f"{label}, {name}: Pearson")
        if pearson is not None:
            report.bar(f"{label}, {name}: upper end of Pearson's r", pearson["high"], "<=", 0.0)
    if plot_path is not None:
        plot(report.figures, plot_path)


if __name__ == "__main__":
    main()
