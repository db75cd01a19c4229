"""What an evaluation costs beside its requests: time and memory of `eval` on an instant worker, and of a summary.

    python -m benchmarks.engines.evaluation --quick

Each part is a process of its own. Times are CPU time: an instant worker never waits.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar

from benchmarks._lib.command import benchmark, size
from benchmarks._lib.report import Report
from scaffolding_ext.protocol import GenerationTask, TaskStatus, Worker

PARALLEL = 64
STACK = {
    "controller": {"type": "NativeGenerationController"},
    "workers": {"generation": {"type": "benchmarks.engines.evaluation:InstantWorker"}},
    "max_parallel_requests": PARALLEL,
}
EPOCHS = 16  # of the records that are summed up in several


class InstantWorker(Worker):
    """Answers at once."""

    async def _generate(self, task: GenerationTask) -> TaskStatus:
        task.output_str = "\\boxed{1}"
        task.output_tokens = [1]
        return TaskStatus.SUCCESS

    task_handlers: ClassVar[dict[Any, Any]] = {GenerationTask: _generate}


def own_peak_mib() -> float:
    """Peak resident memory of this process (Linux; `ru_maxrss` would carry the parent's over)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return float(status.partition("VmHWM:")[2].split()[0]) / 1024


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


def run_resume(folder: str) -> None:
    """What `--resume` does before it runs anything, with data set and stack."""
    from scaffolding_ext.cli.main import main

    arguments = [
        "eval",
        "--config",
        f"{folder}/stack.json",
        "--dataset",
        f"{folder}/data.jsonl",
        "--resume",
        "--dry_run",
    ]
    main([*arguments, "--output_path", f"{folder}/run"], standalone_mode=False)
    measured()


def run_compare(folder: str) -> None:
    """Two runs compared, with a report."""
    from scaffolding_ext.cli.main import main

    main(
        ["compare", f"{folder}/run", f"{folder}/other", "--report_path", f"{folder}/report.html"], standalone_mode=False
    )
    measured()


def growth(costs_by_size: dict[int, dict[str, float]]) -> float:
    """KiB of memory that one more sample takes, from the smallest size to the largest."""
    first, last = min(costs_by_size), max(costs_by_size)
    return 1024 * (costs_by_size[last]["mib"] - costs_by_size[first]["mib"]) / (last - first)


def measure_size(report: Report, num_samples: int) -> dict[str, dict[str, float]]:
    """The costs of each part at one size."""
    with tempfile.TemporaryDirectory() as folder:
        write_dataset(Path(folder) / "data.jsonl", num_samples)
        (Path(folder) / "stack.json").write_text(json.dumps(STACK), encoding="utf-8")
        found = {"requests alone": costs(f"run_bare({folder + '/data.jsonl'!r})")}
        found["eval"] = costs(f"run_eval({folder!r})")
        shutil.copytree(f"{folder}/run", f"{folder}/other", copy_function=shutil.copy2)
        found["resume, records"] = costs(f"run_resume({folder!r})")
        found["compare, records"] = costs(f"run_compare({folder!r})")
        report_mib = Path(folder, "report.html").stat().st_size / 2**20
        for epochs in (1, EPOCHS):
            records = folder + "/run/samples.jsonl"
            found[f"read and sum up, {epochs} epochs"] = costs(f"run_summary({records!r}, {epochs})")
    for name, cost in found.items():
        report.figure(f"{num_samples:,}, {name}: seconds", cost["seconds"])
        report.figure(f"{num_samples:,}, {name}: peak MiB", cost["mib"])
    report.figure(f"{num_samples:,}, report: MiB", report_mib)
    return found


@benchmark("engines.evaluation")
@size(
    "--num_samples", 200_000, quick=5_000, help="The most samples; a tenth and a hundredth of them are measured, too."
)
def main(report: Report, num_samples: int) -> None:
    """What `eval` adds to the requests, how its memory grows, how soon `--resume` starts, and what `compare` takes."""
    sizes = (num_samples // 100, num_samples // 10, num_samples)
    found = {number: measure_size(report, number) for number in sizes}
    most = found[num_samples]
    added = (most["eval"]["seconds"] - most["requests alone"]["seconds"]) / num_samples * 1e3
    report.bar("milliseconds that eval adds to a sample", added, "<=", 0.3)
    grown = {name: growth({number: parts[name] for number, parts in found.items()}) for name in most}
    for name, kib in grown.items():
        report.figure(f"{name}: KiB that one more sample takes", kib)
    own = grown["eval"] - grown["requests alone"]
    report.bar("KiB of one more sample in eval, beside data set and request", own, "<=", 0.2)
    report.bar("seconds until --resume starts, from records", most["resume, records"]["seconds"], "<=", 10)
    report.bar("seconds to compare two runs, from records", most["compare, records"]["seconds"], "<=", 30)


if __name__ == "__main__":
    main()
