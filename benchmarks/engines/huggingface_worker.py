"""What the transformers engine gains over transformers' own `generate`, side by side in one run.

    python -m benchmarks.engines.huggingface_worker --quick

On problems of the embedded grammar, one thread, sampling at temperature 0.7: decoding in step, whole chains of mixed
length, prompts with one long prefix, the time to the first token behind a cached prefix; and what two workers in one
process leave each other. Both sides of a ratio are measured on the same prompts, one right after the other, and the
next time in the other order. A figure is the geometric mean over these pairs with its 95 % confidence interval
(Student's t of the logarithms). `..._cpu_ratio` is in seconds of this process, so that other processes count less.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import click
from scipy.stats import t as student

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.report import Report
from scaffolding_ext.evaluation.run.datasets import embedded_problems
from scaffolding_ext.prompts.prompting import load_tokenizer, model_folder
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

TEMPERATURE = 0.7
Prompts = list[list[int]]


class Sizes(NamedTuple):
    """How much is measured.

    Attributes:
        repetitions: Rounds, in which every setting comes once.
        batch: Requests of one padded `generate`, and of the settings that run in step.
        num_chains: Whole chains; `generate` runs them in batches.
        max_chain_len: Tokens after which a chain is cut.
        short_len: Tokens of each request in the short settings.
        prefix_len: Tokens that the prompts of one setting have in common.
        cold_len: Prompt tokens before the first one, where that is timed.
        window_s: Seconds for which two workers are watched.
    """

    repetitions: int = 5
    batch: int = 64
    num_chains: int = 256
    max_chain_len: int = 1536
    short_len: int = 64
    prefix_len: int = 512
    cold_len: int = 1024
    window_s: float = 2.0


QUICK = Sizes(3, 16, 16, 128, 24, 256, 512, 0.3)


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

    def generate(self, prompts: Prompts, max_tokens: int, ends: bool, batch_size: int) -> int:
        """Padded batches of transformers' `generate`; returns the tokens up to each text's end."""
        import torch

        num_useful = 0
        for start in range(0, len(prompts), batch_size):
            batch = prompts[start : start + batch_size]
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


class Cost(NamedTuple):
    """What a run took, per token that it gave."""

    wall_s: float
    cpu_s: float


def cost_of(action: Callable[[], int]) -> Cost:
    """Run what returns a number of tokens; its seconds for each of them."""
    wall, cpu = time.perf_counter(), time.process_time()
    num_tokens = action()
    return Cost((time.perf_counter() - wall) / num_tokens, (time.process_time() - cpu) / num_tokens)


class Samples:
    """Samples of positive figures, by name."""

    def __init__(self) -> None:
        self._samples: dict[str, list[float]] = {}

    def add(self, **figures: float) -> None:
        for name, value in figures.items():
            self._samples.setdefault(name, []).append(value)

    def mean(self, name: str) -> float:
        """The geometric mean."""
        values = self._samples[name]
        return math.exp(math.fsum(map(math.log, values)) / len(values))

    def interval(self, name: str) -> tuple[float | None, float | None]:
        """The 95 % confidence interval of the mean; of one sample there is none."""
        logs = [math.log(value) for value in self._samples[name]]
        n, middle = len(logs), math.log(self.mean(name))
        if n < 2:
            return None, None
        spread = math.sqrt(math.fsum((x - middle) ** 2 for x in logs) / (n - 1) / n)
        margin = float(student.ppf(0.975, n - 1)) * spread
        return math.exp(middle - margin), math.exp(middle + margin)

    def report(self, report: Report) -> None:
        for name in self._samples:
            report.figure(name, self.mean(name), *self.interval(name))


def measure_throughput(
    sides: Sides,
    samples: Samples,
    name: str,
    prompts: Prompts,
    max_tokens: int,
    batch_size: int,
    *,
    ends: bool = False,
    without_reuse: bool = False,
    ours_first: bool,
) -> None:
    """Tokens a second of `generate`, of the engine, and of the engine without reuse where that is asked for."""
    actions = {
        "theirs": lambda: sides.generate(prompts, max_tokens, ends, batch_size),
        "ours": lambda: sides.run(sides.worker, prompts, max_tokens, ends),
    }
    if without_reuse:
        actions["without_reuse"] = lambda: sides.run(sides.without_reuse, prompts, max_tokens, ends)
    order = sorted(actions, reverse=not ours_first)
    cost = {side: cost_of(actions[side]) for side in order}
    ours, theirs = cost["ours"], cost["theirs"]
    samples.add(
        **{
            f"{name}_generate_tokens_per_s": 1 / theirs.wall_s,
            f"{name}_tokens_per_s": 1 / ours.wall_s,
            f"{name}_ratio": theirs.wall_s / ours.wall_s,
            f"{name}_cpu_ratio": theirs.cpu_s / ours.cpu_s,
        }
    )
    if without_reuse:
        samples.add(**{f"{name}_gain_of_reuse": cost["without_reuse"].wall_s / ours.wall_s})


def measure_first_token(sides: Sides, samples: Samples, prefix_len: int, suffix_len: int, seed: int) -> None:
    """Seconds to the first token of a prompt whose prefix is new, and of one whose prefix is cached."""
    prefix = sides.filler(prefix_len, seed)
    rng = random.Random(seed)
    suffixes = [[rng.randrange(16, 500) for _ in range(suffix_len)] for _ in range(6)]
    cold, *cached = (
        cost_of(lambda suffix=suffix: sides.run(sides.worker, [prefix + suffix], 1, False)).wall_s
        for suffix in suffixes
    )
    warm = sorted(cached)[2]
    samples.add(first_token_cold_s=cold, first_token_cached_s=warm, first_token_ratio=warm / cold)


def measure_two_workers(
    models: tuple[str, str], samples: Samples, prompts: Prompts, max_tokens: int, window_s: float
) -> None:
    """Tokens a second of two workers alone and side by side in this process."""
    workers = {name: HuggingFaceWorker(name, threads=1) for name in models}

    def decoded_since(before: dict[str, int]) -> dict[str, int]:
        return {name: workers[name].metrics.num_decoded - number for name, number in before.items()}

    async def rates(names: tuple[str, ...]) -> dict[str, float]:
        running = [
            asyncio.ensure_future(
                workers[name].run_task(GenerationTask(input_tokens=prompt, max_tokens=max_tokens, ignore_eos=True))
            )
            for name in names
            for prompt in prompts
        ]
        pending: Collection[asyncio.Future[Any]] = running
        for window in (0.01, window_s):  # the first lasts until the prompts are read
            started = time.perf_counter()
            before = {name: workers[name].metrics.num_decoded for name in names}
            while pending and not all(decoded_since(before).values()):
                _, pending = await asyncio.wait(pending, timeout=window)
        seconds = time.perf_counter() - started
        decoded = decoded_since(before)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        return {name: number / seconds for name, number in decoded.items()}

    alone = {name: asyncio.run(rates((name,)))[name] for name in models}
    together = asyncio.run(rates(models))
    for name, worker in workers.items():
        worker.shutdown()
        short = name.rpartition("/")[2]
        samples.add(**{f"alone_{short}_tokens_per_s": alone[name], f"together_{short}_tokens_per_s": together[name]})
        samples.add(**{f"together_{short}_share": together[name] / alone[name]})


@benchmark("engines.huggingface_worker --repetitions 3")
@click.option("--model", default="tinylm/target", show_default=True, help="The model.")
@size("--repetitions", 5, quick=3, help="Rounds.")
@size("--num_chains", 256, quick=16, help="Whole chains of a round.")
@size("--max_chain_len", 1536, quick=128, help="Tokens of a chain.")
def main(report: Report, model: str, **chosen: int) -> None:
    """Tokens a second and time to the first token, in ratio to transformers' padded `generate`."""
    seed = report.seed
    sizes = (QUICK if report.setting["quick"] else Sizes())._replace(**chosen)
    report.setting |= {"threads": 1, "temperature": TEMPERATURE} | sizes._asdict()
    sides, samples = Sides(model, seed), Samples()
    sides.run(sides.worker, sides.prompts(sizes.batch, seed), 4, False)
    sides.generate(sides.prompts(sizes.batch, seed), 4, False, sizes.batch)
    rounds = range(seed * 1000, seed * 1000 + sizes.repetitions)
    for repetition in track(rounds, "rounds"):
        mixed = sides.prompts(sizes.num_chains, repetition)
        ours_first = repetition % 2 == 1
        measure_throughput(
            sides, samples, "chains", mixed, sizes.max_chain_len, sizes.batch, ends=True, ours_first=ours_first
        )
        alike = sides.prompts(sizes.batch, repetition)
        measure_throughput(sides, samples, "in_step", alike, sizes.short_len, sizes.batch, ours_first=ours_first)
        prefix = sides.tokenizer.decode(sides.filler(sizes.prefix_len, repetition))
        measure_throughput(
            sides,
            samples,
            "prefix",
            sides.prompts(sizes.batch, repetition, prefix),
            sizes.short_len,
            sizes.batch,
            without_reuse=True,
            ours_first=ours_first,
        )
        measure_first_token(sides, samples, sizes.cold_len, 16, repetition)
        measure_two_workers(
            ("tinylm/target", "tinylm/draft"), samples, mixed[:32], Sizes().max_chain_len, sizes.window_s
        )
    sides.shutdown()
    samples.report(report)
    for name, figure, bar in (
        (f"{sizes.batch} requests of {sizes.short_len} tokens, to padded generate", "in_step_ratio", 1.2),
        (f"{sizes.num_chains} whole chains, to generate in batches of {sizes.batch}", "chains_ratio", 5.0),
        (f"{sizes.batch} requests with one prefix, to padded generate", "prefix_ratio", 3.0),
        ("target beside another worker, to alone", "together_target_share", 0.4),
        ("draft beside another worker, to alone", "together_draft_share", 0.4),
    ):
        report.bar(name, samples.mean(figure), ">=", bar)
    report.bar("first token behind a cached prefix, to cold", samples.mean("first_token_ratio"), "<=", 0.15)


if __name__ == "__main__":
    main()
