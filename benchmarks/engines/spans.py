"""What spans of OpenTelemetry cost: a vote of 16 over an instant worker, with them and without, in turn.

    python -m benchmarks.engines.spans --quick

The spans are live: the host's thread makes them, and the provider's thread exports them. So there are two figures. CPU
time of the host's thread bounds how many requests a host can run; CPU time of the whole process is what a machine
spends. An instant worker is the worst case: with a model behind it, a task takes a thousand times as long. The exporter
keeps nothing.
"""

from __future__ import annotations

import gc
import statistics
import threading
import time
from typing import Any, ClassVar

import click
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.report import Report
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.host.telemetry import Telemetry
from scaffolding_ext.protocol import GenerationTask, TaskStatus, Worker

WIDTH = 16
SYSTEMS = ("none", "spans", "one request of ten")


class InstantWorker(Worker):
    """Answers at once."""

    async def _generate(self, task: GenerationTask) -> TaskStatus:
        task.output_str, task.output_tokens = "\\boxed{1}", [1]
        return TaskStatus.SUCCESS

    task_handlers: ClassVar[dict[Any, Any]] = {GenerationTask: _generate}


class Nowhere(SpanExporter):
    """Takes spans and forgets them."""

    def export(self, spans: Any) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def telemetry_of(system: str) -> Telemetry | None:
    """What makes the spans of a system."""
    if system == "none":
        return None
    provider = TracerProvider(sampler=None if system == "spans" else TraceIdRatioBased(0.1))
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    return Telemetry(provider)


def microseconds_a_task(system: str, num_requests: int) -> tuple[float, float]:
    """CPU time of the host's thread, and of the process until all spans are exported."""
    controller = MajorityVoteController(NativeGenerationController({"temperature": 0.7}), WIDTH, allocation=None)
    telemetry = telemetry_of(system)
    with ScaffoldingLlm(controller, {"generation": InstantWorker()}, seed=0, telemetry=telemetry) as llm:
        llm.generate(["warm up"] * 8)
        gc.collect()
        began, began_thread = time.process_time(), _thread_time(llm)
        llm.generate(["question"] * num_requests)
        thread = _thread_time(llm) - began_thread
        if telemetry is not None:
            telemetry.flush(600.0)
        process = time.process_time() - began
    scale = 1e6 / (num_requests * WIDTH)
    return thread * scale, process * scale


def _thread_time(llm: ScaffoldingLlm) -> float:
    """CPU time of the host's thread so far."""
    found: list[float] = []
    asked = threading.Event()
    llm.loop.call_soon_threadsafe(lambda: (found.append(time.thread_time()), asked.set()))
    asked.wait()
    return found[0]


@benchmark("engines.spans")
@size("--num_requests", 2048, quick=128, help="Votes of a run.")
@click.option("--repetitions", default=5, show_default=True, help="Runs of each system, in turn; the median counts.")
def main(report: Report, num_requests: int, repetitions: int) -> None:
    """CPU time a task of the host's thread and of the process, with spans, with a tenth of them, and without."""
    report.setting |= {"width": WIDTH, "num_requests": num_requests}
    found: dict[str, list[tuple[float, float]]] = {system: [] for system in SYSTEMS}
    for repetition in track(range(repetitions), "rounds"):
        for system in SYSTEMS[repetition % 3 :] + SYSTEMS[: repetition % 3]:
            found[system].append(microseconds_a_task(system, num_requests))
    for which, name in enumerate(("host's thread", "process")):
        plain = [pair[which] for pair in found["none"]]
        for system in SYSTEMS:
            values = [pair[which] for pair in found[system]]
            report.figure(f"{name}, {system} (us a task)", statistics.median(values), min(values), max(values))
        for system in SYSTEMS[1:]:
            ratios = [pair[which] / one for pair, one in zip(found[system], plain, strict=True)]
            report.figure(f"{name}, {system} over none", statistics.median(ratios), min(ratios), max(ratios))


if __name__ == "__main__":
    main()
