"""Times the transformers engine on random weights in the shape of a real model.

    python -m benchmarks.gpu.shapes --device cuda --shape 7b --store runs/shapes --plot_path runs/shapes/shapes.png

For a machine with a GPU, torch and transformers, without TensorRT-LLM, weights or a package index. Weights are made on
the device. Parts are kept in `--store` as they finish, so that a run that was cut off goes on; a part that fails is
named in the setting and leaves the others alone. All times are wall-clock.

- machine: bandwidth of the memory, and speed of a matrix product.
- parity: greedy texts of the embedded model, on the CPU and on the device.
- sharing: seconds and peak memory of branches and verdicts, by what is shared (the switches of `studies.kv_sharing`).
- exits: seconds of verdicts that are read after two layers, beside whole ones.
- engine: tokens a second beside `generate` and transformers' continuous batching, prompts counted on all sides.
- host: microseconds a task of many votes at once, on a worker that takes no time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from benchmarks._lib.command import benchmark, plotted, stored
from benchmarks._lib.decode_rate import BATCHES, SHAPES, bandwidth, random_model
from benchmarks._lib.drawing import drawing
from benchmarks._lib.report import Report
from benchmarks._lib.store import kept
from benchmarks.studies.kv_sharing import BLOCKS, CEILING, NO_KV, PUBLISHED, SHARED, Cell
from scaffolding_ext import HuggingFaceWorker, MajorityVoteController, NativeGenerationController, ScaffoldingLlm
from scaffolding_ext.evaluation.run.datasets import embedded_problems
from scaffolding_ext.prompts.tokenizers import load_tokenizer
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.branching import LayerExit, VerifyTask
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.workers.huggingface.attention import ATTENTION

SWITCHES = (NO_KV, SHARED, BLOCKS, CEILING)
VERDICTS = 70, 71  # any two tokens: the weights are random
EXITS = {"whole": None, "after two layers": LayerExit(1e9, 1e9)}
Figures = dict[str, float]


class Sizes(NamedTuple):
    """Amounts of work."""

    texts: int = 16
    text_tokens: int = 200
    cells: tuple[tuple[int, int], ...] = ((1024, 32), (4096, 32), (4096, 128))  # tokens of the prefix and of a branch
    rounds: int = 3
    verdict_tokens: int = 2048
    prompt_len: int = 512
    num_tokens: int = 128
    votes: int = 512


SMALL = Sizes(4, 60, ((128, 8), (256, 16)), 2, 256, 32, 16, 64)


class Parts:
    """The parts, on one device and one model.

    Args:
        shape: A name of `SHAPES`.
    """

    def __init__(self, device: str, shape: str, seed: int) -> None:
        self._device, self._shape, self._seed = device, shape, seed
        self._on_gpu = device.startswith("cuda")
        self._sizes = SMALL if shape == "tiny" else Sizes()
        self._options: dict[str, Any] = {"prefill_chunk": 2048, "kv_cache_bytes": 2**30 * (12 if self._on_gpu else 1)}

    @cached_property
    def _network(self) -> Any:
        return random_model(SHAPES[self._shape], self._device, "bfloat16" if self._on_gpu else "float32", self._seed)

    @cached_property
    def _served(self) -> dict[str, Any]:
        return {"model": self._network, "tokenizer": load_tokenizer("tinylm/target"), **self._options}

    def machine(self) -> Figures:
        import torch

        width = 8192 if self._on_gpu else 512
        factor = torch.ones(width, width, device=self._device, dtype=torch.bfloat16 if self._on_gpu else torch.float32)
        seconds = min(self._seconds(lambda: factor @ factor) for _ in range(10))
        speed = bandwidth(self._device, 2**32 if self._on_gpu else 2**26)
        return {"bandwidth, GB a second": speed / 1e9, "matrix product, TFLOP a second": 2e-12 * width**3 / seconds}

    def parity(self) -> Figures:
        prompts = [sample.prompt for sample in embedded_problems(self._sizes.texts, seed=5)]
        texts = []
        for device in ("cpu", self._device):
            with HuggingFaceWorker("tinylm/target", device=device) as worker:
                fields = {"max_tokens": self._sizes.text_tokens, "temperature": 0.0}
                tasks = [GenerationTask(input_str=prompt, **fields) for prompt in prompts]
                _run(worker, tasks)
                texts.append([task.output_str for task in tasks])
        return {"texts equal on the CPU and the device": float(np.mean([a == b for a, b in zip(*texts, strict=True)]))}

    def sharing(self) -> Figures:
        found: Figures = {}
        for prefix_len, num_tokens in self._sizes.cells:
            cell = Cell(self._served, list(range(40, 56)), VERDICTS, num_tokens)
            seconds: dict[str, list[float]] = {switch: [] for switch in SWITCHES}
            peaks = dict.fromkeys(SWITCHES, 0.0)
            for number in range(-1, self._sizes.rounds):  # the first round of a shape is slow, and not counted
                prefix = _prompt(number, prefix_len)
                for switch in np.roll(SWITCHES, number):
                    self._forget_peak()
                    taken = cell.run(str(switch), prefix, 1000 + number, None).wall_s
                    if number >= 0:
                        seconds[switch].append(taken)
                        peaks[switch] = max(peaks[switch], self._peak())
            for switch in SWITCHES:
                name = f"{prefix_len} + {num_tokens} tokens: {switch}"
                found[f"{name}, seconds"] = float(np.median(seconds[switch]))
                found[f"{name}, to {BLOCKS}"] = float(np.median(np.divide(seconds[switch], seconds[BLOCKS])))
                if self._on_gpu:
                    found[f"{name}, peak GB"] = peaks[switch]
        return found

    def exits(self) -> Figures:
        seconds: dict[str, list[float]] = {name: [] for name in EXITS}
        with HuggingFaceWorker(**self._served) as worker:
            for number in range(-1, self._sizes.rounds):
                for at, (name, rule) in enumerate(EXITS.items()):
                    branches = [_prompt(99 * number + 7 * each + at, self._sizes.verdict_tokens) for each in range(4)]
                    yes, no = VERDICTS
                    task = VerifyTask(branches=branches, yes_token=yes, no_token=no, layer_exit=rule)
                    taken = self._seconds(lambda task=task: _run(worker, [task]))  # type: ignore[misc]
                    seconds[name] += [taken] if number >= 0 else []
        return {f"verdicts {name}, seconds": float(np.median(each)) for name, each in seconds.items()}

    def engine(self) -> Figures:
        found: Figures = {}
        for batch in BATCHES:
            prompts = [_prompt(row, self._sizes.prompt_len) for row in range(batch)]
            sides = {"ours": self._ours, "generate": self._generate, "generate_batch": self._generate_batch}
            for name, side in sides.items():
                rate = side(prompts)
                if rate is not None:
                    found[f"batch {batch}: {name}, tokens a second"] = rate
        return found

    def host(self) -> Figures:
        chain = NativeGenerationController({"max_tokens": 9, "temperature": 0.7})
        vote, num = MajorityVoteController(chain, 16, allocation=None), self._sizes.votes
        workers = {"generation": ScriptedWorker("so \\boxed{3}")}
        with ScaffoldingLlm(vote, workers, max_parallel_requests=num, seed=0) as llm:
            llm.generate("warm")
            seconds = self._seconds(lambda: llm.generate([f"Question {number}" for number in range(num)]))
        return {f"{num} votes of 16 at once: microseconds a task": 1e6 * seconds / (16 * num)}

    def _ours(self, prompts: list[list[int]]) -> float:
        with HuggingFaceWorker(**self._served, enable_block_reuse=False) as worker:

            def work() -> None:
                fields = {"max_tokens": self._sizes.num_tokens, "temperature": 0.0, "ignore_eos": True}
                _run(worker, [GenerationTask(input_tokens=prompt, **fields) for prompt in prompts])

            return self._rate(work, len(prompts))

    def _generate(self, prompts: list[list[int]]) -> float:
        import torch

        ids, num = torch.tensor(prompts, device=self._device), self._sizes.num_tokens
        fields = {"do_sample": False, "min_new_tokens": num, "max_new_tokens": num, "pad_token_id": 0}
        return self._theirs(lambda: self._network.generate(ids, attention_mask=torch.ones_like(ids), **fields), prompts)

    def _generate_batch(self, prompts: list[list[int]]) -> float | None:
        from transformers import GenerationConfig

        if not self._on_gpu or not hasattr(self._network, "generate_batch"):  # on a CPU it takes seconds a token
            return None
        fields = {"max_new_tokens": self._sizes.num_tokens, "do_sample": False, "eos_token_id": -1, "pad_token_id": 0}
        config = GenerationConfig(**fields)
        try:
            return self._theirs(lambda: self._network.generate_batch(inputs=prompts, generation_config=config), prompts)
        except Exception as error:  # of any type: it needs an attention that is not everywhere
            click.echo(f"generate_batch does not run here: {type(error).__name__}: {error}", err=True)
            return None

    def _theirs(self, work: Callable[[], object], prompts: list[list[int]]) -> float:
        self._network.set_attn_implementation("sdpa")
        try:
            return self._rate(work, len(prompts))
        finally:
            self._network.set_attn_implementation(ATTENTION)

    def _rate(self, work: Callable[[], object], batch: int) -> float:
        work()  # kernels get warm
        return batch * self._sizes.num_tokens / self._seconds(work)

    def _seconds(self, work: Callable[[], object]) -> float:
        self._wait()
        started = time.perf_counter()
        work()
        self._wait()
        return time.perf_counter() - started

    def _wait(self) -> None:
        if self._on_gpu:
            import torch

            torch.cuda.synchronize(self._device)

    def _forget_peak(self) -> None:
        if self._on_gpu:
            import torch

            torch.cuda.reset_peak_memory_stats(self._device)

    def _peak(self) -> float:
        if not self._on_gpu:
            return 0.0
        import torch

        return torch.cuda.max_memory_allocated(self._device) / 1e9


def _prompt(number: int, length: int) -> list[int]:
    """Token ids that differ between numbers."""
    return [5 + (31 * number + 7 * place) % 400 for place in range(length)]


def _run(worker: Any, tasks: Sequence[Any]) -> None:
    async def scenario() -> None:
        await asyncio.gather(*map(worker.run_task, tasks))

    asyncio.run(scenario())


PARTS = ("machine", "parity", "sharing", "exits", "engine", "host")


def draw(figures: dict[str, Any], path: Path) -> None:
    """Seconds of sharing beside those of cached blocks, and tokens a second by batch."""
    with drawing(path, 1, 2, figsize=(10, 4)) as (_, (left, right)):
        ratios = {name: figure["value"] for name, figure in figures.items() if name.endswith(f", to {BLOCKS}")}
        cells = sorted({name.partition(":")[0] for name in ratios})
        for number, switch in enumerate((NO_KV, SHARED, CEILING)):
            places = [place + 0.25 * number for place in range(len(cells))]
            left.bar(places, [ratios[f"{cell}: {switch}, to {BLOCKS}"] for cell in cells], 0.25, label=switch)
        for switch, value in PUBLISHED.items():
            left.axhline(value, linestyle=":", linewidth=1)
            left.annotate(f"paper, {switch}", (len(cells) - 0.4, value), fontsize=7, ha="right", va="bottom")
        left.set(title=f"seconds, {BLOCKS} = 1", xticks=range(len(cells)))
        left.set_xticklabels(cells, fontsize=7)
        for side in ("ours", "generate", "generate_batch"):
            rates = {b: figures.get(f"batch {b}: {side}, tokens a second", {}).get("value") for b in BATCHES}
            known = {batch: rate for batch, rate in rates.items() if rate is not None}
            right.plot(list(known), list(known.values()), "o-", label=side if known else None)
        right.set(title="tokens a second, prompts counted", xlabel="batch", xscale="log", yscale="log")
        left.legend()
        right.legend()


@benchmark("gpu.shapes --device cuda --shape 7b --store runs/shapes --plot_path runs/shapes/shapes.png")
@click.option("--device", default="cpu", show_default=True, help="A torch device.")
@click.option("--shape", type=click.Choice(list(SHAPES)), default="tiny", show_default=True, help="Of the weights.")
@click.option("--only", type=click.Choice(PARTS), multiple=True, help="Parts; all by default.")
@stored
@plotted
def main(
    report: Report, device: str, shape: str, only: tuple[str, ...], store: Path | None, plot_path: Path | None
) -> None:
    """Time the transformers engine on random weights of a shape, without TensorRT-LLM or a hub."""
    import torch

    name = torch.cuda.get_device_name(device) if torch.cuda.is_available() else "cpu"
    report.setting |= {"device_name": name, "torch": torch.__version__}
    parts = Parts(device, shape, report.seed)
    for part in only or PARTS:
        try:
            found = kept(store, f"{part}_{shape}_{device.partition(':')[0]}", getattr(parts, part))
        except Exception as error:  # of any type: the other parts are worth their time
            report.setting[f"{part} failed"] = f"{type(error).__name__}: {error}"
            continue
        for name, value in found.items():
            report.figure(name, value)
    if plot_path is not None:
        draw(report.figures, plot_path)


if __name__ == "__main__":
    main()
