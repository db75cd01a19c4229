"""What the transformers engine gains over transformers' own `generate`, side by side in one run.

    python benchmarks/huggingface_worker.py --quick

On problems of the embedded grammar, one thread, sampling at temperature 0.7: decoding in step, whole chains of mixed
length, prompts with one long prefix, the time to the first token behind a cached prefix; and what two workers in one
process leave each other. Each ratio is the median over repetitions in which the sides take turns; its low and high are
the smallest and largest.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import click
from common import Bar, Report, report_options
from rich.console import Console
from rich.progress import track

from scaffolding_ext.evaluation.datasets import embedded_problems
from scaffolding_ext.prompting import load_tokenizer, model_folder
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.workers.huggingface import HuggingFaceWorker

TEMPERATURE = 0.7
BATCH = 64
SHORT_DRAWS = 3  # of the settings that take a second, for one of whole chains
MAX_CHAIN_LEN = 1536  # tokens; with its prompt a chain fits the context
Prompts = list[list[int]]


class Sides:
    """One model behind our engine, and behind transformers' `generate`."""

    def __init__(self, model: str, seed: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.network = AutoModelForCausalLM.from_pretrained(model_folder(model)).eval()
        self.tokenizer = load_tokenizer(model)
        self.worker = HuggingFaceWorker(model, seed=seed, threads=1)
        self.without_reuse = HuggingFaceWorker(model, seed=seed, threads=1, enable_block_reuse=False)

    def prompts(self, num: int, seed: int, prefix: str = "") -> Prompts:
        """Token ids of problems; the prefix goes before each question."""
        problems = embedded_problems(num, seed)
        texts = [f"<|user|>{prefix}{problem.prompt}<|assistant|><think>\n" for problem in problems]
        return [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]

    def filler(self, length: int, seed: int) -> list[int]:
        """Token ids of problems put one after the other."""
        ids: list[int] = []
        while len(ids) < length:
            seed += 1
            ids += self.prompts(1, seed)[0]
        return ids[:length]

    def shutdown(self) -> None:
        self.worker.shutdown()
        self.without_reuse.shutdown()

    def generate(self, prompts: Prompts, max_tokens: int, ends: bool) -> int:
        """Padded batches of transformers' `generate`; returns the tokens up to each text's end."""
        import torch

        num_useful = 0
        for start in range(0, len(prompts), BATCH):
            batch = prompts[start : start + BATCH]
            width = max(map(len, batch))
            ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in batch])
            mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in batch])
            with torch.inference_mode():
                output = self.network.generate(
                    input_ids=ids,
                    attention_mask=mask,
                    do_sample=True,
                    temperature=TEMPERATURE,
                    top_k=0,
                    top_p=1.0,
                    max_new_tokens=max_tokens,
                    eos_token_id=self.tokenizer.eos_token_id if ends else None,
                    pad_token_id=0,
                )
            for row in output[:, width:].tolist():
                end = self.tokenizer.eos_token_id
                num_useful += row.index(end) + 1 if ends and end in row else len(row)
        return num_useful

    @staticmethod
    def run(worker: HuggingFaceWorker, prompts: Prompts, max_tokens: int, ends: bool) -> int:
        """All prompts at once through an engine; returns the tokens generated."""
        tasks = [
            GenerationTask(
                input_tokens=prompt, max_tokens=max_tokens, temperature=TEMPERATURE, seed=index, ignore_eos=not ends
            )
            for index, prompt in enumerate(prompts)
        ]

        async def run_all() -> None:
            await asyncio.gather(*[worker.run_task(task) for task in tasks])

        asyncio.run(run_all())
        return sum(len(task.output_tokens or ()) for task in tasks)


def seconds_of(action: Callable[[], Any]) -> tuple[float, Any]:
    """How long an action takes, and what it returns."""
    started = time.perf_counter()
    value = action()
    return time.perf_counter() - started, value


class Ratios:
    """Samples of figures, by name, and their medians with the range."""

    def __init__(self) -> None:
        self._samples: dict[str, list[float]] = {}

    def add(self, **figures: float) -> None:
        for name, value in figures.items():
            self._samples.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        values = sorted(self._samples[name])
        return values[len(values) // 2]

    def report(self, report: Report) -> None:
        for name, values in self._samples.items():
            report.figure(name, self.median(name), min(values), max(values))


def measure_throughput(
    sides: Sides, ratios: Ratios, name: str, prompts: Prompts, max_tokens: int, *, ends: bool, reuse_matters: bool
) -> None:
    """Tokens a second of `generate`, of the engine, and of the engine without reuse where that matters."""
    seconds, num_tokens = seconds_of(lambda: sides.generate(prompts, max_tokens, ends))
    theirs = num_tokens / seconds
    seconds, num_tokens = seconds_of(lambda: sides.run(sides.worker, prompts, max_tokens, ends))
    ours = num_tokens / seconds
    ratios.add(
        **{f"{name}_generate_tokens_per_s": theirs, f"{name}_tokens_per_s": ours, f"{name}_ratio": ours / theirs}
    )
    if reuse_matters:
        seconds, num_tokens = seconds_of(lambda: sides.run(sides.without_reuse, prompts, max_tokens, ends))
        without = num_tokens / seconds
        ratios.add(**{f"{name}_without_reuse_tokens_per_s": without, f"{name}_gain_of_reuse": ours / without})


def measure_first_token(sides: Sides, ratios: Ratios, prefix_len: int, suffix_len: int, seed: int) -> None:
    """Seconds to the first token of a prompt whose prefix is new, and of one whose prefix is cached."""
    prefix = sides.filler(prefix_len, seed)
    rng = random.Random(seed)
    suffixes = [[rng.randrange(16, 500) for _ in range(suffix_len)] for _ in range(6)]
    cold, _ = seconds_of(lambda: sides.run(sides.worker, [prefix + suffixes[0]], 1, False))
    cached = sorted(
        seconds_of(lambda suffix=suffix: sides.run(sides.worker, [prefix + suffix], 1, False))[0]
        for suffix in suffixes[1:]
    )[2]
    ratios.add(first_token_cold_s=cold, first_token_cached_s=cached, first_token_ratio=cached / cold)


def measure_two_workers(models: tuple[str, str], ratios: Ratios, prompts: Prompts, window_s: float) -> None:
    """Tokens a second of two workers alone and side by side in this process."""
    workers = {name: HuggingFaceWorker(name, threads=1) for name in models}

    async def rates(names: tuple[str, ...]) -> dict[str, float]:
        running = [
            asyncio.ensure_future(
                workers[name].run_task(GenerationTask(input_tokens=prompt, max_tokens=MAX_CHAIN_LEN, ignore_eos=True))
            )
            for name in names
            for prompt in prompts
        ]
        await asyncio.sleep(window_s / 2)  # until the prompts are read
        before = {name: workers[name].metrics.num_decoded for name in names}
        await asyncio.sleep(window_s)
        decoded = {name: workers[name].metrics.num_decoded - before[name] for name in names}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        return {name: number / window_s for name, number in decoded.items()}

    alone = {name: asyncio.run(rates((name,)))[name] for name in models}
    together = asyncio.run(rates(models))
    for name, worker in workers.items():
        worker.shutdown()
        short = name.rpartition("/")[2]
        ratios.add(**{f"alone_{short}_tokens_per_s": alone[name], f"together_{short}_tokens_per_s": together[name]})
        ratios.add(**{f"together_{short}_share": together[name] / alone[name]})


@click.command(epilog="Example: python benchmarks/huggingface_worker.py --json")
@report_options
@click.option("--model", default="tinylm/target", show_default=True, help="The model.")
@click.option("--repetitions", default=5, show_default=True, help="Runs of each setting; the median counts.")
def main(seed: int, quick: bool, as_json: bool, model: str, repetitions: int) -> None:
    """Tokens a second and time to the first token, in ratio to transformers' padded `generate`."""
    num_chains = 32 if quick else 256
    prefix_len = 512
    report = Report(
        "huggingface_worker",
        {"seed": seed, "model": model, "threads": 1, "repetitions": repetitions, "temperature": TEMPERATURE}
        | {"batch": BATCH, "chains": num_chains, "prefix": prefix_len},
    )
    sides = Sides(model, seed)
    ratios = Ratios()
    console = Console(stderr=True)
    sides.run(sides.worker, sides.prompts(BATCH, seed), 4, False)
    sides.generate(sides.prompts(BATCH, seed), 4, False)
    rounds = range(seed * 1000, seed * 1000 + repetitions)
    for repetition in track(rounds, "repetitions", console=console, disable=not sys.stderr.isatty()):
        mixed = sides.prompts(num_chains, repetition)
        measure_throughput(sides, ratios, "chains", mixed, MAX_CHAIN_LEN, ends=True, reuse_matters=False)
        for draw in range(repetition * SHORT_DRAWS, (repetition + 1) * SHORT_DRAWS):
            alike = sides.prompts(BATCH, draw)
            measure_throughput(sides, ratios, "in_step", alike, 64, ends=False, reuse_matters=False)
            prefix = sides.tokenizer.decode(sides.filler(prefix_len, draw))
            shared = sides.prompts(BATCH, draw, prefix)
            measure_throughput(sides, ratios, "prefix", shared, 64, ends=False, reuse_matters=True)
            measure_first_token(sides, ratios, 1024, 16, draw)
        measure_two_workers(("tinylm/target", "tinylm/draft"), ratios, mixed[:32], 0.5 if quick else 2.0)
    sides.shutdown()
    ratios.report(report)
    report.bar(Bar.at_least("64 requests of 64 tokens, to padded generate", ratios.median("in_step_ratio"), 1.2))
    report.bar(Bar.at_least("256 whole chains, to generate in batches of 64", ratios.median("chains_ratio"), 5.0))
    report.bar(Bar.at_least("64 requests with one prefix, to padded generate", ratios.median("prefix_ratio"), 3.0))
    report.bar(Bar.at_most("first token behind a cached prefix, to cold", ratios.median("first_token_ratio"), 0.15))
    for name in ("target", "draft"):
        share = ratios.median(f"together_{name}_share")
        report.bar(Bar.at_least(f"{name} beside another worker, to alone", share, 0.4))
    report.show(as_json)


if __name__ == "__main__":
    main()
