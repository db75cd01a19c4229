"""Votes that roll beside votes in rounds and all samples at once: tokens, time, and if they repeat.

    python -m benchmarks.studies.rolling --part recorded --data FOLDER --json
    python -m benchmarks.studies.rolling --part wide --data FOLDER --json
    python -m benchmarks.studies.rolling --part replayed --data FOLDER --json

*recorded*: Qwen3 chains of AIME25 and HMMT25 in the live host, on a worker whose clock goes one tick a piece of 16
tokens. All samples of a vote are written at one speed, whatever their number.

*wide*: the same chains in votes of 20 to 24 that all begin at once, live beside the replay of `studies.autotts` on the
same orders, on a worker that streams and on one that does not.

*replayed*: the class's default rule on every recording, with 2 and more samples in flight, by `tune`'s replay. Its time
is the vote's longest path in tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import click
import numpy as np

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.recorded_worker import Characters, RecordedChain, RecordedWorker
from benchmarks._lib.report import Report
from benchmarks.studies.autotts import CHOOSES, Asked, at_once, read_chains, simulated
from benchmarks.studies.real import recordings
from scaffolding_ext import MajorityVoteController, ScaffoldingLlm
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.controllers.vote.allocation.value_of_vote import ValueOfVote
from scaffolding_ext.controllers.vote.draws import Order
from scaffolding_ext.evaluation.tune.endings import Whole
from scaffolding_ext.evaluation.tune.replay import Replay
from scaffolding_ext.evaluation.tune.space import Setting
from scaffolding_ext.protocol import Controller, GenerationTask
from scaffolding_ext.protocol.standins import TaskHandler
from scaffolding_ext.request.results import ScaffoldingResult

QWEN3 = "qwen3_chains.jsonl.gz"
ALL, ROUNDS, SINGLY = "all at once", "rounds", "one after the other"
PIECE = 16  # tokens a tick
MOST_APART = 0.03  # shares of live votes and of replayed ones
WIDE = (
    ("LeaderChange, 20", LeaderChange(), 20),
    ("LeaderChange, 24", LeaderChange(), 24),
    ("value of a vote, 22", ValueOfVote(price=0.02 * PIECE), 22),
)
LEAST_PIECES = 16  # of a chain, so that its answer has room
BY_NUMBER: Mapping[int, tuple[int, float, float]] = {64: (16, 0.42, 0.9), 32: (8, 0.42, 1.0)}  # in flight, and bars


def votes(inner: Controller, num_samples: int, in_flight: Sequence[int]) -> dict[str, MajorityVoteController]:
    ways: dict[str, dict[str, Any]] = {
        ALL: {"allocation": None},
        ROUNDS: {},
        SINGLY: {"allocation": LeaderChange(leap=0)},
    }
    for number in in_flight:
        ways[f"{number} in flight"] = {"in_flight": number}
        ways[f"{number} in flight, by index"] = {"in_flight": number, "order": "index"}
    return {name: MajorityVoteController(inner, num_samples, **arguments) for name, arguments in ways.items()}


def add_ways(report: Report, title: str, found: Mapping[str, Sequence[tuple[float, float, float]]], than: str) -> None:
    """Add each way's mean and its ratio to one way; rows are right, tokens and time, a question each."""
    base = np.array(found[than], dtype=float)
    for name, rows in found.items():
        right, tokens, seconds = np.array(rows, dtype=float).T
        report.difference(f"{title}: {name}: right", right, scale=100)
        report.difference(f"{title}: {name}: points", right, base[:, 0], scale=100)
        report.difference(f"{title}: {name}: tokens", tokens)
        report.ratio(f"{title}: {name}: tokens, share of {than}", tokens, base[:, 1])
        report.ratio(f"{title}: {name}: time, share of {than}", seconds, base[:, 2])


def figure_of(result: ScaffoldingResult, target: str, seconds: float) -> tuple[float, float, float]:
    return float(result.answer == target), float(result.program.ledger.total.decoded), seconds


def run_recorded(report: Report, asked: Sequence[Asked], num_samples: int) -> None:
    in_flight, most_tokens, most_time = BY_NUMBER[num_samples]
    ways = votes(NativeGenerationController({"temperature": 0.7, "max_tokens": 10_000}), num_samples, (in_flight,))
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    worker = RecordedWorker()
    for name, way in ways.items():
        way.prompting = Characters()  # type: ignore[assignment]
        with ScaffoldingLlm(way, {"generation": worker}, seed=report.seed) as host:
            rng = np.random.default_rng(report.seed)
            for number, each in enumerate(track(asked, f"{num_samples}: {name}")):
                chosen = rng.permutation(len(each.chains))[:num_samples]
                chains = [each.chains[index] for index in chosen]
                worker.begin(
                    [RecordedChain(str(c.answer), max(LEAST_PIECES, round(c.num_tokens / PIECE))) for c in chains]
                )
                began = worker.clock.now
                result = host.generate(f"question {number}", sample_id=str(number))
                found[name].append(figure_of(result, str(each.target), worker.clock.now - began))
    title = f"recorded, votes of {num_samples}"
    add_ways(report, title, found, ALL)
    for what, most in (("tokens", most_tokens), ("time", most_time)):
        figure = f"{title}: {in_flight} in flight: {what}, share of {ALL}"
        report.bar(figure, value(report, figure), "<=", most)


class WholeTexts(RecordedWorker):
    """Does not stream."""

    task_handlers: ClassVar[dict[Any, TaskHandler]] = {GenerationTask: RecordedWorker.task_handlers[GenerationTask]}


WORKERS: tuple[tuple[Order, type[RecordedWorker]], ...] = (("tokens", RecordedWorker), ("index", WholeTexts))


def run_wide(report: Report, asked: Sequence[Asked]) -> None:
    """Live votes that begin all at once, beside their replay; shares of the tokens and the path of 64 chains."""
    rng, rows = np.random.default_rng(report.seed), []
    for each in asked:
        chains = [each.chains[index] for index in rng.permutation(len(each.chains))[:64]]
        rows.append([c._replace(num_tokens=max(LEAST_PIECES, round(c.num_tokens / PIECE))) for c in chains])
    tokens, path = (sum(how(c.num_tokens for c in chains) for chains in rows) for how in (sum, max))
    inner = NativeGenerationController({"temperature": 0.7, "max_tokens": 10_000})
    for (name, rule, number), (order, kind) in itertools.product(WIDE, WORKERS):
        vote, worker = MajorityVoteController(inner, number, allocation=rule, in_flight=number), kind()
        vote.prompting = Characters()  # type: ignore[assignment]
        live = []
        with ScaffoldingLlm(vote, {"generation": worker}, seed=report.seed) as host:
            for question, chains in enumerate(track(rows, f"{name}, by {order}")):
                worker.begin([RecordedChain(str(c.answer), c.num_tokens) for c in chains[:number]])
                began = worker.clock.now
                result = host.generate(f"question {question}", sample_id=str(question))
                live.append(figure_of(result, str(asked[question].target), worker.clock.now - began))
        title, way = f"{name}, by {order}", at_once(rule, number, order)
        replayed = []
        for each, chains in zip(asked, rows, strict=True):
            (one,) = way([chains])
            replayed.append((float(one.answer == each.target), one.num_tokens, one.path))
        for column, (what, full) in enumerate((("right", len(rows)), ("tokens", tokens), ("longest path", path))):
            shares = [float(np.array(found)[:, column].sum() / full) for found in (live, replayed)]
            for where, share in zip(("live", "replayed"), shares, strict=True):
                report.figure(f"{title}: {where}: {what}, share of all", share)
            if order == "tokens":
                report.bar(f"{title}: {what}, live and replayed", abs(shares[0] - shares[1]), "<=", MOST_APART)


def run_replayed(report: Report, data: Path | None) -> None:
    for name, recording in recordings(data, 20, report.rng):
        trial, num_samples = Replay(recording), recording.num_samples
        ways: dict[str, dict[str, Any]] = {ROUNDS: {}}
        for number in (each for each in (2, 3, 4, 8, 16, 32) if each < num_samples):
            ways[f"{number} in flight"] = {"in_flight": number}
            ways[f"{number} in flight, by index"] = {"in_flight": number, "order": "index"}
        rows = {ALL: trial.full} | {
            way: trial.play(Setting(Whole(), num_samples, LeaderChange(), **given)) for way, given in ways.items()
        }
        report.figure(f"{name}: samples", num_samples)
        for row, played in rows.items():
            about = f"{name}: {row}"
            report.difference(f"{about}: points", played.right, trial.full.right, trial.groups, scale=100)
            for what, cost in (("tokens", "decoded"), ("longest path", "critical")):
                report.ratio(f"{about}: {what}, share of all", played.costs[cost], trial.full.costs[cost], trial.groups)  # type: ignore[index]


def value(report: Report, figure: str) -> float:
    return float(report.figures[figure]["value"])


@benchmark("studies.rolling --part recorded --data FOLDER")
@click.option("--part", type=click.Choice(["recorded", "wide", "replayed"]), default="recorded", show_default=True)
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of recordings.")
@size("--num_questions", 240, quick=4, help="Recorded questions.")
def main(report: Report, part: str, data: Path | None, num_questions: int) -> None:
    """Votes that roll beside votes in rounds and all samples at once."""
    if part == "replayed":
        run_replayed(report, data)
    else:
        found = simulated(2, report.rng) if data is None else read_chains(data / QWEN3)
        asked = [each for each in found if each.task != CHOOSES][:num_questions]
        if part == "wide":
            run_wide(report, asked)
            return
        for num_samples in BY_NUMBER:
            run_recorded(report, asked, num_samples)


if __name__ == "__main__":
    main()
