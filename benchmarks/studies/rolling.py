"""Votes that roll beside votes in rounds and all samples at once: tokens, time, and if they repeat.

    python -m benchmarks.studies.rolling --part embedded --json
    python -m benchmarks.studies.rolling --part recorded --data FOLDER --json
    python -m benchmarks.studies.rolling --part wide --data FOLDER --json
    python -m benchmarks.studies.rolling --part replayed --data FOLDER --json

*embedded*: votes of 16 of the embedded target on this machine's engine, one question at a time; a question runs in
every way before the next begins. Then the same votes with 1, 8 and 32 questions at once, with whole texts and with
DynasorCoT inside: texts, answers and traces should be equal.

*recorded*: Qwen3 chains of AIME25 and HMMT25 in the live host, on a worker whose clock goes one tick a piece of 16
tokens. All samples of a vote are written at one speed, whatever their number.

*wide*: the same chains in votes of 20 to 24 that all begin at once, live beside the replay of `studies.autotts` on the
same orders, on a worker that streams and on one that does not.

*replayed*: the class's default rule on every recording, with 2 and more samples in flight, by `tune`'s replay. Its time
is the vote's longest path in tokens.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import click
import numpy as np

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.lab import Lab, questions_of
from benchmarks._lib.recorded_worker import Characters, RecordedChain, RecordedWorker
from benchmarks._lib.report import Report
from benchmarks.studies.autotts import CHOOSES, Asked, at_once, read_chains, simulated
from benchmarks.studies.real import recordings
from scaffolding_ext import DynasorCoTController, MajorityVoteController, ScaffoldingLlm
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.controllers.vote.allocation.value_of_vote import ValueOfVote
from scaffolding_ext.controllers.vote.draws import Order
from scaffolding_ext.evaluation.run.datasets import EMBEDDED, Example
from scaffolding_ext.evaluation.tune.endings import Whole
from scaffolding_ext.evaluation.tune.replay import Replay
from scaffolding_ext.evaluation.tune.space import Setting
from scaffolding_ext.protocol import Controller, GenerationTask
from scaffolding_ext.protocol.standins import TaskHandler
from scaffolding_ext.request.results import ScaffoldingResult

QWEN3 = "qwen3_chains.jsonl.gz"
ALL, ROUNDS, SINGLY = "all at once", "rounds", "one after the other"
PIECE = 16  # tokens a tick
NUM_SAMPLES = 16
MOST_APART = 0.03  # shares of live votes and of replayed ones
WIDE = (
    ("LeaderChange, 20", LeaderChange(), 20),
    ("LeaderChange, 24", LeaderChange(), 24),
    ("value of a vote, 22", ValueOfVote(price=0.02 * PIECE), 22),
)
BUSY = 8  # questions at once
OF_STREAMS = ("paused", "late")  # events that depend on time
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


def told(result: ScaffoldingResult) -> tuple[Any, ...]:
    """Text, answer and trace, without times and without events that tell how far a stream ran ahead."""
    decisions = [event for event in result.program.trace if event["event"] not in OF_STREAMS]
    trace = [{key: value for key, value in event.items() if key != "seconds"} for event in decisions]
    return result.outputs[0].text, result.answer, trace


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


def figure_of(result: ScaffoldingResult, target: str, seconds: float | None = None) -> tuple[float, float, float]:
    decoded, ended = result.program.ledger.total.decoded, result.program.trace[-1]["seconds"]
    return float(result.answer == target), float(decoded), float(ended if seconds is None else seconds)


def run_embedded(report: Report, num_timed: int, num_equal: int) -> None:
    native = NativeGenerationController({"temperature": 0.7, "max_tokens": 900})
    chain = DynasorCoTController(900, 3, 32, sampling_params={"temperature": 0.7})
    examples = questions_of(EMBEDDED, max(num_timed, num_equal), report.seed)
    with Lab({"generation": "tinylm/target"}, seed=report.seed, max_batch_size=NUM_SAMPLES) as lab:
        ways = votes(native, NUM_SAMPLES, (4,))
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
        hosts = {name: hosted(lab, way, 1) for name, way in ways.items()}
        for number, example in enumerate(track(examples[:num_timed], "one at a time")):
            for name in sorted(hosts, key=lambda each: (number + list(hosts).index(each)) % len(hosts)):
                result = hosts[name].generate(example.prompt, sample_id=str(number))
                found[name].append(figure_of(result, example.target))
        for host in hosts.values():
            host.shutdown()
        add_ways(report, "embedded", found, ROUNDS)
        report.bar("time, share of rounds", value(report, "embedded: 4 in flight: time, share of rounds"), "<=", 0.7)
        report.bar(
            "tokens, share of rounds", value(report, "embedded: 4 in flight: tokens, share of rounds"), "<=", 1.3
        )
        add_busy(report, lab, {name: ways[name] for name in (ROUNDS, "4 in flight")}, examples[:num_equal])
        for name, inner in (("whole texts", native), ("DynasorCoT", chain)):
            add_equal(report, name, lab, MajorityVoteController(inner, NUM_SAMPLES, in_flight=4), examples[:num_equal])


def add_busy(report: Report, lab: Lab, ways: Mapping[str, Controller], examples: Sequence[Example]) -> None:
    """Time ways with as many questions at once as fill the engine, in blocks that take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for block in range(0, len(examples), BUSY):
        for name, way in ways.items():
            with hosted(lab, way, BUSY) as host:
                began = time.perf_counter()
                host.generate([each.prompt for each in examples[block : block + BUSY]])
                seconds[name].append(time.perf_counter() - began)
    rounds, flight = seconds.values()
    report.ratio(f"{BUSY} questions at once: 4 in flight: time, share of rounds", flight, rounds)


def add_equal(report: Report, name: str, lab: Lab, vote: Controller, examples: Sequence[Example]) -> None:
    """Run the votes at several loads; those whose texts, answers and traces are those of one at a time."""
    by_load = {}
    for load in (1, 8, 32):
        with hosted(lab, vote, load) as host:
            results = [host.generate_async(each.prompt, sample_id=str(n)) for n, each in enumerate(examples)]
            by_load[load] = [told(result) for result in results if result.result() is not None]
        if load > 1:
            for part, title in enumerate(("texts", "answers", "traces")):
                equal = sum(a[part] == b[part] for a, b in zip(by_load[1], by_load[load], strict=True))
                report.share(f"{name}: equal {title} at {load} at once", equal, len(examples))
                report.bar(f"{name}: equal {title} at {load} at once", equal / len(examples), ">=", 1.0)


def hosted(lab: Lab, controller: Controller, at_once: int) -> ScaffoldingLlm:
    controller.prompting = lab.prompting  # type: ignore[attr-defined]
    return ScaffoldingLlm(controller, dict(lab.workers), seed=lab.seed, max_parallel_requests=at_once)


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
@click.option(
    "--part", type=click.Choice(["embedded", "recorded", "wide", "replayed"]), default="recorded", show_default=True
)
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of recordings.")
@size("--num_timed", 100, quick=2, help="Embedded questions that are timed.")
@size("--num_equal", 30, quick=9, help="Embedded questions that run at several loads.", least=9)
@size("--num_questions", 240, quick=4, help="Recorded questions.")
def main(report: Report, part: str, data: Path | None, num_timed: int, num_equal: int, num_questions: int) -> None:
    """Votes that roll beside votes in rounds and all samples at once."""
    if part == "embedded":
        run_embedded(report, num_timed, num_equal)
    elif part == "replayed":
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
