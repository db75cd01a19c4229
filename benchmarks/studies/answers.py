"""Extraction and equality on real model output; what hostile answers cost; how long a vote holds the event loop."""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click

from benchmarks._lib.command import benchmark, size
from benchmarks._lib.provenance import DATA
from benchmarks._lib.report import Report
from scaffolding_ext.answers import Equality, Verdict, extract
from scaffolding_ext.answers.pool import KillablePool, OverrunError
from scaffolding_ext.errors import EngineError
from scaffolding_ext.evaluation.run.jsonl import read_rows
from scaffolding_ext.protocol.tasks import CompareTask
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.workers.compare import CompareWorker

HOSTILE = {
    "a tower of powers": "9^{9^9}",
    "a trinomial's 200th power": "(x+y+z)^{200}",
    "its equation": "(x+y+z)^{200} = w^{99}",
    "3,000 nested parentheses": "(" * 3000 + "1" + ")" * 3000,
    "400 nested parentheses": "(" * 400 + "1" + ")" * 400,
    "100 kB of digits": "7" * 100_000,
    "100 kB of commas": "1," * 50_000,
    "a sum of a billion sines": r"\sum_{n=1}^{10^{9}} \sin(n^n)",
    "a product of ten million": r"\prod_{n=1}^{10^7}(x+n)",
    "the sine of a tower": r"\sin(9^{9^9})",
}
WIDTH = 16
SPARE_SECONDS = 0.25  # for a machine that others use too
TICK_SECONDS = 0.001
PATIENCE_SECONDS = 30.0  # with math-verify alone, whose own time-outs are 5 s for a text and 5 s for a comparison


def values(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines."""
    return [row.value for row in read_rows(path)]


def measure_samples(report: Report, rows: list[dict[str, Any]], show: bool) -> None:
    """Agreement of extraction and equality with the source's labels."""
    equality = Equality(units_implied=True)
    outcomes: Counter[str] = Counter()
    num_agreeing = 0
    for row in rows:
        for sample in row["samples"]:
            answer = extract(sample["text"], fallback="last")
            verdict = "no answer" if answer is None else equality.equal(answer, row["answer"]).value
            outcomes[verdict] += 1
            agrees = (verdict == "equal") == sample["correct_by_source"]
            num_agreeing += agrees
            if show and (not agrees or verdict == "undetermined"):
                label = "right" if sample["correct_by_source"] else "wrong"
                print(f"{row['id']}: {answer!r}, gold {row['answer']!r}: {verdict}; source: {label}", file=sys.stderr)
    equality.close()
    total = outcomes.total()
    report.share("samples: agrees with the source", num_agreeing, total)
    for verdict in ("equal", "different", "undetermined", "no answer"):
        report.share(f"samples: {verdict}", outcomes[verdict], total)
    report.bar("samples: agrees with the source", num_agreeing / total, ">=", 0.98)


def measure_votes(report: Report, rows: list[dict[str, Any]], seed: int) -> None:
    """Comparisons that a vote over each problem's samples takes, in an order drawn anew, and once more."""
    generator = random.Random(seed)
    equality = Equality(units_implied=True)
    bounds_held, asked, again = 0, [], 0
    for row in rows:
        answers = [extract(sample["text"], fallback="last") for sample in row["samples"]]
        before = equality.num_comparisons
        classes = equality.group(answers)
        asked.append(equality.num_comparisons - before)
        bounds_held += asked[-1] <= len(answers) * (1 + max(classes))
        before = equality.num_comparisons
        order = generator.sample(range(len(answers)), len(answers))
        back = dict(zip(order, equality.group([answers[i] for i in order]), strict=True))
        again += equality.num_comparisons - before
        same = all((classes[i] == classes[j]) == (back[i] == back[j]) for i in back for j in back)
        bounds_held -= not same
    equality.close()
    report.figure("votes: pairs sent to a process, mean", sum(asked) / len(asked), min(asked), max(asked))
    report.share("votes: without any", asked.count(0), len(asked))
    report.figure("votes: sent when asked again, shuffled", again)
    report.bar("votes within n·m and of one partition in any order", bounds_held / len(rows), ">=", 1.0)


def measure_gold(report: Report, name: str, rows: list[dict[str, Any]]) -> None:
    """Every gold answer equals itself, and what the solution's box holds."""
    equality = Equality()
    golds = [str(row["answer"]) for row in rows]
    num_reflexive = sum(equality.equal(gold, f" {gold} ") is Verdict.EQUAL for gold in golds)
    report.share(f"{name}: gold answer equals itself", num_reflexive, len(golds))
    report.bar(f"{name}: gold answer equals itself", num_reflexive / len(golds), ">=", 1.0)
    boxed = [
        (extract(row["solution"]), gold)
        for row, gold in zip(rows, golds, strict=True)
        if "\\boxed" in row.get("solution", "")
    ]
    if boxed:
        num_equal = sum(answer is not None and equality.equal(answer, gold) is Verdict.EQUAL for answer, gold in boxed)
        report.share(f"{name}: solution's box equals gold", num_equal, len(boxed))
        report.bar(f"{name}: solution's box equals gold", num_equal / len(boxed), ">=", 0.99)
    equality.close()


def measure_hostile(report: Report, deadline_seconds: float) -> None:
    """Seconds that each hostile answer costs against a plain one, a warm process waiting."""
    worst = 0.0
    num_wrong = 0
    for name, answer in HOSTILE.items():
        equality = Equality(deadline_seconds, num_processes=1)
        equality.equal("a+b", "b+a")
        started = time.perf_counter()
        verdict = equality.equal(answer, "x+1")
        seconds = time.perf_counter() - started
        equality.close()
        worst = max(worst, seconds)
        num_wrong += verdict is Verdict.EQUAL
        report.figure(f"hostile: {name}, seconds ({verdict.value})", seconds)
    report.bar("hostile: seconds of the worst", worst, "<=", deadline_seconds + SPARE_SECONDS)
    report.bar("hostile: judged equal", num_wrong, "<=", 0)


def alone(gold: str, text: str) -> bool:
    """math-verify's own verdict on a text, with its own extraction and time-outs; it needs the main thread."""
    from math_verify import parse, verify

    return bool(verify(parse(f"${gold}$"), parse(text)))


def measure_alone(
    report: Report, samples: list[dict[str, Any]], golds: dict[str, list[dict[str, Any]]], show: bool
) -> None:
    """math-verify alone on all data, in a process that is killed after `PATIENCE_SECONDS`, beside what stands above."""
    pool = KillablePool("benchmarks.studies.answers:alone", num_processes=1, max_memory_bytes=8 * 2**30)
    pool.submit(PATIENCE_SECONDS, "1", "$1$").result()
    seconds: list[float] = []

    def asked(gold: str, text: str) -> bool | None:
        started = time.perf_counter()
        try:
            return bool(pool.submit(PATIENCE_SECONDS, gold, text).result())
        except EngineError:  # it raised
            return False
        except OverrunError:
            return None
        finally:
            seconds.append(time.perf_counter() - started)

    labels = [(str(row["answer"]), sample) for row in samples for sample in row["samples"]]
    if labels:
        theirs = [asked(gold, sample["text"]) for gold, sample in labels]
        spent = sorted(1e3 * each for each in seconds)
        right = [sample["correct_by_source"] for _, sample in labels]
        num_agreeing = sum(a is b for a, b in zip(theirs, right, strict=True))
        report.share("math-verify alone, samples: agrees with the source", num_agreeing, len(labels))
        report.figure(
            "math-verify alone, samples: ms (median, most)",
            statistics.fmean(spent),
            statistics.median(spent),
            spent[-1],
        )
        own = Equality(units_implied=True)
        started = time.perf_counter()
        ours = [
            (answer := extract(sample["text"], fallback="last")) is not None
            and own.equal(answer, gold) is Verdict.EQUAL
            for gold, sample in labels
        ]
        report.figure("ours, samples: ms, mean", 1e3 * (time.perf_counter() - started) / len(labels))
        own.close()
        report.figure(
            "samples that ours alone calls right", sum(a and not b for a, b in zip(ours, theirs, strict=True))
        )
        report.figure(
            "samples that math-verify alone calls right", sum(b and not a for a, b in zip(ours, theirs, strict=True))
        )
        if show:
            for (gold, sample), a, b in zip(labels, ours, theirs, strict=True):
                if a != b:
                    print(f"ours {a}, math-verify {b}: gold {gold!r}, text {sample['text'][-160:]!r}", file=sys.stderr)
    for name, rows in golds.items():
        solved = [row for row in rows if "\\boxed" in row.get("solution", "")]
        reflexive = [asked(str(row["answer"]), f"${row['answer']}$") for row in rows]
        report.share(f"math-verify alone, {name}: gold answer equals itself", reflexive.count(True), len(rows))
        if solved:
            boxed = [asked(str(row["answer"]), row["solution"]) for row in solved]
            report.share(f"math-verify alone, {name}: solution's box equals gold", boxed.count(True), len(solved))
    for name, answer in HOSTILE.items():
        told = {True: "equal", False: "different", None: "killed"}[asked("x+1", f"${answer}$")]
        report.figure(f"math-verify alone, hostile: {name}, seconds ({told})", seconds[-1])
    pool.close()


async def longest_gap(work: Any) -> float:
    """The longest time in seconds between two turns of the loop, beyond a tick, while the work is done."""
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            started = time.perf_counter()
            await asyncio.sleep(TICK_SECONDS)
            longest = max(longest, time.perf_counter() - started - TICK_SECONDS)

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0)
    await work
    ticker.cancel()
    return longest


async def measure_stall(report: Report, repetitions: int, deadline_seconds: float) -> None:
    """The loop's longest stall over votes of 16 with every hostile answer among the samples, cold start included."""
    plain = ["x+1", "1+x", "0.5", r"\frac12", r"\sqrt8", r"2\sqrt2"]
    gaps, idle = [], []
    for _ in range(repetitions):
        with CompareWorker(deadline_seconds) as worker:
            answers = [*HOSTILE.values(), *plain][:WIDTH]
            task = CompareTask(worker_tag=WorkerTag.COMPARE, answers=list(answers))
            started = time.perf_counter()
            gaps.append(await longest_gap(worker.run_task(task)))
            idle.append(await longest_gap(asyncio.sleep(time.perf_counter() - started)))
    report.figure("stall: ms, vote of 16 with 10 hostile answers", 1e3 * max(gaps), 1e3 * min(gaps), 1e3 * max(gaps))
    report.figure("stall: ms, idle loop for as long", 1e3 * max(idle), 1e3 * min(idle), 1e3 * max(idle))
    report.bar("stall: ms, longest", 1e3 * max(gaps), "<=", 50.0)


@benchmark("studies.answers --samples samples.jsonl --math500 math500.jsonl --gold aime24.jsonl --show")
@click.option("--samples", type=DATA, envvar="SCAFFOLDING_EXT_SAMPLES", help="Labelled samples of a model.")
@click.option("--math500", type=DATA, envvar="SCAFFOLDING_EXT_MATH500", help="MATH-500.")
@click.option("--gold", type=DATA, multiple=True, help="Further files with gold answers.")
@size("--deadline_ms", 2_000, quick=500, help="For hostile answers.")
@size("--repetitions", 5, quick=1, help="Votes during which the event loop is watched.")
@click.option("--show", is_flag=True, help="List disagreements and what stays undetermined on standard error.")
def main(
    report: Report,
    samples: Path | None,
    math500: Path | None,
    gold: tuple[Path, ...],
    deadline_ms: int,
    repetitions: int,
    show: bool,
) -> None:
    """Extraction and equality on real output; what hostile answers cost; how long a vote holds the event loop.

    Without paths only what needs no data is measured. `--samples` wants JSON lines of {id, answer, samples: [{text,
    correct_by_source}]}, `--math500` of {solution, answer}, `--gold` (repeatable) of {answer}.
    """
    if samples is not None:
        rows = values(samples)
        measure_samples(report, rows, show)
        measure_votes(report, rows, report.seed)
    for path in filter(None, (math500, *gold)):
        measure_gold(report, path.stem, values(path))
    measure_hostile(report, deadline_ms / 1e3)
    golds = {path.stem: values(path) for path in filter(None, (math500, *gold))}
    measure_alone(report, [] if samples is None else values(samples), golds, show)
    asyncio.run(measure_stall(report, repetitions, deadline_ms / 1e3))


if __name__ == "__main__":
    main()
