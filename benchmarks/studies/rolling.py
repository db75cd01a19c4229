"""Votes that roll beside votes in rounds and all samples at once: tokens and time.

    python -m benchmarks.studies.rolling --part live --data FOLDER --json
    python -m benchmarks.studies.rolling --part replayed --data FOLDER --json

*live*: Qwen3 chains of AIME25 and HMMT25 in the live host, on a worker whose clock goes one tick a piece of 16 tokens.
All samples of a vote are written at one speed, whatever their number. Votes of 20 to 24 begin all at once.

*replayed*: the class's default rule on every recording, with 2 and more samples in flight, by `tune`'s replay. Its time
is the vote's longest path in tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks._lib.command import benchmark, recorded, size, track
from benchmarks._lib.recorded_worker import Characters, RecordedChain, RecordedWorker
from benchmarks._lib.report import Report
from benchmarks.studies.autotts import (
    AT_ONCE,
    CHOOSES,
    VALUE,
    VALUE_OF_VOTE,
    VALUE_WIDTH,
    Asked,
    read_chains,
)
from benchmarks.studies.real import recordings
from scaffolding_ext import MajorityVoteController, ScaffoldingLlm
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.evaluation.tune.endings import Whole
from scaffolding_ext.evaluation.tune.replay import Replay
from scaffolding_ext.evaluation.tune.space import Setting

ALL, ROUNDS = "all at once", "rounds"
PIECE = 16  # tokens a tick
LEAST_PIECES = 16  # of a chain, so that its answer has room
BY_NUMBER: Mapping[int, tuple[int, float, float]] = {64: (16, 0.42, 0.9), 32: (8, 0.42, 1.0)}  # in flight, and bars
IN_FLIGHT = {8: (2, 4), 16: (2, 4, 8), 40: (4, 8, 16), 64: (4, 8, 16)}  # by the samples of a recording


def ways(in_flight: int) -> dict[str, dict[str, Any]]:
    """The arguments of each vote of all samples."""
    return {
        ALL: {"allocation": None},
        ROUNDS: {},
        f"{in_flight} in flight": {"in_flight": in_flight},
        f"{in_flight} in flight, by index": {"in_flight": in_flight, "order": "index"},
    }


def few_at_once() -> dict[str, dict[str, Any]]:
    """The arguments of votes of few samples that all begin at once."""
    price = VALUE_OF_VOTE.price * PIECE  # of a piece
    value = {"allocation": type(VALUE_OF_VOTE)(price=price), "in_flight": VALUE_WIDTH}
    return {name: {"in_flight": number} for number, name in AT_ONCE.items()} | {VALUE: value}


def played(asked: Sequence[Asked], num_samples: int, seed: int, name: str, arguments: Mapping[str, Any]) -> Any:
    """Right answers, tokens and time of a vote on every question, in the live host; shape [3, num_questions]."""
    number = arguments["in_flight"] if name in few_at_once() else num_samples
    inner = NativeGenerationController({"temperature": 0.7, "max_tokens": 10_000})
    vote, worker, rows = MajorityVoteController(inner, number, **arguments), RecordedWorker(), []
    vote.prompting = Characters()  # type: ignore[assignment]
    rng = np.random.default_rng(seed)
    with ScaffoldingLlm(vote, {"generation": worker}, seed=seed) as host:
        for question, each in enumerate(track(asked, f"{num_samples}: {name}")):
            chains = [each.chains[index] for index in rng.permutation(len(each.chains))[:num_samples]]
            worker.begin([RecordedChain(str(c.answer), max(LEAST_PIECES, round(c.num_tokens / PIECE))) for c in chains])
            began = worker.clock.now
            result = host.generate(f"question {question}", sample_id=str(question))
            tokens = result.program.ledger.total.decoded
            rows.append((result.answer == str(each.target), tokens, worker.clock.now - began))
    return np.array(rows, dtype=float).T


def live(report: Report, data: Path, num_questions: int) -> None:
    """Each vote beside all samples at once."""
    asked = [each for each in read_chains(data) if each.task != CHOOSES][:num_questions]
    for num_samples, (in_flight, most_tokens, most_time) in BY_NUMBER.items():
        title, most = f"votes of {num_samples}", {"tokens": most_tokens, "time": most_time}
        arguments = ways(in_flight) | (few_at_once() if num_samples == max(BY_NUMBER) else {})
        found = {name: played(asked, num_samples, report.seed, name, own) for name, own in arguments.items()}
        full = found.pop(ALL)
        for name, own in found.items():
            report.difference(f"{title}: {name}: points", own[0], full[0], scale=100)
            for what, ours, theirs in zip(most, own[1:], full[1:], strict=True):
                share = report.ratio(f"{title}: {name}: {what}, share of {ALL}", ours, theirs).value
                if name == f"{in_flight} in flight":
                    report.bar(f"{title}: {name}: {what}, share of {ALL}", share, "<=", most[what])


def replayed(report: Report, data: Path, _: int) -> None:
    """The default with some samples in flight, on every recording."""
    for name, recording in recordings(data):
        trial, number = Replay(recording), recording.num_samples
        most = IN_FLIGHT[number][-1]
        settings: dict[str, dict[str, Any]] = {ROUNDS: {}}
        settings |= {f"{each} in flight": {"in_flight": each} for each in IN_FLIGHT[number]}
        settings[f"{most} in flight, by index"] = {"in_flight": most, "order": "index"}
        for way, given in settings.items():
            own, about = trial.play(Setting(Whole(), number, LeaderChange(), **given)), f"{name}: {way}"
            report.difference(f"{about}: points", own.right, trial.full.right, trial.groups, scale=100)
            for what, cost in (("tokens", "decoded"), ("longest path", "critical")):
                report.ratio(f"{about}: {what}, share of all", own.costs[cost], trial.full.costs[cost], trial.groups)  # type: ignore[index]


PARTS = {"live": live, "replayed": replayed}


@benchmark("studies.rolling --part live --data FOLDER")
@click.option("--part", "parts", type=click.Choice(list(PARTS)), multiple=True, help="May be repeated.  [default: all]")
@recorded
@size("--num_questions", 240, quick=4, help="Questions of the live host.", least=2)
def main(report: Report, parts: Sequence[str], data: Path, num_questions: int) -> None:
    """Votes that roll beside votes in rounds and all samples at once."""
    for part in parts or PARTS:
        PARTS[part](report, data, num_questions)


if __name__ == "__main__":
    main()
