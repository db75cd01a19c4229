"""Runs that stop when their result is known: false stops and spared questions, in random orders of recorded runs.

    python -m benchmarks.studies.until --data FOLDER

A set is its questions and several runs: each recorded answer of a question is one run's, and so are votes of eight. An
order draws a run (two for a comparison) and shuffles the questions. The stop of `eval --until` is false if the accuracy
of all questions is further away than the margin, or if the comparison has another outcome on all questions. Beside it
stands what one would do by hand: look at the usual 95 % interval after each question, from the 30th on.

Both intervals know that the set is finite. Without a gold answer, an answer is right if it is that of the vote of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks._lib.command import benchmark, recorded, size, track
from benchmarks._lib.report import Report
from benchmarks.studies.real import CONSOL, EPOCH
from scaffolding_ext.controllers.vote.voting import vote
from scaffolding_ext.evaluation.logs.read import read_log, read_recording
from scaffolding_ext.evaluation.logs.samples import Floats, Recording
from scaffolding_ext.evaluation.run.until import UntilGoal, UntilKnown
from scaffolding_ext.stats.intervals import Interval
from scaffolding_ext.stats.resampling import critical_value

Table = Floats  # right answers, shape [num_runs, num_questions]
TASKS = {"gpt-4o-mini, GSM8K": "gsm", "gpt-4o-mini, MedQA": "medqa"}
GPQA = "frontier models, GPQA Diamond"
POINTS, LEVEL = (2, 3, 5), 0.05
NUM_VOTING, FIRST_LOOK = 8, 30


class Stopped(NamedTuple):
    """Questions asked until a rule stopped, and True if its conclusion does not hold for all questions."""

    num_asked: int
    is_false: bool


def voted(recording: Recording) -> Table:
    """Each answer of a question as a run, and disjoint votes of eight."""
    columns = []
    for each in recording.questions:
        starts = range(0, each.num_samples - NUM_VOTING + 1, NUM_VOTING)
        winners = [vote(each.classes[start : start + NUM_VOTING].tolist()) for start in starts]
        votes = [each.correct[each.classes == winner].any() for winner in winners]
        columns.append(np.array([*each.correct, *votes], dtype=float))
    return np.column_stack(columns)


def read_sets(data: Path) -> Iterator[tuple[str, Table]]:
    """The three recorded sets: two of one model, and one of many."""
    for name, task in TASKS.items():
        yield name, voted(read_recording([data / CONSOL], task=task))
    runs: dict[tuple[str, int], dict[str, float]] = {}
    for each in read_log(data / EPOCH).questions:
        if each.task == "GPQA Diamond":
            for epoch, sample in enumerate(each.samples[:NUM_VOTING]):
                runs.setdefault((each.run, epoch), {})[each.id] = float(bool(sample.correct))
    most = max(map(len, runs.values()))
    whole = [run for run in runs.values() if len(run) == most]
    yield GPQA, np.array([[run[question] for question in whole[0]] for run in whole])


def is_false(conclusion: str | None, estimate: float, truth: float, margin: float) -> bool:
    """Return True if a conclusion does not hold for all questions."""
    tiny = 1e-9
    return {
        None: False,
        "known": abs(estimate - truth) > margin + tiny,
        "better": truth <= tiny,
        "worse": truth >= -tiny,
        "within": abs(truth) > margin + tiny,
    }[conclusion]


def until_known(goal: UntilGoal, ours: Floats, theirs: Floats | None) -> Stopped:
    """Ask questions in their order until the rule of `eval --until` stops."""
    ids = [str(number) for number in range(len(ours))]
    stop = UntilKnown(goal, ids, baseline=None if theirs is None else dict(zip(ids, theirs.tolist(), strict=True)))
    for identity, right in zip(ids, ours.tolist(), strict=True):
        stop.add(identity, right)
        if stop.is_settled:
            break
    truth = float((ours if theirs is None else ours - theirs).mean())
    return Stopped(stop.num_counted, is_false(stop.conclusion, stop.figures()["estimate"]["value"], truth, goal.margin))


def by_usual_interval(goal: UntilGoal, ours: Floats, theirs: Floats | None) -> Stopped:
    """Look at the usual interval after each question: Wilson's, or that of the mean difference."""
    values = ours if theirs is None else ours - theirs
    total, z, margin = len(values), critical_value(1 - LEVEL), goal.margin
    asked = np.arange(1, total + 1)
    means = np.cumsum(values) / asked
    left = np.maximum(total - asked, 1e-9) / max(1, total - 1)
    if theirs is None:
        sizes = asked / left
        scale = 1 + z * z / sizes
        centre = (means + z * z / (2 * sizes)) / scale
        half = z / scale * np.sqrt(means * (1 - means) / sizes + (z / (2 * sizes)) ** 2)
        ends = Interval(centre - half, centre + half)  # type: ignore[arg-type]
        settled = np.maximum(ends.high - means, means - ends.low) <= margin
    else:
        variances = np.cumsum(values**2) / asked - means**2
        half = z * np.sqrt(np.maximum(variances, 0) * left / asked)
        ends = Interval(means - half, means + half)  # type: ignore[arg-type]
        settled = (ends.low > 0) | (ends.high < 0) | ((ends.low >= -margin) & (ends.high <= margin))
    settled[: FIRST_LOOK - 1] = False
    settled[-1] = True
    place = int(np.argmax(settled))
    low, high = float(np.asarray(ends.low)[place]), float(np.asarray(ends.high)[place])
    if theirs is None:
        conclusion = "known"
    elif -margin <= low and high <= margin:
        conclusion = "within"
    else:
        conclusion = "better" if low > 0 else "worse" if high < 0 else None
    return Stopped(place + 1, is_false(conclusion, float(means[place]), float(values.mean()), margin))


RULES = {"until": until_known, "usual interval": by_usual_interval}


@benchmark("studies.until --data FOLDER")
@recorded
@size("--num_orders", 1_000, quick=5, help="Orders of each set and goal.", least=2)
def main(report: Report, data: Path, num_orders: int) -> None:
    """False stops and spared questions of `eval --until` in random orders of recorded runs."""
    for name, right in read_sets(data):
        num_runs, num_questions = right.shape
        report.figure(f"{name}: questions", num_questions)
        report.figure(f"{name}: runs", num_runs)
        for points in POINTS:
            for what, num_drawn in (("accuracy", 1), ("comparison", 2)):
                goal = UntilGoal(points / 100, None if num_drawn == 1 else "another")
                found: dict[str, list[Stopped]] = {rule: [] for rule in RULES}
                for _ in track(range(num_orders), f"{name}, {points} points"):
                    order = report.rng.permutation(num_questions)
                    ours, *theirs = right[report.rng.choice(num_runs, num_drawn, replace=False)][:, order]
                    for rule, play in RULES.items():
                        found[rule].append(play(goal, ours, theirs[0] if theirs else None))
                title = f"{name}: {what} to {points} points"
                for rule, stopped in found.items():
                    num_false = sum(each.is_false for each in stopped)
                    report.share(f"{title}: {rule}: false stops", num_false, num_orders)
                    spared = [1 - each.num_asked / num_questions for each in stopped]
                    middle = np.quantile(spared, (LEVEL / 2, 1 - LEVEL / 2)).tolist()
                    report.figure(f"{title}: {rule}: questions spared", float(np.mean(spared)), *middle)
                    if rule == "until":
                        report.bar(f"{title}: share of false stops", num_false / num_orders, "<=", LEVEL)


if __name__ == "__main__":
    main()
