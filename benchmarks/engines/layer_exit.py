"""What an exit rule saves of a verdict on a long prompt: CPU seconds beside the same verdict without a rule.

    python -m benchmarks.engines.layer_exit

Three verdicts on prompts that nobody has read follow one another: without a rule, with a rule that fires after the
second layer, and with a rule that never fires. The chunk is the default. Ratios are geometric means over repetitions.
"""

from __future__ import annotations

import asyncio
import time

import click

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.pairs import Samples
from benchmarks._lib.report import Report
from scaffolding_ext.protocol.branching import LayerExit, VerifyTask
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

RULES = {"none": None, "fires": LayerExit(1e9, 1e9), "never": LayerExit(1e-9, 1e-9)}
LEAST_SAVED, MOST_ADDED = 1.8, 1.1
YES, NO = 70, 71


@benchmark("engines.layer_exit")
@click.option("--model", default="tinylm/target", show_default=True, help="The model.")
@size("--prompt_len", 1024, quick=1024, help="Tokens of a prompt.")
@size("--num_prompts", 4, quick=2, help="Prompts of a verdict.")
@size("--repetitions", 40, quick=3, help="Verdicts of each kind.")
def main(report: Report, model: str, prompt_len: int, num_prompts: int, repetitions: int) -> None:
    """CPU seconds of verdicts with an exit rule, at the default chunk."""
    samples, number = Samples(), 0
    with HuggingFaceWorker(model) as worker:
        for repetition in track(range(repetitions + 1), "verdicts"):
            seconds = {}
            for name, rule in RULES.items():
                number += 1
                branches = [
                    [5 + (37 * place + 13 * number + 7 * each) % 400 for place in range(prompt_len)]
                    for each in range(num_prompts)
                ]
                task = VerifyTask(branches=branches, yes_token=YES, no_token=NO, layer_exit=rule)
                started = time.process_time()
                asyncio.run(worker.run_task(task))
                seconds[name] = time.process_time() - started
            if repetition:  # the first warms up
                samples.add(saved=seconds["none"] / seconds["fires"], added=seconds["never"] / seconds["none"])
    samples.report(report)
    report.bar("CPU without a rule to that with one", report.figures["saved"]["value"], ">=", LEAST_SAVED)
    report.bar("CPU of a rule that never fires to that without", report.figures["added"]["value"], "<=", MOST_ADDED)


if __name__ == "__main__":
    main()
