"""What DynasorCoT and votes over it decode and take while other requests run beside them.

    python -m benchmarks.studies.load --json > load.json

Each model runs the same problems at each load, in stream and in chunk mode, as single chains and as votes of four. What
is saved must not depend on the load: decoded tokens are compared with those of one request at a time, by question, and
so are text, answer and trace, but for what the trace says of the lead. The chains' settings are those of the stack that
ships (`configs:dynasor_cot`), which are not the defaults of the class. `--before` takes what an older tree printed by
`--json` on the same machine, and compares the seconds with it.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click
import numpy as np

from benchmarks._lib.command import benchmark, progress, size
from benchmarks._lib.provenance import DATA
from benchmarks._lib.report import Report
from scaffolding_ext import (
    HuggingFaceWorker,
    MajorityVoteController,
    OpenAIWorker,
    Prompting,
    ScaffoldingLlm,
    load_config,
)
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.evaluation.run.datasets import Example, load_dataset
from scaffolding_ext.evaluation.run.records import Record
from scaffolding_ext.evaluation.run.runner import evaluate
from scaffolding_ext.protocol import Worker
from scaffolding_ext.stack.build import build_controller
from tests.servers.openai_server import OpenAIServer

Mode = Literal["stream", "chunk"]
MODELS = ("tinylm/draft", "tinylm/target")
LOADS = (1, 8, 64, 256)
SHAPES = {"chain": 1, "vote of 4": 4}
MODES: tuple[Mode, ...] = ("stream", "chunk")
MOST_DECODED = 1.15  # times what one request at a time decodes
MOST_SECONDS = 1.0  # times what the older tree takes
LEAST_EQUAL = 0.99  # share of texts, answers and traces: near-ties of the floating point may fall either way
NUM_SLOTS = 16  # of the HTTP server
NUM_DIGITS = 3  # of a confidence: its last bits depend on what is computed beside it
SAYS_LEAD = ("paused", "late")  # events


class Run(NamedTuple):
    """What one setting gave: its records, and the longest that a row went without a place in a step."""

    records: list[Record]
    seconds: float
    longest_wait_s: float

    def tokens(self, *counts: str, purpose: str | None = None) -> list[float]:
        """Tokens a question, of all purposes or of one."""
        ledgers = [record.ledger for record in self.records]
        found = [ledger["total"] if purpose is None else ledger["by_purpose"].get(purpose, {}) for ledger in ledgers]
        return [float(sum(each.get(name, 0) for name in counts)) for each in found]


@contextlib.contextmanager
def serving(model: str, over_http: bool) -> Iterator[tuple[Worker, HuggingFaceWorker]]:
    """A worker with its defaults, and the engine behind it, which over HTTP has few slots."""
    if not over_http:
        with HuggingFaceWorker(model) as engine:
            yield engine, engine
        return
    with (
        HuggingFaceWorker(model, max_batch_size=NUM_SLOTS) as engine,
        OpenAIServer(engine, model) as server,
        OpenAIWorker(server.url, model, flavor="vllm") as worker,
    ):
        yield worker, engine


def run(model: str, shape: str, mode: Mode, load: int, samples: list[Example], seed: int, over_http: bool) -> Run:
    """All samples, so many at once."""
    controller: BaseController = build_controller(load_config("configs:dynasor_cot", [f"controller.args.mode={mode}"]))
    if SHAPES[shape] > 1:
        controller = MajorityVoteController(controller, SHAPES[shape])
    controller.prompting = Prompting.for_model(model)
    with serving(model, over_http) as (worker, engine):
        with ScaffoldingLlm(controller, {"generation": worker}, seed=seed, max_parallel_requests=load) as llm:
            started = time.perf_counter()
            records = evaluate(llm, samples)
            seconds = time.perf_counter() - started
        waited = engine.metrics.longest_wait_s
    failed = [record.error for record in records if record.error is not None]
    if failed:
        raise click.ClickException(f"{len(failed)} of {len(samples)} samples failed; the first: {failed[0]}")
    return Run(records, seconds, waited)


def decided(record: Record) -> tuple[Any, ...]:
    """Text, answer and trace of a record, but for times and what says lead; confidences to three digits."""

    def told(value: Any) -> Any:
        return round(value, NUM_DIGITS) if isinstance(value, float) else value

    trace = [
        {key: told(value) for key, value in event.items() if key not in ("seconds", "num_decoded", "num_discarded")}
        for event in record.trace
        if event["event"] not in SAYS_LEAD
    ]
    return record.output, record.answer, sorted(trace, key=repr)  # branches of a vote write as they come


def add(report: Report, name: str, done: Run, alone: Run, over_http: bool) -> None:
    """The figures of one setting."""
    report.difference(f"{name}: decoded", done.tokens("decoded"))
    report.difference(f"{name}: discarded", done.tokens("decoded", purpose="discarded"))
    report.difference(f"{name}: computed", done.tokens("decoded", "prefilled"))
    report.figure(f"{name}: accuracy", float(np.mean([bool(record.correct) for record in done.records])))
    report.figure(f"{name}: seconds", done.seconds)
    report.figure(f"{name}: longest wait of a row, seconds", done.longest_wait_s)
    for event in SAYS_LEAD:
        num = sum(entry["event"] == event for record in done.records for entry in record.trace)
        report.figure(f"{name}: {event}", num / len(done.records))
    if done is alone:
        return
    ratio = report.ratio(f"{name}: decoded, times those at 1", done.tokens("decoded"), alone.tokens("decoded"))
    report.bar(f"{name}: decoded, times those at 1", ratio.value, "<=", MOST_DECODED)
    pairs = zip(done.records, alone.records, strict=True)
    equal = report.share(
        f"{name}: texts, answers and traces equal", sum(decided(a) == decided(b) for a, b in pairs), len(done.records)
    )
    if not over_http:  # where a server draws anew behind a stream that was ended, a sampled text is another
        report.bar(f"{name}: texts, answers and traces equal", equal, ">=", LEAST_EQUAL)


@benchmark("studies.load --num_problems 64 --model tinylm/draft --json")
@size("--num_problems", 256, quick=6, help="Held-out problems.")
@click.option("--model", "models", multiple=True, default=MODELS, show_default=True, help="Embedded models.")
@click.option("--load", "loads", multiple=True, type=int, default=LOADS, show_default=True, help="Requests at once.")
@click.option("--mode", "modes", multiple=True, default=MODES, show_default=True, help="How chains grow.")
@click.option("--shape", "shapes", multiple=True, default=tuple(SHAPES), show_default=True, help="What runs.")
@click.option("--over_http", is_flag=True, help="Over the tests' HTTP server with 16 slots, by OpenAIWorker.")
@click.option("--before", type=DATA, help="What an older tree printed by --json.")
def main(
    report: Report,
    num_problems: int,
    models: tuple[str, ...],
    loads: tuple[int, ...],
    modes: tuple[Mode, ...],
    shapes: tuple[str, ...],
    over_http: bool,
    before: Path | None,
) -> None:
    """Decoded, discarded and computed tokens and seconds at loads 1, 8, 64 and 256, with intervals by question."""
    samples = load_dataset("tinylm:held_out", num_samples=num_problems, seed=report.seed)
    settings = [(model, shape, mode) for model in models for shape in shapes for mode in modes]
    older = {} if before is None else json.loads(before.read_text(encoding="utf-8"))["figures"]
    with progress() as bars:
        bar = bars.add_task("settings", total=len(settings) * len(loads))
        for model, shape, mode in settings:
            alone = None
            for load in loads:
                done = run(model, shape, mode, load, samples, report.seed, over_http)
                alone = done if alone is None else alone
                name = f"{model}, {shape}, {mode}, {load} at once"
                add(report, name, done, alone, over_http)
                if f"{name}: seconds" in older:
                    share = done.seconds / older[f"{name}: seconds"]["value"]
                    report.bar(f"{name}: seconds, times the older tree's", share, "<=", MOST_SECONDS)
                bars.advance(bar)


if __name__ == "__main__":
    main()
