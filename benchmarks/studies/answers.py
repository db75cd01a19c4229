"""Extraction and equality on real model output; what hostile answers cost."""

from __future__ import annotations

import random
import statistics
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


def measure_samples(report: Report, rows: list[dict[str, Any]]) -> None:
    """Agreement of extraction and equality with the source's labels."""
    equality = Equality(units_implied=True)
    outcomes: Counter[str] = Counter()
    num_agreeing = 0
    for row in rows:
        for sample in row["samples"]:
            answer = extract(sample["text"], fallback="last")
            verdict = "no answer" if answer is None else equality.equal(answer, row["answer"]).value
            outcomes[verdict] += 1
            num_agreeing += (verdict == "equal") == sample["correct_by_source"]
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


def measure_alone(report: Report, samples: list[dict[str, Any]], golds: dict[str, list[dict[str, Any]]]) -> None:
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


@benchmark("studies.answers --samples samples.jsonl --math500 math500.jsonl --gold aime24.jsonl")
@click.option("--samples", type=DATA, envvar="SCAFFOLDING_EXT_SAMPLES", help="Labelled samples of a model.")
@click.option("--math500", type=DATA, envvar="SCAFFOLDING_EXT_MATH500", help="MATH-500.")
@click.option("--gold", type=DATA, multiple=True, help="Further files with gold answers.")
@size("--deadline_ms", 2_000, quick=500, help="For hostile answers.")
def main(report: Report, samples: Path | None, math500: Path | None, gold: tuple[Path, ...], deadline_ms: int) -> None:
    """Extraction and equality on real output; what hostile answers cost.

    Without paths only what needs no data is measured. `--samples` wants JSON lines of {id, answer, samples: [{text,
    correct_by_source}]}, `--math500` of {solution, answer}, `--gold` (repeatable) of {answer}.
    """
    if samples is not None:
        rows = values(samples)
        measure_samples(report, rows)
        measure_votes(report, rows, report.seed)
    for path in filter(None, (math500, *gold)):
        measure_gold(report, path.stem, values(path))
    measure_hostile(report, deadline_ms / 1e3)
    golds = {path.stem: values(path) for path in filter(None, (math500, *gold))}
    measure_alone(report, [] if samples is None else values(samples), golds)


if __name__ == "__main__":
    main()
