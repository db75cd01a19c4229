"""Times the transformers engine on random weights in the shape of a real model.

    python -m benchmarks.gpu.shapes --device cuda --shape 7b --store runs/shapes

For a machine with a GPU, torch and transformers, without TensorRT-LLM, weights or a package index. Weights are made on
the device. Parts, and cells of parts, are kept in `--store` as they finish, so that a run that was cut off goes on; one
that fails is named in the setting and leaves the others alone. All times are wall-clock.

- parity: greedy texts of the embedded model, on the CPU and on the device.
- sharing: seconds, KV written and peak memory of branches and verdicts on one prefix, with blocks reused and not. Each
  worker's KV pool has the size of what is written, since a GPU allocates it whole.
- engine: tokens a second beside `generate` and transformers' continuous batching, prompts counted on all sides.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from benchmarks._lib.command import benchmark, kept, stored
from benchmarks._lib.report import Report
from scaffolding_ext import HuggingFaceWorker
from scaffolding_ext.evaluation.run.datasets import embedded_problems
from scaffolding_ext.prompts.tokenizers import load_tokenizer
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.branching import BranchTask, VerifyTask
from scaffolding_ext.workers.huggingface.attention import ATTENTION

NUM_BRANCHES = 8
NO_KV, BLOCKS = SWITCHES = ("no KV", "cached blocks")  # what branches and verdicts share
VERDICTS = 70, 71  # any two tokens: the weights are random
QUESTION = list(range(40, 56))
BLOCK = 32  # tokens
BATCHES = (1, 8, 64)
Figures = dict[str, float]


class Shape(NamedTuple):
    """Sizes of a Llama model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int


SHAPES = {
    "8b": Shape(128256, 4096, 14336, 32, 32, 8),  # as Llama-3.1-8B
    "7b": Shape(152064, 3584, 18944, 28, 28, 4),  # as Qwen2.5-7B
    "tiny": Shape(512, 256, 768, 4, 8, 4),
}


class Sizes(NamedTuple):
    """Amounts of work."""

    texts: int = 16
    text_tokens: int = 200
    cells: tuple[tuple[int, int], ...] = ((1024, 32), (4096, 32), (4096, 128))  # tokens of the prefix and of a branch
    rounds: int = 3
    prompt_len: int = 512
    num_tokens: int = 128


SMALL = Sizes(4, 60, ((128, 8), (256, 16)), 2, 32, 16)


def blocks_written(switch: str, prefix_len: int, num_tokens: int) -> int:
    """KV blocks that the worker of a switch writes for a cell."""
    judged = prefix_len + num_tokens + len(QUESTION)
    shared = 0 if switch == NO_KV else (prefix_len - 1) // BLOCK  # the last token is read by each branch
    return shared + NUM_BRANCHES * (-(-judged // BLOCK) - shared)


def branch_and_judge(
    options: Mapping[str, Any], switch: str, pool_bytes: int, prefix: list[int], num_tokens: int, seed: int
) -> float:
    """Write branches and judge them on a worker that has seen nothing; the seconds that it took."""
    reuses = switch != NO_KV
    with HuggingFaceWorker(**options, kv_cache_bytes=pool_bytes, enable_block_reuse=reuses) as worker:
        started = time.perf_counter()
        seeds = [seed * NUM_BRANCHES + number for number in range(NUM_BRANCHES)]
        suffixes: list[list[int]] = [[] for _ in seeds]
        task = BranchTask(prefix_tokens=prefix, suffixes=suffixes, max_tokens=num_tokens, seeds=seeds)
        task.temperature = 0.7
        _run(worker, [task])
        branches = [[*prefix, *ids, *QUESTION] for ids in task.output_tokens or ()]
        yes, no = VERDICTS
        _run(worker, [VerifyTask(branches=branches, yes_token=yes, no_token=no)])
        return time.perf_counter() - started


class Parts:
    """The parts, on one device and one model.

    Args:
        shape: A name of `SHAPES`.
    """

    def __init__(self, device: str, shape: str, seed: int) -> None:
        self._device, self._shape, self._seed = device, shape, seed
        self._on_gpu = device.startswith("cuda")
        self._sizes = SMALL if shape == "tiny" else Sizes()

    def pieces(self, part: str) -> dict[str, Callable[[], Figures]]:
        """Cells of a part by name; each runs and is kept by itself."""
        if part == "sharing":
            return {f"sharing_{length}_{num}": partial(self.sharing, length, num) for length, num in self._sizes.cells}
        if part == "engine":
            return {f"engine_{batch}": partial(self.engine, batch) for batch in BATCHES}
        return {part: getattr(self, part)}

    def pool_bytes(self, num_blocks: int) -> int:
        """Bytes of KV blocks: keys and values of every layer."""
        shape = SHAPES[self._shape]
        head_dim = shape.hidden_size // shape.num_attention_heads
        values = 2 * shape.num_hidden_layers * shape.num_key_value_heads * head_dim
        return num_blocks * BLOCK * values * (2 if self._on_gpu else 4)

    def _room_for(self, num_requests: int, length: int) -> int:
        return self.pool_bytes(num_requests * (-(-length // BLOCK) + 1))

    @cached_property
    def _network(self) -> Any:
        """A randomly initialised Llama on its device, with this package's attention."""
        torch.manual_seed(self._seed)
        default = torch.get_default_dtype()
        torch.set_default_dtype(self._dtype)
        try:
            with torch.device(self._device):
                config = LlamaConfig(**SHAPES[self._shape]._asdict(), max_position_embeddings=8192)
                model = LlamaForCausalLM(config).eval()
        finally:
            torch.set_default_dtype(default)
        model.set_attn_implementation(ATTENTION)
        return model

    @property
    def _dtype(self) -> Any:
        return torch.bfloat16 if self._on_gpu else torch.float32

    @cached_property
    def _served(self) -> dict[str, Any]:
        tokenizer = load_tokenizer("tinylm/target")
        return {"model": self._network, "tokenizer": tokenizer, "prefill_chunk": 2048, "tokens_per_block": BLOCK}

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

    def sharing(self, prefix_len: int, num_tokens: int) -> Figures:
        written = {each: self.pool_bytes(blocks_written(each, prefix_len, num_tokens)) for each in SWITCHES}
        options = {**self._served, "max_seq_len": prefix_len + num_tokens + len(QUESTION) + 1}
        seconds: dict[str, list[float]] = {switch: [] for switch in SWITCHES}
        peaks = dict.fromkeys(SWITCHES, 0.0)
        for number in range(-1, self._sizes.rounds):  # the first round of a shape is slow, and not counted
            prefix = _prompt(number, prefix_len)
            for switch in SWITCHES if number % 2 else reversed(SWITCHES):
                if self._on_gpu:
                    torch.cuda.reset_peak_memory_stats(self._device)
                taken = branch_and_judge(options, switch, written[switch], prefix, num_tokens, 1000 + number)
                if number >= 0:
                    seconds[switch].append(taken)
                if self._on_gpu:
                    peaks[switch] = max(peaks[switch], torch.cuda.max_memory_allocated(self._device) / 1e9)
        found: Figures = {}
        for switch in SWITCHES:
            name = f"{prefix_len} + {num_tokens} tokens: {switch}"
            found[f"{name}, seconds"] = float(np.median(seconds[switch]))
            found[f"{name}, to {BLOCKS}"] = float(np.median(np.divide(seconds[switch], seconds[BLOCKS])))
            found[f"{name}, KV written, GB"] = written[switch] / 1e9
            if self._on_gpu:
                found[f"{name}, peak GB"] = peaks[switch]
        return found

    def engine(self, batch: int) -> Figures:
        prompts = [_prompt(row, self._sizes.prompt_len) for row in range(batch)]
        sides = {"ours": self._ours, "generate": self._generate, "generate_batch": self._generate_batch}
        rates = {name: side(prompts) for name, side in sides.items()}
        return {f"batch {batch}: {name}, tokens a second": rate for name, rate in rates.items() if rate is not None}

    def _ours(self, prompts: list[list[int]]) -> float:
        pool = self._room_for(len(prompts), self._sizes.prompt_len + self._sizes.num_tokens)
        with HuggingFaceWorker(**self._served, kv_cache_bytes=pool, enable_block_reuse=False) as worker:

            def work() -> None:
                fields = {"max_tokens": self._sizes.num_tokens, "temperature": 0.0, "ignore_eos": True}
                _run(worker, [GenerationTask(input_tokens=prompt, **fields) for prompt in prompts])

            return self._rate(work, len(prompts))

    def _generate(self, prompts: list[list[int]]) -> float:
        ids, num = torch.tensor(prompts, device=self._device), self._sizes.num_tokens
        fields = {"do_sample": False, "min_new_tokens": num, "max_new_tokens": num, "pad_token_id": 0}
        return self._theirs(lambda: self._network.generate(ids, attention_mask=torch.ones_like(ids), **fields), prompts)

    def _generate_batch(self, prompts: list[list[int]]) -> float | None:
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
            torch.cuda.synchronize(self._device)


def _prompt(number: int, length: int) -> list[int]:
    """Token ids that differ between numbers."""
    return [5 + (31 * number + 7 * place) % 400 for place in range(length)]


def _run(worker: Any, tasks: Sequence[Any]) -> None:
    async def scenario() -> None:
        await asyncio.gather(*map(worker.run_task, tasks))

    asyncio.run(scenario())


PARTS = ("parity", "sharing", "engine")


@benchmark("gpu.shapes --device cuda --shape 7b --store runs/shapes")
@click.option("--device", default="cpu", show_default=True, help="A torch device.")
@click.option("--shape", type=click.Choice(list(SHAPES)), default="tiny", show_default=True, help="Of the weights.")
@click.option("--only", type=click.Choice(PARTS), multiple=True, help="Parts; all by default.")
@stored
def main(report: Report, device: str, shape: str, only: tuple[str, ...], store: Path | None) -> None:
    """Time the transformers engine on random weights of a shape, without TensorRT-LLM or a hub."""
    name = torch.cuda.get_device_name(device) if torch.cuda.is_available() else "cpu"
    report.setting |= {"device_name": name, "torch": torch.__version__}
    parts = Parts(device, shape, report.seed)
    for name, run in [piece for part in only or PARTS for piece in parts.pieces(part).items()]:
        try:
            found = kept(store, f"{name}_{shape}_{device.partition(':')[0]}", run)
        except Exception as error:  # of any type: the other parts are worth their time
            report.setting[f"{name} failed"] = f"{type(error).__name__}: {error}"
            continue
        for figure, value in found.items():
            report.figure(figure, value)


if __name__ == "__main__":
    main()
