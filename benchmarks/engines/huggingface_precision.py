"""What it costs and gains to keep keys and values, or weights, in fewer bits: equal texts, bytes, and CPU seconds.

    python -m benchmarks.engines.huggingface_precision --kv_cache_dtype float16

Each prompt is answered greedily by two workers that differ in what the options name alone. A text is equal where all of
its tokens are. Both sides answer the same prompts at once, one right after the other and the next time in the other
order; the ratio of their CPU seconds is the geometric mean over these pairs.
"""

from __future__ import annotations

import asyncio
import os

import click

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.pairs import Prompts, Samples, cost_of
from benchmarks._lib.report import Report
from scaffolding_ext.evaluation.run.datasets import EMBEDDED, load_dataset
from scaffolding_ext.prompts.prompting import load_tokenizer
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.workers.huggingface.block_pool import num_common
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

LEAST_EQUAL = 0.99


def greedy(worker: HuggingFaceWorker, prompts: Prompts, max_tokens: int) -> Prompts:
    """The greedy texts of all prompts at once, as token ids."""
    tasks = [GenerationTask(input_tokens=ids, max_tokens=max_tokens, temperature=0.0) for ids in prompts]

    async def run() -> None:
        await asyncio.gather(*[worker.run_task(task) for task in tasks])

    asyncio.run(run())
    return [list(task.output_tokens or ()) for task in tasks]


def extend(texts: Prompts, more: Prompts) -> int:
    """Append texts; returns how many tokens they have."""
    texts += more
    return sum(map(len, more))


def block_bytes(worker: HuggingFaceWorker) -> float:
    """Bytes of a block of keys and values."""
    kv = worker._engine._batch._runner._kv
    return kv.num_bytes / (kv.num_blocks + 1)


@benchmark("engines.huggingface_precision --kv_cache_dtype float16")
@click.option("--model", default="tinylm/target", show_default=True, help="The model.")
@click.option("--dataset", default=EMBEDDED, show_default=True, help="Where the prompts come from.")
@click.option("--kv_cache_dtype", default=None, help="Of keys and values; held against float32.")
@click.option("--weight_dtype", default=None, help="Of the matrices of linear layers; held against float32.")
@size("--num_prompts", 512, quick=64, help="Prompts.")
@size("--max_tokens", 512, quick=96, help="Tokens of a text at most.")
@size("--at_once", 64, quick=64, help="Prompts that are answered at once.")
def main(
    report: Report,
    model: str,
    dataset: str,
    kv_cache_dtype: str | None,
    weight_dtype: str | None,
    num_prompts: int,
    max_tokens: int,
    at_once: int,
) -> None:
    """Equal greedy texts, bytes, and CPU seconds of a worker that rounds, beside one that does not."""
    report.setting |= {"num_prompts": num_prompts, "max_tokens": max_tokens, "at_once": at_once, "threads": 1}
    report.setting["load_at_start"] = os.getloadavg()[0]
    tokenizer = load_tokenizer(model)
    drawn = {"num_samples": num_prompts, "seed": report.seed} if dataset == EMBEDDED else {"limit": str(num_prompts)}
    prompts: Prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": sample.prompt}], add_generation_prompt=True, return_dict=False
        )
        for sample in load_dataset(dataset, **drawn)
    ]
    options = {"max_batch_size": at_once, "prefix_cache_bytes": 0}
    wide = HuggingFaceWorker(model, **options)
    narrow = HuggingFaceWorker(model, kv_cache_dtype=kv_cache_dtype, weight_dtype=weight_dtype, **options)
    texts: dict[HuggingFaceWorker, Prompts] = {wide: [], narrow: []}
    samples = Samples()
    for number, start in enumerate(track(range(0, len(prompts), at_once), "pairs")):
        part = prompts[start : start + at_once]
        cost = {}
        for worker in (wide, narrow)[:: 1 if number % 2 else -1]:
            given = worker, part, max_tokens
            cost[worker] = cost_of(lambda given=given: extend(texts[given[0]], greedy(*given)))
        samples.add(cpu_ratio=cost[narrow].cpu_s / cost[wide].cpu_s)
    pairs = list(zip(texts[wide], texts[narrow], strict=True))
    report.figure("tokens", sum(map(len, texts[wide])))
    share = report.share("share_of_equal_texts", sum(a == b for a, b in pairs), len(pairs))
    report.ratio("tokens_up_to_the_first_other", [num_common(a, b) for a, b in pairs], [len(a) for a, _ in pairs])
    bytes_ratio = block_bytes(narrow) / block_bytes(wide)
    report.figure("kv_bytes_ratio", bytes_ratio)
    samples.report(report)
    for worker in (wide, narrow):
        worker.shutdown()
    if kv_cache_dtype is not None and weight_dtype is None:
        report.bar("share of equal greedy texts", share, ">=", LEAST_EQUAL)
        report.bar("bytes of keys and values to those of float32", bytes_ratio, "<=", 0.5)


if __name__ == "__main__":
    main()
