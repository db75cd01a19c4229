"""What an evaluation costs beside its requests: time and memory of `eval` on an instant worker, and of a summary.

    python -m benchmarks.engines.evaluation --quick

Each part is a process of its own. Times are CPU time, as in `engines.orchestration`: an instant worker never waits.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from itertools import repeat
from pathlib import Path

import click

from benchmarks._lib.command import benchmark, size
from benchmarks._lib.report import Report
from benchmarks.engines.orchestration import InstantWorker, own_peak_mib

PARALLEL = 64
STACK = {
    "controller": {"type": "NativeGenerationController"},
    "workers": {"generation": {"type": "benchmarks.engines.orchestration:InstantWorker"}},
    "max_parallel_requests": PARALLEL,
}
EPOCHS = 16  # of the records that are summed up in several


def write_dataset(path: Path, num_samples: int) -> None:
    """Questions that differ, of the usual length."""
    with path.open("w", encoding="utf-8") as file:
        for i in range(num_samples):
            question = f"A train leaves at {i}. {'It goes on and on. ' * 10}How many are there?"
            file.write(json.dumps({"id": f"question-{i}", "question": question, "answer": i % 2}) + "\n")


def measured() -> None:
    """Print what this process has cost."""
    print(json.dumps({"seconds": time.process_time(), "mib": own_peak_mib()}))


def run_bare(dataset: str) -> None:
    """The requests alone: as many in flight, and nothing is kept."""
    from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
    from scaffolding_ext.evaluation.run.datasets import load_dataset
    from scaffolding_ext.host.llm import ScaffoldingLlm

    samples = iter(load_dataset(dataset))

    async def run_each(llm: ScaffoldingLlm) -> None:
        for sample in samples:
            await llm.generate_async(sample.prompt, sample_id=sample.id)

    async def run_all() -> None:
        with ScaffoldingLlm(NativeGenerationController(), {"generation": InstantWorker()}, PARALLEL, seed=0) as llm:
            await asyncio.gather(*map(run_each, repeat(llm, PARALLEL)))

    asyncio.run(run_all())
    measured()


def run_eval(folder: str) -> None:
    """The command, with a folder for its records."""
    from scaffolding_ext.cli.main import main

    arguments = ["eval", "--config", f"{folder}/stack.json", "--dataset", f"{folder}/data.jsonl"]
    main([*arguments, "--output_path", f"{folder}/run"], standalone_mode=False)
    measured()


def run_summary(path: str, epochs: int) -> None:
    """The records of a file summed up, as if they were of several epochs of fewer questions."""
    import dataclasses

    from scaffolding_ext.evaluation.run.records import each_record
    from scaffolding_ext.evaluation.run.summary import summarize

    records = enumerate(each_record(path))
    summarize(dataclasses.replace(one, id=f"{i // epochs}", epoch=i % epochs, answer=f"{i % 3}") for i, one in records)
    measured()


def costs(call: str) -> dict[str, float]:
    """What a call of this module costs in a process of its own."""
    code = f"import benchmarks.engines.evaluation as own; own.{call}"
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True, cwd=root)
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found


@benchmark("engines.evaluation")
@size("--num_samples", 100_000, quick=5_000, help="Samples.")
@click.option("--repetitions", default=3, show_default=True, help="Runs of each; the cheapest counts.")
def main(report: Report, num_samples: int, repetitions: int) -> None:
    """Milliseconds a sample that `eval` adds to the requests, its peak memory, and the cost of a summary."""
    with tempfile.TemporaryDirectory() as folder:
        write_dataset(Path(folder) / "data.jsonl", num_samples)
        (Path(folder) / "stack.json").write_text(json.dumps(STACK), encoding="utf-8")
        bare, full = [], []
        for _ in range(repetitions):
            for file in Path(folder).glob("run/*"):
                file.unlink()
            bare.append(costs(f"run_bare({folder + '/data.jsonl'!r})"))
            full.append(costs(f"run_eval({folder!r})"))
        before = costs("measured()")["seconds"]  # to start Python and to import
        sums = {epochs: costs(f"run_summary({folder + '/run/samples.jsonl'!r}, {epochs})") for epochs in (1, EPOCHS)}
    alone, seconds = (min(each["seconds"] for each in runs) for runs in (bare, full))
    added = (seconds - alone) / num_samples * 1e3
    report.figure("requests alone: milliseconds a sample", (alone - before) / num_samples * 1e3)
    report.figure("eval: milliseconds a sample", (seconds - before) / num_samples * 1e3)
    memory = max(each["mib"] for each in full)
    report.figure("requests alone: peak MiB", max(each["mib"] for each in bare))
    report.bar("milliseconds that eval adds to a sample", added, "<=", 0.3)
    report.bar("peak MiB of eval", memory, "<=", 300)
    for epochs, cost in sums.items():
        report.bar(f"seconds to read and sum up, {epochs} epochs", cost["seconds"], "<=", 30)
        report.bar(f"peak MiB of it, {epochs} epochs", cost["mib"], "<=", 1024)


if __name__ == "__main__":
    main()
