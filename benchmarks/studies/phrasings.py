"""Branches that are phrased differently: may they stay on the KV of the question as it stood, and who can tell?

    python -m benchmarks.studies.phrasings --store runs/phrasings --plot_path runs/phrasings.png

Every question is put in 8 ways, two at each of 4 levels of divergence; the last level changes what is asked, so that
reuse is wrong there. Each branch is answered greedily on the KV of the question as it stood and, exactly, on its own
phrasing; reuse is good where the two answers agree. Signals that might tell so beforehand: the similarity gate's figure
(RKSC, equation 2), which sees of a branch its opening on the root's KV alone; the same figure of phrasings that were
read after all, which saves nothing; the cosine of mean input embeddings and the share of tokens in common, which are
free. A threshold is chosen on the first half of the questions (the largest reuse with at least 99 % agreement) and
judged on the second. Intervals are 95 %, from resampling whole questions.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt

from benchmarks._lib.command import benchmark, plotted, size, stored, track
from benchmarks._lib.drawing import Figures, bars_of, below, drawing, of, rows
from benchmarks._lib.lab import Lab
from benchmarks._lib.phrasings import CHANGES_MEANING, GATE, LEVELS, SIGNALS, TEMPLATES, WORKER, Phraser, Row, shuffled
from benchmarks._lib.provenance import DATA
from benchmarks._lib.report import Report
from scaffolding_ext.controllers.tree.beginnings import hints_of
from scaffolding_ext.evaluation.calibrate.branching_run import same_answer
from scaffolding_ext.evaluation.run.datasets import Example, load_dataset
from scaffolding_ext.stats.intervals import Estimate
from scaffolding_ext.stats.separation import auc_over_all, auc_within, resampled_groups
from scaffolding_ext.tinylm.steps import FIRST_PASSES

BLOCK = 20  # questions that are run and stored together
LEAST = 0.99  # share of the branches that stay whose answers must agree
NUM_OPENINGS = 3
TAUS = (0.05, 0.1, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99)  # that the sweep sets
AUCS = {"AUC of agreement": "o", "AUC within a question": "D", "AUC of an unchanged meaning": "^"}  # and their marks

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


class Outcome(NamedTuple):
    """Every branch, in columns of shape (branches,).

    Attributes:
        questions: Numbers of the questions, in order of appearance.
        templates: Indices of `TEMPLATES`.
        agrees: Whether the answer on the root's KV is that on the branch's own phrasing.
        is_right: Whether the latter is the question's own.
        root_is_right: Whether the former is.
        scores: Of each signal, shape (signals, branches).
        phrasing_len: Tokens that a branch reads on its own phrasing beside its opening.
        opening_len: Tokens of its opening.
        num_decoded: Tokens that it writes.
    """

    questions: Integers
    templates: Integers
    agrees: Bools
    is_right: Bools
    root_is_right: Bools
    scores: Floats
    phrasing_len: Integers
    opening_len: Integers
    num_decoded: Integers

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Outcome:
        """Rows in columns."""
        numbers = {name: number for number, name in enumerate(dict.fromkeys(row.question for row in rows))}
        return cls(
            np.array([numbers[row.question] for row in rows]),
            np.array([row.template for row in rows]),
            np.array([same_answer(row.on_root, row.on_phrasing) for row in rows]),
            np.array([same_answer(row.on_phrasing, row.target) for row in rows]),
            np.array([same_answer(row.on_root, row.target) for row in rows]),
            np.array([row.signals for row in rows]).T,
            np.array([row.phrasing_len for row in rows]),
            np.array([row.opening_len for row in rows]),
            np.array([row.num_decoded for row in rows]),
        )

    def where(self, rows: Bools) -> Outcome:
        """Some of the branches."""
        columns: tuple[Any, ...] = self
        return Outcome(*(column[..., rows] for column in columns))

    @property
    def levels(self) -> Integers:
        """Levels of divergence of the templates."""
        return np.array([template.level for template in TEMPLATES])[self.templates]

    def halves(self) -> tuple[Outcome, Outcome]:
        """The branches of the first half of the questions, and those of the second."""
        is_first = self.questions < (self.questions.max() + 1) / 2
        return self.where(is_first), self.where(~is_first)


class Curve(NamedTuple):
    """What thresholds give, from the strictest on: shape (thresholds,) each."""

    thresholds: Floats
    reused: Floats
    agreeing: Floats


def curve(scores: Floats, agrees: Bools) -> Curve:
    """Share of the branches that stay, and of these share whose answers agree, at every threshold."""
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.diff(scores[order], append=-np.inf) < 0)  # of equal scores
    return Curve(scores[order][last], (last + 1) / len(scores), agrees[order].cumsum()[last] / (last + 1))


def recommended(scores: Floats, agrees: Bools, least: float = LEAST) -> float | None:
    """The threshold with the largest reuse of those with so much agreement; None where there is none."""
    found = curve(scores, agrees)
    enough = np.flatnonzero(found.agreeing >= least)
    return float(found.thresholds[enough[-1]]) if len(enough) else None


def prefilled(outcome: Outcome, stays: Bools, asks: bool) -> int:
    """Tokens that branches read.

    Args:
        outcome: The branches.
        stays: Which of them stay on the root's KV.
        asks: Whether each opening is read there first, as by the gate; a branch that stays goes on for one token then.
    """
    on_root = np.ones_like(outcome.opening_len) if asks else outcome.opening_len
    read = np.where(stays, on_root, outcome.phrasing_len + outcome.opening_len)
    return int((read + outcome.opening_len if asks else read).sum())


def gain(outcome: Outcome, scores: Floats) -> Estimate:
    """Agreement of the half with the higher scores over that of all, which is what a random half has."""
    stays = scores >= np.median(scores)

    def figure(rows: Integers) -> float:
        kept = outcome.agrees[rows][stays[rows]]
        return float(kept.mean() - outcome.agrees[rows].mean()) if len(kept) else 0.0

    return resampled_groups(figure, outcome.questions)


def add_share(report: Report, name: str, of: Bools, questions: Integers) -> None:
    """Add a share in percent; of fewer than two questions it has no interval, of none there is none."""
    if len(np.unique(questions)) > 1:
        report.difference(f"{name}, %", of, questions=questions, scale=100)
    elif len(of):
        report.figure(f"{name}, %", 100 * float(of.mean()))


def add_levels(report: Report, outcome: Outcome) -> None:
    """Accuracy on each phrasing and agreement, by level and by template."""
    first = outcome.where(outcome.templates == 0)
    add_share(report, "accuracy on the root", first.root_is_right, first.questions)
    for level, name in enumerate(LEVELS):
        own = outcome.where(outcome.levels == level)
        if level < CHANGES_MEANING:
            add_share(report, f"level {level}, {name}: accuracy on the phrasing", own.is_right, own.questions)
        add_share(report, f"level {level}, {name}: answers agree", own.agrees, own.questions)
    for number, template in enumerate(TEMPLATES):
        own = outcome.where(outcome.templates == number)
        add_share(report, f"{template.name}: answers agree", own.agrees, own.questions)
        for signal, scores in zip(SIGNALS, own.scores, strict=True):
            report.figure(f"{template.name}: {signal}", float(scores.mean()))


def add_signal(report: Report, outcome: Outcome, number: int) -> None:
    """How well a signal tells agreement, and what its best threshold on one half is worth on the other."""
    signal, scores = SIGNALS[number], outcome.scores[number]
    means_the_same = outcome.levels < CHANGES_MEANING
    told = auc_over_all(scores, outcome.agrees, outcome.questions)
    report.figure(f"{signal}: AUC of agreement", *told)
    report.figure(f"{signal}: AUC within a question", *auc_within(scores, outcome.agrees, outcome.questions))
    meant = auc_over_all(scores, means_the_same, outcome.questions)
    report.figure(f"{signal}: AUC of an unchanged meaning", *meant)
    better = gain(outcome, scores)
    report.figure(f"{signal}: its upper half over a random one, points", *(100 * value for value in better))
    fit, test = outcome.halves()
    tau = recommended(fit.scores[number], fit.agrees)
    stays = np.zeros_like(test.agrees) if tau is None else test.scores[number] >= tau
    if tau is not None:
        report.figure(f"{signal}: threshold of the first half", tau)
    add_share(report, f"{signal}: branches of the second half that stay", stays, test.questions)
    add_share(report, f"{signal}: of these agree", test.agrees[stays], test.questions[stays])
    for level in range(len(LEVELS)):
        own = test.levels == level
        add_share(report, f"{signal}: stay at level {level}", stays[own], test.questions[own])
    exact = prefilled(test, np.zeros_like(stays), asks=False)
    saved = 1 - prefilled(test, stays, asks=signal == GATE) / exact
    report.figure(f"{signal}: prefilled tokens saved, %", 100 * saved)
    if signal == GATE:
        report.bar(f"{GATE}: AUC of agreement, lower end", told.low, ">", 0.5)
        report.bar(f"{GATE}: branches that stay at a threshold with {LEAST:.0%} agreement", stays.mean(), ">", 0.0)


def add_sweep(report: Report, outcome: Outcome, number: int) -> None:
    """What each tau lets stay, what agrees of that, and what it saves: the paper's tables 6 to 8."""
    signal, scores = SIGNALS[number], outcome.scores[number]
    exact = prefilled(outcome, np.zeros_like(outcome.agrees), asks=False)
    for tau in TAUS:
        stays, name = scores >= tau, f"{signal}, tau {tau}"
        add_share(report, f"{name}: branches that stay", stays, outcome.questions)
        add_share(report, f"{name}: of these agree", outcome.agrees[stays], outcome.questions[stays])
        saved = 1 - prefilled(outcome, stays, asks=signal == GATE) / exact
        report.figure(f"{name}: prefilled tokens saved, %", 100 * saved)


def add_prize(report: Report, outcome: Outcome) -> None:
    """What reuse could save at most: if every branch stayed, and nobody had to ask."""
    nobody = np.zeros_like(outcome.agrees)
    exact = prefilled(outcome, nobody, asks=False)
    saved = exact - prefilled(outcome, ~nobody, asks=False)
    report.figure("every branch stays: prefilled tokens saved, %", 100 * saved / exact)
    report.figure(
        "every branch stays: computed tokens saved, %", 100 * saved / (exact + int(outcome.num_decoded.sum()))
    )


def plot(figures: Figures, path: Path) -> None:
    """Draw agreement by level, and what each signal is worth: how well it tells agreement, and what it gains."""
    levels = {
        name: share
        for level, name in enumerate(LEVELS)
        if (share := of(figures, f"level {level}, {name}: answers agree, %")) is not None
    }
    with drawing(path, 1, 3, figsize=(16, 4.4)) as (figure, (left, middle, right)):
        rows(left, levels)
        left.set_xlim(0, 102)
        left.set(xlabel="answers that agree, %")
        left.set_title(f"Reuse is good where answers agree:\nnear {LEAST:.0%}, the dashed line")
        left.axvline(100 * LEAST, color="0.5", linestyle="--", lw=0.8)
        for number, (what, shape) in enumerate(AUCS.items()):
            for place, signal in enumerate(SIGNALS):
                auc = of(figures, f"{signal}: {what}")
                if auc is not None:
                    label = None if place else what
                    at = place + 0.2 * (number - 1)
                    middle.errorbar(
                        auc.value, at, xerr=bars_of([auc]), fmt=shape, color=f"C{number}", label=label, clip_on=False
                    )
        middle.set_yticks(range(len(SIGNALS)), map(_shown, SIGNALS))
        middle.set_ylim(len(SIGNALS) - 0.5, -0.5)
        middle.axvline(0.5, color="0.5", linestyle="--", lw=0.8)
        middle.set_xlim(0, 1)
        middle.set(xlabel="AUC")
        middle.set_title("A signal tells something where its interval\nlies right of the dashed line, a coin's 0.5")
        gains = {signal: of(figures, f"{signal}: its upper half over a random one, points") for signal in SIGNALS}
        rows(right, {_shown(signal): gain for signal, gain in gains.items() if gain is not None})
        right.axvline(0, color="0.5", linestyle="--", lw=0.8)
        right.set(xlabel="agreement of its upper half over a random half, points")
        right.set_title("A signal is worth something where its interval\nlies right of the dashed line")
        below(figure, middle, len(AUCS))


def _shown(signal: str) -> str:
    return f"the gate:\n{signal}" if signal == GATE else signal


def measured(lab: Lab, phraser: Phraser, samples: Sequence[Example]) -> list[Row]:
    """Every question in every phrasing, in blocks that are kept."""
    rows: list[Row] = []
    for start in track(range(0, len(samples), BLOCK), "blocks"):
        block = samples[start : start + BLOCK]
        name = f"seed{lab.seed}_{start}_{len(block)}"
        found: list[Any] = lab.stored(name, functools.partial(phraser.rows, block, start))
        rows += [Row(*row) for row in found]
    return rows


@benchmark("studies.phrasings --store runs/phrasings --plot_path runs/phrasings.png")
@size("--num_questions", 240, quick=4, help="Questions.", least=4)
@size("--max_tokens", 700, quick=60, help="Budget of a branch.")
@click.option("--model", default="tinylm/target", show_default=True, help="Embedded model or folder.")
@click.option("--dataset", type=DATA, help="Questions, as JSON lines; none: held-out problems of the embedded models.")
@click.option("--format", "kind", default="math500", show_default=True, help="How the dataset's rows are written.")
@click.option("--ending", help="Asks every branch for its answer, up to `$` or the line's end; none: it is extracted.")
@stored
@plotted
def main(
    report: Report,
    num_questions: int,
    max_tokens: int,
    model: str,
    dataset: Path | None,
    kind: str,
    ending: str | None,
    store: Path | None,
    plot_path: Path | None,
) -> None:
    """Branches with other phrasings: answers on the root's KV against exact ones, and what foretells agreement."""
    if dataset is None:
        samples = load_dataset("tinylm:held_out", num_samples=num_questions, seed=report.seed)
        openings: Sequence[str] = FIRST_PASSES
    else:
        samples = shuffled(load_dataset(str(dataset), format=kind), num_questions, report.seed)
        openings = hints_of("mathematics")
    with Lab({WORKER: model}, seed=report.seed, store=store) as lab:
        outcome = Outcome.of(measured(lab, Phraser(lab, model, openings[:NUM_OPENINGS], max_tokens, ending), samples))
    report.figure("questions", len(samples))
    add_levels(report, outcome)
    add_share(report, "every branch stays: answers agree", outcome.agrees, outcome.questions)
    for number in range(len(SIGNALS)):
        add_signal(report, outcome, number)
        if SIGNALS[number].startswith("eq. 2"):
            add_sweep(report, outcome, number)
    add_prize(report, outcome)
    if plot_path is not None:
        plot(report.figures, plot_path)


if __name__ == "__main__":
    main()
