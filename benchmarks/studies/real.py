"""Measures savings on recorded samples of real models: every row is a call of `Replay`, and runs no model.

    python -m benchmarks.studies.real --data FOLDER --part votes --json

FOLDER holds the recordings (`SETS` names their files). Without it, samples are simulated.

*votes*: for each set the choice of `tune`, judged on questions or runs that did not choose, beside one sample, plain
votes of as many tokens, Adaptive-Consistency .90, doubling, the oracle and our default; what weights give; and which
default of `LeaderChange` is best over all sets. *confirmed*: half of each set's questions (and runs) choose the default
and the tuned setting, and the other half, kept back by a hash, judges them. *runs*: the default and
Adaptive-Consistency .90 on each run that has tokens. *chains*: stops and cuts of thinking chains, and votes weighed by
the probability of the asked answer. *budgets*: one budget for all questions. *loops*: chains that repeat themselves.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from benchmarks._lib.command import benchmark, plotted, size
from benchmarks._lib.drawing import Figures, below, drawing
from benchmarks._lib.power import required_num_questions
from benchmarks._lib.report import Report
from benchmarks._lib.skyline import skyline
from benchmarks._lib.spend import spend
from benchmarks._lib.stops import add_stops
from scaffolding_ext.answers import extract
from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.controllers.repetition import CHARACTERS, Loops
from scaffolding_ext.controllers.vote.allocation.adaptive_consistency import BetaConsistency
from scaffolding_ext.controllers.vote.allocation.agreement import AgreementDoubling
from scaffolding_ext.controllers.vote.allocation.base import Votes
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.controllers.vote.voting import elect, vote
from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.evaluation.logs.samples import Looks, RecordedQuestion, Recording
from scaffolding_ext.evaluation.run.jsonl import read_rows
from scaffolding_ext.evaluation.run.spending import unsettledness
from scaffolding_ext.evaluation.tune.choose import (
    Cheapest,
    MostAccurate,
    chosen,
    cross_validated,
)
from scaffolding_ext.evaluation.tune.costs import Cost
from scaffolding_ext.evaluation.tune.endings import Cut, Stopped, Whole
from scaffolding_ext.evaluation.tune.replay import PLAIN_VOTES, Replay
from scaffolding_ext.evaluation.tune.space import Setting, labelled_votes, numbers_to_try
from scaffolding_ext.evaluation.tune.table import baselines
from scaffolding_ext.evaluation.tune.votes import ReplayResult

EPOCH, CONSOL = "epoch_votes.jsonl.gz", "consol_votes.jsonl.gz"
R1, GEMMA = "r1_distill_8b_math500_80_samples.jsonl.gz", "gemma4_12b_probes.jsonl.gz"
TEXTS = "r1_distill_8b_math500_draft_only.jsonl.gz"
AIME, GPQA = "OTIS Mock AIME, 8", "GPQA Diamond, 8"
R1_AT_16 = "R1-Distill-8B, MATH-500, 16"
SETS = {
    AIME: (EPOCH, "OTIS", 8),
    GPQA: (EPOCH, "GPQA", 8),
    R1_AT_16: (R1, None, 16),
    "R1-Distill-8B, MATH-500, 64": (R1, None, 64),
    "gpt-4o-mini, GSM8K, 40": (CONSOL, "gsm", 40),
    "gpt-4o-mini, MedQA, 40": (CONSOL, "medqa", 40),
}
DEFAULT_SETS = (AIME, GPQA, R1_AT_16, "gpt-4o-mini, GSM8K, 40", "simulated")
MAX_LOSS = 0.003
BAR = -0.01  # accuracy over the full vote, whose lower end the power is about
DEFAULT_LOSS = 0.205  # points: 0.2, rounded to two digits
GRID = [
    LeaderChange(miss=miss, concentration=concentration, leap=leap)
    for concentration in (0.5, 1.0, 2.0)
    for leap in (1.0, 2.0)
    for miss in (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)
]
DEFAULT, TUNED = "default", "chosen"
ANEW = "default chosen anew"
SEQUENTIAL, DOUBLING = "Adaptive-Consistency .90", "doubling until .75 agree"
SIMULATED = "simulated"
RANDOM_SET, SELECTED_SET = "gpqa_diamond_gemma4_12b_seed0", "matched_controls_gemma4_12b"
TASKS = {"GPQA": "gpqa_diamond", "MMLU-Pro": "mmlu_pro"}
BUDGET = 0.25  # of the tokens of all chains
BUDGETS = (0.1, 0.2, 0.3, 0.5)
STOPPED = "even with a stop"
LOOP_STEP = 64 * CHARACTERS


def simulated_recording(num_questions: int, rng: np.random.Generator, num_samples: int = 16) -> Recording:
    """Votes whose questions have a chance of .2 to 1; wrong samples scatter over four answers, one in 20 has none.

    Every chain has looks at its tenths. At each tenth it already gives its last answer with that probability.
    """
    questions = []
    for number in range(num_questions):
        right = rng.random(num_samples) < rng.uniform(0.2, 1.0)
        classes = np.where(right, 0, rng.integers(1, 5, num_samples))
        classes[rng.random(num_samples) < 0.05] = -1
        tokens = 10 * rng.integers(10, 50, num_samples)
        looks = [
            _simulated_looks(own, length, rng) for own, length in zip(classes.tolist(), tokens.tolist(), strict=True)
        ]
        missing: Any = frozenset({"seconds", "logprobs", "rewards"})
        questions.append(
            RecordedQuestion(
                f"q{number}",
                SIMULATED,
                SIMULATED,
                classes,
                classes == 0,
                0,
                tokens,
                looks=looks,
                missing=missing,
            )
        )
    return Recording(questions, [SIMULATED], "sha256:simulated")


def _simulated_looks(answer_class: int, length: int, rng: np.random.Generator) -> Looks:
    probes, forced = [], []
    for tenth in range(1, 11):
        own = answer_class if rng.random() < tenth / 10 else int(rng.integers(0, 5))
        logprobs = (float(np.log(rng.uniform(0.3, 1.0))),)
        probes.append(
            Probe(
                Prefix(length * tenth // 10, "", None, None), str(own), own, False, str(own), answer_logprobs=logprobs
            )
        )
        forced.append(own)
    ones = np.ones(10, dtype=np.int64)
    return Looks(probes, np.array(forced), ones, ones, length)


def recordings(data: Path | None, num_simulated: int, rng: np.random.Generator) -> Iterator[tuple[str, Recording]]:
    """The recordings of the folder, by name; simulated votes without one."""
    if data is None:
        yield SIMULATED, simulated_recording(num_simulated, rng)
        return
    for name, (file, task, num_samples) in SETS.items():
        yield name, read_recording([data / file], task=task, num_samples=num_samples)


# ---- votes


def crossing(trial: Replay) -> Any:
    """The question of each row of a trial whose runs are resampled; None where questions are resampled anyway."""
    return [each.id for each in trial.recording.questions] if trial.by_run else None


def add_row(report: Report, name: str, played: ReplayResult, trial: Replay) -> None:
    """Accuracy, tokens, points over the full vote and rounds; questions are resampled, and runs where there are."""
    full, groups, second = trial.full, trial.groups, crossing(trial)
    report.difference(f"{name}: right", played.right, questions=groups, crossing=second)
    report.ratio(
        f"{name}: tokens, share of all", played.costs["decoded"], full.costs["decoded"], groups, crossing=second
    )
    report.difference(f"{name}: points", played.right, full.right, groups, scale=100, crossing=second)
    report.figure(f"{name}: rounds", float(played.rounds.mean()))


def add_over(report: Report, said: str, ours: ReplayResult, theirs: ReplayResult, trial: Replay) -> None:
    """Points of one way to answer over another; resampled as in `add_row`."""
    report.difference(said, ours.right, theirs.right, trial.groups, scale=100, crossing=crossing(trial))


def add_power(report: Report, name: str, played: ReplayResult, trial: Replay) -> None:
    """Add the number of questions, or runs of all questions, that show with power .9 that less than a point is lost."""
    differences = played.right - trial.full.right
    unit = "runs" if trial.by_run else "questions"
    if np.ptp(np.bincount(trial.groups, differences)) > 0:
        needed = required_num_questions(differences, trial.groups, bar=BAR, max_num_questions=100_000, rng=report.rng)
        if needed is not None:
            report.figure(f"{name}: {unit} for power .9 at {100 * BAR:g} points", needed)


def plain_vote_of(trial: Replay, tokens: float) -> ReplayResult:
    """The plain vote that takes so many tokens: by lot one of the two next numbers of samples."""
    played = [trial.play(Setting(Whole(), number)) for number in range(1, trial.recording.num_samples + 1)]
    totals = np.array([each.costs["decoded"].sum() for each in played])
    place = int(np.clip(np.searchsorted(totals, tokens), 1, len(totals) - 1))
    share = float(np.clip((tokens - totals[place - 1]) / (totals[place] - totals[place - 1]), 0, 1))
    fewer, more = played[place - 1], played[place]

    def mixed(low: Any, high: Any) -> Any:
        return (1 - share) * low + share * high

    costs: dict[Cost, Any] = {"decoded": mixed(fewer.costs["decoded"], more.costs["decoded"])}
    names = [field.name for field in dataclasses.fields(ReplayResult) if field.name != "costs"]
    return ReplayResult(costs=costs, **{name: mixed(getattr(fewer, name), getattr(more, name)) for name in names})


def add_votes(report: Report, name: str, recording: Recording) -> tuple[list[float], list[float]]:
    """Every row of one set; shares and losses (points) of the settings of `GRID`."""
    goal, num_samples = Cheapest(MAX_LOSS), recording.num_samples
    trial = Replay(recording)
    trial.try_all()
    report.figure(f"{name}: questions", len(recording.questions))
    report.figure(f"{name}: groups", int(trial.groups.max()) + 1)
    rows = baselines(trial, goal) | {
        DEFAULT: trial.play(Setting(Whole(), num_samples, LeaderChange())),
        TUNED: cross_validated(trial, goal),
        **{f"vote of {each}": trial.play(Setting(Whole(), each)) for each in numbers_to_try(num_samples)},
    }
    for row, played in rows.items():
        add_row(report, f"{name}: {row}", played, trial)
    chosen = rows[TUNED]
    as_many = plain_vote_of(trial, float(chosen.costs["decoded"].sum()))
    add_row(report, f"{name}: plain vote of as many tokens", as_many, trial)
    add_over(report, f"{name}: {TUNED} over a plain vote of as many tokens, points", chosen, as_many, trial)
    for row in (DEFAULT, TUNED):
        add_power(report, f"{name}: {row}", rows[row], trial)
    low = report.figures[f"{name}: {TUNED}: points"]["low"]
    report.bar(f"{name}: {TUNED}: points, lower end", np.nan if low is None else low, ">=", 100 * BAR)
    tokens = report.figures[f"{name}: {TUNED}: tokens, share of all"]["value"]
    rival = report.figures[f"{name}: {SEQUENTIAL}: tokens, share of all"]["value"]
    report.bar(f"{name}: {TUNED}: tokens beside Adaptive-Consistency .90", tokens / rival, "<=", 1.0)
    for weight in trial.votes.samples.weights:
        ending = Whole(is_asked=weight == "answer_probability")
        ours, plain = (trial.play(Setting(ending, num_samples, weight=each)) for each in (weight, None))
        row = f"{name}: vote of {num_samples} by {weight}: points over the plain vote"
        add_over(report, row, ours, plain, trial)
    return grid_of(trial)


def grid_of(trial: Replay) -> tuple[list[float], list[float]]:
    """Shares of the tokens, and losses in points, of the settings of `GRID`."""
    played = [trial.play(Setting(Whole(), trial.recording.num_samples, rule)) for rule in GRID]
    full = trial.full.costs["decoded"].sum()
    return (
        [float(each.costs["decoded"].sum() / full) for each in played],
        [100 * float((trial.full.right - each.right).mean()) for each in played],
    )


def add_best_default(report: Report, grid: Mapping[str, tuple[list[float], list[float]]]) -> LeaderChange:
    """The setting of `GRID` that is cheapest over `DEFAULT_SETS`, and loses at most 0.2 points on each."""
    shares, losses = (np.array([each[place] for each in grid.values()]) for place in (0, 1))
    means = np.where((losses <= DEFAULT_LOSS).all(axis=0), shares.mean(axis=0), np.inf)
    best = int(np.argmin(means))
    for field in ("miss", "concentration", "leap"):
        report.figure(f"best default: {field}", getattr(GRID[best], field))
    report.figure("best default: tokens, share of all, mean over the sets", float(shares.mean(axis=0)[best]))
    return GRID[best]


def votes(report: Report, data: Path | None, num_simulated: int) -> None:
    """All sets."""
    grid = {}
    for name, recording in recordings(data, num_simulated, report.rng):
        found = add_votes(report, name, recording)
        if name in DEFAULT_SETS:
            grid[name] = found
    add_best_default(report, grid)


def evenness(votes: Votes) -> tuple[float, float]:
    """Give all questions as many samples, in turn."""
    return len(votes.classes), 0.0


def is_kept_back(name: str) -> bool:
    """True if a question or a run is of the half that is kept back, by nothing but its name."""
    return hashlib.sha256(f"kept back: {name}".encode()).digest()[0] % 2 == 0


def halves(recording: Recording) -> tuple[Recording, Recording]:
    """The part that chooses, and the part that judges: they share no question, and no run where there are several."""
    by_run = len(set(recording.runs)) > 1
    parts: tuple[list[int], list[int]] = ([], [])
    for index, question in enumerate(recording.questions):
        is_kept = is_kept_back(question.id)
        if not by_run or is_kept_back(question.run) == is_kept:
            parts[is_kept].append(index)
    choosing, judging = (recording.taking(part) for part in parts)
    return choosing, judging


def confirmed(report: Report, data: Path | None, num_simulated: int) -> None:
    """The default and the tuned setting, chosen anew on one half of each set, and judged on the other half."""
    goal, grid, judges = Cheapest(MAX_LOSS), {}, {}
    for name, recording in recordings(data, num_simulated, report.rng):
        choosing, judging = halves(recording)
        trial = Replay(choosing)
        trial.try_all()
        if name in DEFAULT_SETS:
            grid[name] = grid_of(trial)
        judges[name] = Replay(judging), chosen(trial, goal) or trial.all_samples
    default = add_best_default(report, grid)
    for name, (trial, tuned) in judges.items():
        number = trial.recording.num_samples
        report.figure(f"{name}: questions", len(trial.recording.questions))
        report.figure(f"{name}: groups", int(trial.groups.max()) + 1)
        rows = {
            "one sample": trial.play(Setting(Whole(), 1)),
            SEQUENTIAL: trial.play(Setting(Whole(), number, BetaConsistency(confidence=0.9))),
            DOUBLING: trial.play(Setting(Whole(), number, AgreementDoubling())),
            DEFAULT: trial.play(Setting(Whole(), number, LeaderChange())),
            ANEW: trial.play(Setting(Whole(), number, default)),
            TUNED: trial.play(tuned),
            "oracle (limit)": trial.of_sizes(trial.votes.until_settled),
        }
        for row in (ANEW, TUNED):
            tokens = float(rows[row].costs["decoded"].sum())
            rows[f"plain vote of as many tokens as {row}"] = plain_vote_of(trial, tokens)
        for row, played in rows.items():
            add_row(report, f"{name}: {row}", played, trial)
        report.setting[f"{name}: {TUNED}"] = str(tuned)


def runs(report: Report, data: Path | None, num_simulated: int) -> None:
    """The default and Adaptive-Consistency .90 on each run that has tokens: a dot a run."""
    if data is None:
        trials = [(SIMULATED, Replay(simulated_recording(num_simulated, report.rng)))]
    else:
        every = [
            (task, read_recording([data / EPOCH], task=task, num_samples=number))
            for task, number in (("OTIS", 8), ("OTIS", 4), ("GPQA", 8))
        ]
        trials = [(task, Replay(recording)) for task, recording in every]
    seen, found = set[str](), []
    for task, trial in trials:
        number = trial.recording.num_samples
        played = trial.play(Setting(Whole(), number, LeaderChange()))
        rival = trial.play(Setting(Whole(), number, BetaConsistency(confidence=0.9)))
        for run in sorted(set(trial.recording.runs) - seen):
            seen.add(run)
            own = (np.array(trial.recording.runs) == run) & (trial.full.costs["decoded"] > 0)
            name = f"{task}, {number} samples, {run}"
            full = trial.full.costs["decoded"][own]
            share = report.ratio(f"{name}: tokens, share of all", played.costs["decoded"][own], full)
            points = report.difference(f"{name}: points", played.right[own], trial.full.right[own], scale=100)
            found.append((share.value, points.value))
            name = f"{name}: {SEQUENTIAL}"
            report.ratio(f"{name}: tokens, share of all", rival.costs["decoded"][own], full)
            report.difference(f"{name}: points", rival.right[own], trial.full.right[own], scale=100)
    report.figure("runs", len(found))
    report.figure("least share of tokens", min(share for share, _ in found))
    report.figure("most share of tokens", max(share for share, _ in found))
    report.figure("runs that lose more than half a point", sum(points < -0.5 for _, points in found))


# ---- chains


def only(recording: Recording, run: str) -> Recording:
    """The questions of one run."""
    return recording.taking([index for index, own in enumerate(recording.runs) if own == run])


class Tenths(NamedTuple):
    """Right plain and weighed votes at each look; shapes [num_questions, num_looks]."""

    plain: Any
    weighed: Any


def votes_at_looks(recording: Recording) -> Tenths:
    """Votes over the answers that the chains give at each look, plain and by their probabilities."""
    plain, weighed = [], []
    for question in recording.questions:
        looks = question.looks or ()
        rows = []
        for place in range(1, min(len(each.probes) for each in looks)):
            probes = [each.probes[place] for each in looks]
            classes = [probe.answer_class for probe in probes]
            weights = [probe.confidence or 0.0 for probe in probes]
            rows.append((vote(classes) == question.target, elect(classes, weights).winner == question.target))
        plain.append([float(each[0]) for each in rows])
        weighed.append([float(each[1]) for each in rows])
    num_looks = min(map(len, plain))
    return Tenths(*(np.array([each[:num_looks] for each in rows]) for rows in (plain, weighed)))


def add_weighed(report: Report, name: str, recording: Recording) -> None:
    """Weighed votes of cut chains."""
    found = votes_at_looks(recording)
    for place in range(found.plain.shape[1]):
        plain, weighed, row = found.plain[:, place], found.weighed[:, place], f"{name}: all, look {place + 1}"
        report.difference(f"{row}: plain vote: right", plain)
        report.difference(f"{row}: weighed over plain, points", weighed, plain, scale=100)
        report.figure(f"{row}: votes that become right", float((weighed > plain).sum()))
        report.figure(f"{row}: votes that become wrong", float((weighed < plain).sum()))
    tokens = np.concatenate([each.tokens for each in recording.questions])
    report.figure(f"{name}: a token a chain that asking takes at least, share", float(1 / tokens.mean()))


def add_quarter(report: Report, name: str, recording: Recording) -> None:
    """Add the choice of `tune` at a quarter of the tokens, cross-fitted, beside cut, stop and plain vote."""
    trial, goal = Replay(recording), MostAccurate(BUDGET)
    trial.try_all()
    own: dict[str, dict[str, list[Setting]]] = {"chosen": {}, "plain vote": {}, "cut": {}, "stop": {}}
    own["chosen"] = trial.lists
    own["plain vote"] = {PLAIN_VOTES: trial.lists[PLAIN_VOTES]}
    for title, settings in trial.lists.items():
        is_plain = all(each.weight is None and each.rule is None for each in settings)
        for kind, ending in (("cut", Cut), ("stop", Stopped)):
            if is_plain and all(isinstance(each.ending, ending) for each in settings):
                own[kind][title] = settings
    of_kind = {kind: cross_validated(trial, goal, lists) for kind, lists in own.items() if lists}
    number = recording.num_samples
    for row, played in {
        "one chain": trial.play(Setting(Whole(), 1)),
        "all chains": trial.full,
        SEQUENTIAL: trial.play(Setting(Whole(), number, BetaConsistency(confidence=0.9))),
        "oracle (limit)": trial.of_sizes(trial.votes.until_settled),
    }.items():
        add_row(report, f"{name}: {row}", played, trial)
    for kind, played in of_kind.items():
        add_row(report, f"{name}: a quarter of the tokens, {kind}", played, trial)
        if kind != "chosen":
            row = f"{name}: a quarter of the tokens, chosen over {kind}, points"
            found = report.difference(row, of_kind["chosen"].right, played.right, trial.groups, scale=100)
            report.bar(row, found.value, ">=", -(found.high - found.low) / 4)  # no more than a standard error below


def chains(report: Report, data: Path | None, num_simulated: int) -> None:
    """Gemma-4-12B: stops and cuts on a random set, weighed votes on selected questions."""
    if data is None:
        drawn = simulated_recording(num_simulated, report.rng)
        add_stops(report, SIMULATED, drawn.first(1))
        add_weighed(report, SIMULATED, drawn)
        add_quarter(report, SIMULATED, drawn)
        return
    add_stops(report, "GPQA", only(read_recording([data / GEMMA], run=RANDOM_SET, num_samples=1), RANDOM_SET))
    for name, task in TASKS.items():
        recording = only(read_recording([data / GEMMA], task=task, run=SELECTED_SET, num_samples=10), SELECTED_SET)
        add_weighed(report, name, recording)
        add_quarter(report, name, recording)


# ---- budgets


def budgets(report: Report, data: Path | None, num_simulated: int) -> None:
    """One budget for the votes of all questions: by certaindex, evenly, and by an oracle; mean over orders, and one."""
    num_orders = 4 if data is None else 40
    recording = (
        simulated_recording(num_simulated, report.rng) if data is None else read_recording([data / R1], num_samples=16)
    )
    drawn = labelled_votes(recording)
    orders = [
        [each.reordered(report.rng.permutation(len(each.classes)).tolist()) for each in drawn]
        for _ in range(num_orders)
    ]
    rule, total = LeaderChange(), sum(sum(each.lengths) for each in drawn)
    buyers: Mapping[str, Any] = {
        "even": lambda votes, budget: spend(votes, budget, evenness),
        STOPPED: lambda votes, budget: spend(votes, budget, evenness, rule),
        "certaindex": lambda votes, budget: spend(votes, budget, unsettledness, rule),
        "oracle": skyline,
    }
    for share in BUDGETS:
        right = {
            name: np.array(
                [
                    [float(each.is_right(num)) for each, num in zip(own, buyer(own, share * total), strict=True)]
                    for own in orders
                ]
            )
            for name, buyer in buyers.items()
        }
        report.difference(
            f"certaindex at {share:.0%}: points over {STOPPED}, mean of orders",
            100 * (right["certaindex"] - right[STOPPED]).mean(axis=0),
        )
        for name, own in right.items():
            report.difference(f"{name} at {share:.0%}: right, %", own.mean(axis=0), scale=100)
            if name != "even":
                gained = 100 * (own - right["even"])
                report.difference(f"{name} at {share:.0%}: points over even, mean of orders", gained.mean(axis=0))
                once = gained.mean(axis=1)
                report.figure(
                    f"{name} at {share:.0%}: points over even, one run of ten is below", float(np.quantile(once, 0.1))
                )
                report.figure(
                    f"{name} at {share:.0%}: points over even, one run of ten is above", float(np.quantile(once, 0.9))
                )


# ---- loops


def loops(report: Report, data: Path | None, num_simulated: int) -> None:
    """Report the places at which the watch for loops stops recorded chains, and the answers behind them."""
    if data is None:
        texts = ["The sum is 7. " * 400, "So x = 2. \\boxed{2}"] * num_simulated
        questions = [str(number // 2) for number in range(len(texts))]
    else:
        rows = [row.value for row in read_rows(data / TEXTS, "log")]
        texts = ["".join((turn["draft"] or "") + (turn["target"] or "") for turn in row["turns"]) for row in rows]
        questions = [str(row["question"]) for row in rows]
    watch, ends = Loops(), []
    reach = watch.reach * CHARACTERS
    for text in texts:
        places = range(LOOP_STEP, len(text) + 1, LOOP_STEP)
        ends.append(next((end for end in places if watch.find(text[max(0, end - reach) : end]) is not None), None))
    stopped = [(text, end) for text, end in zip(texts, ends, strict=True) if end is not None]
    lengths = np.array([len(text) for text in texts])
    saved = np.array([0 if end is None else len(text) - end for text, end in zip(texts, ends, strict=True)])
    # the cut at one length that saves as much text
    cut = next(cut for cut in range(int(lengths.max()), 0, -1) if np.maximum(0, lengths - cut).sum() >= saved.sum())
    report.share("chains that are stopped", len(stopped), len(texts))
    report.share("chains that a cut ends", int((lengths > cut).sum()), len(texts))
    report.share("answers lost, of all chains", _num_lost(stopped), len(texts))
    report.share("answers lost by a cut", _num_lost([(text, cut) for text in texts]), len(texts))
    report.ratio("characters saved, share", saved, lengths, questions)
    report.bar("answers lost", _num_lost(stopped), "<=", 0)


def _num_lost(ended: Sequence[tuple[str, int]]) -> int:
    """Chains whose answer stands behind the place where they end."""
    return sum("\\boxed{" in text[end:] and extract(text) is not None for text, end in ended)


# ---- picture


def plot(figures: Figures, path: Path) -> None:
    """A dot a run: points over the full vote against the share of tokens, our default and Adaptive-Consistency."""
    ends = (": points", ": tokens, share of all")
    names = sorted({name.removesuffix(end) for name in figures for end in ends if name.endswith(end)})
    with drawing(path, 1, 1, figsize=(9, 4.4)) as (figure, axes):
        for is_rival, label in ((True, SEQUENTIAL), (False, "ours, default")):
            own = [name for name in names if name.endswith(SEQUENTIAL) == is_rival]
            points, tokens = ([figures[name + end]["value"] for name in own] for end in ends)
            axes.plot([100 * each for each in tokens], points, "o", label=label, markersize=6, alpha=0.7)
        axes.axhline(0, color="0.6", linewidth=1)
        axes.set(xlabel="decoded tokens, % of all samples", ylabel="points over the vote of all")
        axes.set_title(f"{figures['runs']['value']:.0f} runs of frontier models: a dot a run")
        below(figure, axes, 2)


PARTS = {"votes": votes, "confirmed": confirmed, "runs": runs, "chains": chains, "budgets": budgets, "loops": loops}


@benchmark("studies.real --data FOLDER --part votes")
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of the recordings.")
@click.option("--part", "parts", type=click.Choice(list(PARTS)), multiple=True, help="May be repeated.  [default: all]")
@size("--num_simulated", 100, quick=12, help="Questions that are simulated where there is no folder.", least=2)
@plotted
def main(report: Report, data: Path | None, parts: Sequence[str], num_simulated: int, plot_path: Path | None) -> None:
    """Measure savings on recorded samples of real models."""
    report.setting["data"] = None if data is None else "recorded"
    for part in parts or PARTS:
        PARTS[part](report, data, num_simulated)
    if plot_path is not None:
        plot(report.figures, plot_path)


if __name__ == "__main__":
    main()
