"""Measures savings on recorded samples of real models: every row is a call of `Replay`, and runs no model.

    python -m benchmarks.studies.real --data FOLDER --part votes --json

FOLDER holds the recordings (`SETS` names their files).

*votes*: for each set the choice of `tune`, judged on questions or runs that did not choose, beside one sample, plain
votes of as many tokens, Adaptive-Consistency and doubling (as published, and chosen likewise), the oracle and our
default; and what weights give. *confirmed*: half of each set's questions (and runs) choose the default and the tuned
setting, and the other half, kept back by a hash, judges them. *chains*: stops and cuts of thinking chains. *budgets*:
one budget for all questions. *loops*: chains that repeat themselves.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks._lib.command import benchmark, recorded
from benchmarks._lib.report import Report
from benchmarks._lib.stops import Ended, add_stops, right_of_as_many
from scaffolding_ext.answers import extract
from scaffolding_ext.controllers.repetition import CHARACTERS, Loops
from scaffolding_ext.controllers.vote.allocation.adaptive_consistency import BetaConsistency
from scaffolding_ext.controllers.vote.allocation.agreement import AgreementDoubling
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.evaluation.logs.samples import Ints, Recording
from scaffolding_ext.evaluation.run.jsonl import read_rows
from scaffolding_ext.evaluation.run.vote_budget import Claim, next_round, unsettledness
from scaffolding_ext.evaluation.tune.choose import Cheapest, chosen, cross_validated
from scaffolding_ext.evaluation.tune.endings import Whole
from scaffolding_ext.evaluation.tune.replay import Replay
from scaffolding_ext.evaluation.tune.space import Setting, labelled_votes
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
DEFAULT_SETS = (AIME, GPQA, R1_AT_16, "gpt-4o-mini, GSM8K, 40")
MAX_LOSS = 0.003
BAR = -1.0  # points over the full vote, for the lower end of what is tuned
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
PUBLISHED = {SEQUENTIAL: BetaConsistency(confidence=0.9), DOUBLING: AgreementDoubling(), DEFAULT: LeaderChange()}
CHOSEN_LIKEWISE = {"Adaptive-Consistency, chosen": BetaConsistency, "doubling, chosen": AgreementDoubling}
WEIGHTS = ("shortness", "mean_logprob")
RANDOM_SET = "gpqa_diamond_gemma4_12b_seed0"
BUDGETS, NUM_ORDERS = (0.1, 0.2, 0.3, 0.5), 40
STOPPED = "even with a stop"
LOOP_STEP = 64 * CHARACTERS


def of_questions(recording: Recording, questions: Sequence[int] | Ints) -> Recording:
    """The recording with only these questions, by index."""
    index = np.asarray(questions).tolist()
    return dataclasses.replace(recording, questions=[recording.questions[each] for each in index])


def recordings(data: Path) -> Iterator[tuple[str, Recording]]:
    """The recordings of the folder, by name."""
    for name, (file, task, num_samples) in SETS.items():
        yield name, read_recording([data / file], task=task, num_samples=num_samples)


# ---- votes


def add_over(report: Report, name: str, ours: Any, theirs: Any, trial: Replay) -> Any:
    """Add the points of right answers over others; questions are resampled, and runs where there are several."""
    return report.difference(name, ours, theirs, trial.groups, scale=100, crossing=crossing(trial))


def crossing(trial: Replay) -> Any:
    """The question of each row of a trial whose runs are resampled; None where questions are resampled anyway."""
    return trial.ids if trial.by_run else None


def add_row(report: Report, name: str, played: ReplayResult, trial: Replay) -> tuple[float, float]:
    """Add tokens and points beside the full vote; return the share of the tokens, and the lower end of the points."""
    ours, full = played.costs["decoded"], trial.full.costs["decoded"]
    tokens = report.ratio(f"{name}: tokens, share of all", ours, full, trial.groups, crossing=crossing(trial))
    points = add_over(report, f"{name}: points", played.right, trial.full.right, trial)
    return tokens.value, points.low


def published(trial: Replay) -> dict[str, ReplayResult]:
    """Rules at their published settings, and our default."""
    number = trial.recording.num_samples
    return {name: trial.play(Setting(Whole(), number, rule)) for name, rule in PUBLISHED.items()}


def right_of_plain_votes(trial: Replay, tokens: float) -> Any:
    """The share of right answers of the plain votes that take so many tokens."""
    played = [trial.play(Setting(Whole(), number)) for number in range(1, trial.recording.num_samples + 1)]
    return right_of_as_many([Ended(each.right, each.costs["decoded"]) for each in played], tokens / len(trial.groups))


def lists_of(trial: Replay, kind: type[AllocationRule]) -> dict[str, list[Setting]]:
    """The settings that `tune` tries of one rule."""
    return {title: own for title, own in trial.lists.items() if all(isinstance(each.rule, kind) for each in own)}


def add_votes(report: Report, name: str, recording: Recording) -> None:
    """Every row of one set."""
    goal, number, trial = Cheapest(MAX_LOSS), recording.num_samples, Replay(recording)
    trial.try_all()
    rows = {
        "one sample": trial.play(Setting(Whole(), 1)),
        **published(trial),
        TUNED: cross_validated(trial, goal),
        **{row: cross_validated(trial, goal, lists_of(trial, kind)) for row, kind in CHOSEN_LIKEWISE.items()},
        "oracle (limit)": trial.of_sizes(trial.votes.until_settled),
    }
    found = {}
    for row, played in rows.items():
        report.difference(f"{name}: {row}: right", played.right, questions=trial.groups, crossing=crossing(trial))
        found[row] = add_row(report, f"{name}: {row}", played, trial)
        report.figure(f"{name}: {row}: rounds", float(played.rounds.mean()))
    plain = right_of_plain_votes(trial, float(rows[TUNED].costs["decoded"].sum()))
    row = f"{name}: plain vote of as many tokens"
    report.difference(f"{row}: right", plain, questions=trial.groups, crossing=crossing(trial))
    add_over(report, f"{row}: points", plain, trial.full.right, trial)
    tokens, low = found[TUNED]
    report.bar(f"{name}: {TUNED}: points, lower end", low, ">=", BAR)
    report.bar(f"{name}: {TUNED}: tokens beside {SEQUENTIAL}", tokens / found[SEQUENTIAL][0], "<=", 1.0)
    for weight in trial.votes.samples.weights.keys() & set(WEIGHTS):
        weighed = trial.play(Setting(Whole(), number, weight=weight))
        row = f"{name}: vote of {number} by {weight}: points over the plain vote"
        add_over(report, row, weighed.right, trial.full.right, trial)


def votes(report: Report, data: Path) -> None:
    """All sets."""
    for name, recording in recordings(data):
        add_votes(report, name, recording)


# ---- confirmed


def grid_of(trial: Replay) -> tuple[list[float], list[float]]:
    """Shares of the tokens, and losses in points, of the settings of `GRID`."""
    played = [trial.play(Setting(Whole(), trial.recording.num_samples, rule)) for rule in GRID]
    full = trial.full.costs["decoded"].sum()
    return (
        [float(each.costs["decoded"].sum() / full) for each in played],
        [100 * float((trial.full.right - each.right).mean()) for each in played],
    )


def best_default(grid: Mapping[str, tuple[list[float], list[float]]]) -> LeaderChange:
    """The setting of `GRID` that is cheapest over `DEFAULT_SETS`, and loses at most 0.2 points on each."""
    shares, losses = (np.array([each[place] for each in grid.values()]) for place in (0, 1))
    means = np.where((losses <= DEFAULT_LOSS).all(axis=0), shares.mean(axis=0), np.inf)
    return GRID[int(np.argmin(means))]


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
    choosing, judging = (of_questions(recording, part) for part in parts)
    return choosing, judging


def confirmed(report: Report, data: Path) -> None:
    """The default and the tuned setting, chosen anew on one half of each set, and judged on the other half."""
    goal, grid, judges = Cheapest(MAX_LOSS), {}, {}
    for name, recording in recordings(data):
        choosing, judging = halves(recording)
        trial = Replay(choosing)
        trial.try_all()
        if name in DEFAULT_SETS:
            grid[name] = grid_of(trial)
        judges[name] = Replay(judging), chosen(trial, goal) or trial.all_samples
    default = best_default(grid)
    report.setting[ANEW] = str(default)
    for name, (trial, tuned) in judges.items():
        number = trial.recording.num_samples
        report.figure(f"{name}: questions", len(trial.recording.questions))
        rows = {**published(trial), ANEW: trial.play(Setting(Whole(), number, default)), TUNED: trial.play(tuned)}
        for row, played in rows.items():
            add_row(report, f"{name}: {row}", played, trial)
        plain = right_of_plain_votes(trial, float(rows[ANEW].costs["decoded"].sum()))
        add_over(report, f"{name}: plain vote of as many tokens as {ANEW}: points", plain, trial.full.right, trial)
        report.setting[f"{name}: {TUNED}"] = str(tuned)


# ---- chains


def chains(report: Report, data: Path) -> None:
    """Gemma-4-12B: stops and cuts on a random set of GPQA."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "chains.jsonl"
        rows = [row.value for row in read_rows(data / GEMMA) if row.value["set"] == RANDOM_SET]
        copy.write_text("\n".join(json.dumps(_with_sample(row)) for row in rows), encoding="utf-8")
        add_stops(report, "GPQA", read_recording([copy], num_samples=1))


def _with_sample(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a chain as a question with one sample, whose answer is that at its last probe."""
    sample = {"answer": row["probes"][-1]["answer"], "output_tokens": row["tokens"], "probes": row["probes"]}
    return {"id": row["question"], "task": row["task"], "target": row["answer"], "samples": [sample]}


# ---- budgets


def spend(
    votes: Sequence[LabelledVote], total_tokens: float, claim: Claim, rule: AllocationRule | None = None
) -> list[int]:
    """Spend one budget on recorded votes; return the samples drawn for each."""
    drawn = [0] * len(votes)
    is_last = False
    while not is_last:
        so_far = [
            Votes(each.classes[:num], len(each.classes), lengths=each.lengths[:num])
            for each, num in zip(votes, drawn, strict=True)
        ]
        questions, is_last = next_round(so_far, total_tokens, claim, rule)
        for index in questions:
            drawn[index] += 1
    return drawn


def evenness(votes: Votes) -> tuple[float, float]:
    """Give all questions as many samples, in turn."""
    return len(votes.classes), 0.0


def budgets(report: Report, data: Path) -> None:
    """One budget for the votes of all questions: by certaindex, and evenly with and without a stop; means of orders."""
    drawn = labelled_votes(read_recording([data / R1], num_samples=16))
    orders = [
        [each.reordered(report.rng.permutation(len(each.classes)).tolist()) for each in drawn]
        for _ in range(NUM_ORDERS)
    ]
    total = sum(sum(each.lengths) for each in drawn)
    buyers: Mapping[str, tuple[Claim, AllocationRule | None]] = {
        "even": (evenness, None),
        STOPPED: (evenness, LeaderChange()),
        "certaindex": (unsettledness, LeaderChange()),
    }
    for share in BUDGETS:
        right = {}
        for name, buyer in buyers.items():
            rows = [zip(own, spend(own, share * total, *buyer), strict=True) for own in orders]
            right[name] = 100 * np.mean([[each.is_right(num) for each, num in row] for row in rows], axis=0)
        report.difference(f"even at {share:.0%}: right, %", right["even"])
        for other in ("even", STOPPED):
            name = f"certaindex at {share:.0%}: points over {other}, mean of orders"
            report.difference(name, right["certaindex"], right[other])


# ---- loops


def loops(report: Report, data: Path) -> None:
    """Report the places at which the watch for loops stops recorded chains, and the answers behind them."""
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


PARTS = {"votes": votes, "confirmed": confirmed, "chains": chains, "budgets": budgets, "loops": loops}


@benchmark("studies.real --data FOLDER --part votes")
@recorded
@click.option("--part", "parts", type=click.Choice(list(PARTS)), multiple=True, help="May be repeated.  [default: all]")
def main(report: Report, data: Path, parts: Sequence[str]) -> None:
    """Measure savings on recorded samples of real models."""
    for part in parts or PARTS:
        PARTS[part](report, data)


if __name__ == "__main__":
    main()
