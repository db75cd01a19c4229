"""What DynasorCoT and votes over it decode and take while other requests run beside them, on the defaults.

    python -m benchmarks.studies.load --json > load.json

Each model runs the same problems at each load, in stream and in chunk mode, as single chains and as votes of four. What
is saved must not depend on the load: decoded tokens are compared with those of one request at a time, by question.
`--before` takes what an older tree printed by `--json` on the same machine, and compares the seconds with it.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import click
import numpy as np
from rich.console import Console
from rich.progress import Progress

from benchmarks._lib.report import Bar, Report, report_options
from scaffolding_ext import DynasorCoTController, HuggingFaceWorker, MajorityVoteController, Prompting, ScaffoldingLlm
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.chain import AnswerProbe
from scaffolding_ext.evaluation.datasets import Sample, load_dataset
from scaffolding_ext.evaluation.records import Record
from scaffolding_ext.evaluation.runner import evaluate
from scaffolding_ext.maths.statistics import paired_bootstrap, paired_bootstrap_ratio
from scaffolding_ext.protocol import Worker
from scaffolding_ext.testing.server import OpenAIServer

MODELS = ("tinylm/draft", "tinylm/target")
LOADS = (1, 8, 64, 256)
SHAPES = {"chain": 1, "vote of 4": 4}
Mode = Literal["stream", "chunk"]
MODES: tuple[Mode, ...] = ("stream", "chunk")
MOST_DECODED = 1.15  # times what one request at a time decodes
MOST_SECONDS = 1.0  # times what the older tree takes
NUM_SLOTS = 16  # of the HTTP server


class Run(NamedTuple):
    """What one setting gave: tokens by question, right answers, and the seconds for all of them."""

    decoded: list[float]
    discarded: list[float]
    computed: list[float]
    correct: list[float]
    seconds: float
    longest_wait_s: float | None


@contextlib.contextmanager
def serving(model: str, over_http: bool) -> Iterator[tuple[Worker, Worker]]:
    """A worker with its defaults, and the engine behind it, which over HTTP has few slots."""
    if not over_http:
        with HuggingFaceWorker(model) as engine:
            yield engine, engine
        return
    from scaffolding_ext import OpenAIWorker

    with HuggingFaceWorker(model, max_batch_size=NUM_SLOTS) as engine, OpenAIServer(engine, model) as server:
        worker = OpenAIWorker(server.url, model, flavor="vllm")
        try:
            yield worker, engine
        finally:
            worker.shutdown()


def run(model: str, shape: str, mode: Mode, load: int, samples: list[Sample], seed: int, over_http: bool) -> Run:
    """All samples, so many at once."""
    probe = AnswerProbe(max_tokens=8, sampling_params={"temperature": 1.0})  # as in configs:dynasor_cot
    controller: BaseController = DynasorCoTController(
        1200, 4, 32, probe=probe, mode=mode, sampling_params={"temperature": 0.7}
    )
    if SHAPES[shape] > 1:
        controller = MajorityVoteController(controller, SHAPES[shape])
    controller.prompting = Prompting.for_model(model)
    with serving(model, over_http) as (worker, engine):
        with ScaffoldingLlm(controller, {"generation": worker}, seed=seed, max_parallel_requests=load) as llm:
            started = time.perf_counter()
            records = evaluate(llm, samples)
            seconds = time.perf_counter() - started
        waited = getattr(engine.metrics, "longest_wait_s", None)  # an older tree does not tell
    failed = [record.error for record in records if record.error is not None]
    if failed:
        raise click.ClickException(f"{len(failed)} of {len(samples)} samples failed; the first: {failed[0]}")
    return Run(*_tokens(records), [float(bool(record.correct)) for record in records], seconds, waited)


def _tokens(records: list[Record]) -> tuple[list[float], list[float], list[float]]:
    totals = [record.ledger["total"] for record in records]
    discarded = [record.ledger["by_purpose"].get("discarded", {}).get("decoded", 0) for record in records]
    computed = [total["decoded"] + total["prefilled"] for total in totals]
    return [float(total["decoded"]) for total in totals], list(map(float, discarded)), list(map(float, computed))


def add(report: Report, name: str, run: Run, alone: Run, rng: np.random.Generator) -> None:
    """The figures of one setting."""
    for key, values in (("decoded", run.decoded), ("discarded", run.discarded), ("computed", run.computed)):
        report.figure(f"{name}: {key}", *paired_bootstrap(values, np.zeros(len(values)), rng=rng))
    report.figure(f"{name}: accuracy", float(np.mean(run.correct)))
    report.figure(f"{name}: seconds", run.seconds)
    if run.longest_wait_s is not None:
        report.figure(f"{name}: longest wait of a row, seconds", run.longest_wait_s)
    if run is not alone:
        ratio = paired_bootstrap_ratio(run.decoded, alone.decoded, rng=rng)
        report.figure(f"{name}: decoded, times those at 1", *ratio)
        report.bar(Bar.at_most(f"{name}: decoded, times those at 1", ratio.value, MOST_DECODED))


@click.command(epilog="Example: python -m benchmarks.studies.load --num_problems 64 --model tinylm/draft --json")
@report_options
@click.option("--num_problems", default=256, show_default=True, help="Held-out problems; --quick takes 16.")
@click.option("--model", "models", multiple=True, default=MODELS, show_default=True, help="Embedded models.")
@click.option("--load", "loads", multiple=True, type=int, default=LOADS, show_default=True, help="Requests at once.")
@click.option("--mode", "modes", multiple=True, default=MODES, show_default=True, help="How chains grow.")
@click.option("--shape", "shapes", multiple=True, default=tuple(SHAPES), show_default=True, help="What runs.")
@click.option("--over_http", is_flag=True, help="Over the tests' HTTP server with 16 slots, by OpenAIWorker.")
@click.option("--before", type=click.Path(exists=True, path_type=Path), help="What an older tree printed by --json.")
def main(
    seed: int,
    quick: bool,
    as_json: bool,
    num_problems: int,
    models: tuple[str, ...],
    loads: tuple[int, ...],
    modes: tuple[Mode, ...],
    shapes: tuple[str, ...],
    over_http: bool,
    before: Path | None,
) -> None:
    """Decoded, discarded and computed tokens and seconds at loads 1, 8, 64 and 256, with intervals by question."""
    num_problems = min(num_problems, 16) if quick else num_problems
    samples = load_dataset("tinylm:held_out", num_samples=num_problems, seed=seed)
    report = Report("load", {"seed": seed, "num_problems": num_problems, "over_http": over_http})
    rng = np.random.default_rng(seed)
    settings = [(model, shape, mode) for model in models for shape in shapes for mode in modes]
    older = {} if before is None else json.loads(before.read_text(encoding="utf-8"))["figures"]
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("settings", total=len(settings) * len(loads))
        for model, shape, mode in settings:
            alone = None
            for load in loads:
                done = run(model, shape, mode, load, samples, seed, over_http)
                alone = done if alone is None else alone
                name = f"{model}, {shape}, {mode}, {load} at once"
                add(report, name, done, alone, rng)
                if f"{name}: seconds" in older:
                    share = done.seconds / older[f"{name}: seconds"]["value"]
                    report.bar(Bar.at_most(f"{name}: seconds, times the older tree's", share, MOST_SECONDS))
                progress.advance(bar)
    report.show(as_json)


if __name__ == "__main__":
    main()
