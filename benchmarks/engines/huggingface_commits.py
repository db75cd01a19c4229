"""What a change costs the transformers engine: this checkout against another one, pair by pair in one run.

    python -m benchmarks.engines.huggingface_commits --other ../before

Each measurement is a process of its own that serves the same prompts from one of the two checkouts: whole chains of
mixed length, requests in step, and prompts with one long prefix; both sides of a pair run one right after the other,
and the next time in the other order. A figure is the geometric mean of CPU seconds here by CPU seconds there, with its
95 % confidence interval. The other checkout needs its own build of the C kernel
(`python setup.py build_ext --inplace`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.report import Report
from benchmarks.engines.huggingface_worker import Samples

HERE = Path(__file__).resolve().parents[2]
SETTINGS = ("chains", "in_step", "prefix")
MOST = 1.05  # CPU seconds here by those there

# Runs in either checkout, so that it uses nothing but what both have.
MEASURE = """
import asyncio, json, resource, sys, time
from scaffolding_ext.evaluation.run.datasets import embedded_problems
from scaffolding_ext.prompts.prompting import load_tokenizer
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

model, seed, num_chains, max_chain_len, batch, short_len, prefix_len = json.loads(sys.argv[1])
tokenizer = load_tokenizer(model)
worker = HuggingFaceWorker(model, seed=0, threads=1)

def prompts(num, prefix=""):
    texts = [f"<|user|>{prefix}{p.prompt}<|assistant|><think>\\n" for p in embedded_problems(num, seed)]
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]

async def run(given, max_tokens, ends):
    tasks = [
        GenerationTask(input_tokens=ids, max_tokens=max_tokens, temperature=0.7, seed=i, ignore_eos=not ends)
        for i, ids in enumerate(given)
    ]
    await asyncio.gather(*[worker.run_task(task) for task in tasks])
    return [task.output_tokens for task in tasks]

asyncio.run(run([[5, 6, 7 + i] for i in range(batch)], 8, False))
mixed, alike = prompts(num_chains), prompts(batch)
prefix = tokenizer.decode(sum(prompts(num_chains), [])[:prefix_len])
found = {}
for name, given, limit, ends in (
    ("chains", mixed, max_chain_len, True),
    ("in_step", alike, short_len, False),
    ("prefix", prompts(batch, prefix), short_len, False),
):
    started = time.process_time()
    texts = asyncio.run(run(given, limit, ends))
    found[name] = {"cpu_s": time.process_time() - started, "texts": texts}
worker.shutdown()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({**found, "peak_mib": peak}))
"""


def measured(checkout: Path, sizes: list[object]) -> dict[str, Any]:
    """CPU seconds and texts of each setting, and the most memory, of a process of that checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, json.dumps(sizes)],
        env=environment,
        cwd=checkout,
        capture_output=True,
        text=True,
        check=True,
    )
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


@benchmark("engines.huggingface_commits --other ../before")
@click.option(
    "--other",
    default=HERE,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The other checkout.  [default: this one, which tells how far two runs of the same differ]",
)
@click.option("--model", default="tinylm/target", show_default=True, help="The model.")
@size("--repetitions", 5, quick=2, help="Pairs.")
@size("--num_chains", 96, quick=16, help="Whole chains of a run.")
@size("--max_chain_len", 1024, quick=128, help="Tokens of a chain.")
@size("--batch", 64, quick=16, help="Requests in step, and of those with one prefix.")
@size("--short_len", 96, quick=24, help="Tokens that each of these generates.")
@size("--prefix_len", 512, quick=256, help="Tokens of the prefix.")
def main(report: Report, other: Path, model: str, repetitions: int, **sizes: int) -> None:
    """CPU seconds and most memory of the transformers engine here, in ratio to another checkout."""
    report.setting |= {"other": other.name, "repetitions": repetitions, **sizes}
    samples = Samples()
    num_texts = num_equal = 0
    for pair in track(range(repetitions), "pairs"):
        given = [model, report.seed * 1000 + pair, *sizes.values()]
        order = [HERE, other.resolve()][:: 1 if pair % 2 else -1]
        runs = [measured(checkout, given) for checkout in order]
        here, there = runs if order[0] == HERE else reversed(runs)
        for name in SETTINGS:
            samples.add(**{f"{name}_cpu_ratio": here[name]["cpu_s"] / there[name]["cpu_s"]})
            samples.add(**{f"{name}_cpu_s": here[name]["cpu_s"], f"{name}_other_cpu_s": there[name]["cpu_s"]})
            num_texts += len(here[name]["texts"])
            num_equal += sum(a == b for a, b in zip(here[name]["texts"], there[name]["texts"], strict=True))
        samples.add(peak_mib=here["peak_mib"], other_peak_mib=there["peak_mib"])
    samples.report(report)
    report.figure("share_of_equal_texts", num_equal / num_texts)
    for name in SETTINGS:
        report.bar(f"{name}, CPU seconds to those of the other", samples.mean(f"{name}_cpu_ratio"), "<=", MOST)


if __name__ == "__main__":
    main()
