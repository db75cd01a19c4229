"""The transformers engine on a real model and real prompts: transformers' own texts, faster, in little memory.

    python -m benchmarks.engines.huggingface_real --model FOLDER --dataset math500.jsonl

Greedy texts of chat prompts, all at once through the engine and in one padded `generate`, both sides of a pair one
right after the other and the next time in the other order; one thread. A text is right that is token for token what
transformers writes for the prompt alone; where it differs first, the two best logits must be closer than float32 can
tell apart. The memory is that of a process that loads the model and answers one prompt.
"""

from __future__ import annotations

import subprocess
import sys

import click

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.report import Report
from benchmarks.engines.huggingface_worker import Prompts, Samples, cost_of
from scaffolding_ext.evaluation.run.datasets import EMBEDDED, load_dataset
from scaffolding_ext.prompts.prompting import load_tokenizer, model_folder

TIED = 1e-4  # logits closer than this may be ordered either way
LEAST_RATIO, MOST_MIB = 2.0, 400

MEMORY = """
import asyncio, re, sys
from pathlib import Path
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

worker = HuggingFaceWorker(sys.argv[1], threads=1)
asyncio.run(worker.run_task(GenerationTask(input_tokens=[5, 6, 7], max_tokens=64, ignore_eos=True)))
worker.shutdown()
status = Path("/proc/self/status").read_text()  # getrusage would tell the most of the process that started this one
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) / 1024)
"""


def peak_mib(model: str) -> float:
    """Most memory of a process that serves a model, in MiB."""
    done = subprocess.run([sys.executable, "-c", MEMORY, model], capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


class Sides:
    """A model behind our engine, and behind transformers' `generate`; both write greedily, and on to the last token."""

    def __init__(self, model: str, max_tokens: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

        torch.set_num_threads(1)
        self._torch = torch
        self._network = AutoModelForCausalLM.from_pretrained(model_folder(model)).eval()
        self._worker = HuggingFaceWorker(model, threads=1, enable_block_reuse=False)
        self._max_tokens = max_tokens

    def ours(self, prompts: Prompts) -> Prompts:
        """The engine's texts, of all prompts at once."""
        import asyncio

        from scaffolding_ext.protocol import GenerationTask

        tasks = [GenerationTask(input_tokens=ids, max_tokens=self._max_tokens, ignore_eos=True) for ids in prompts]

        async def run() -> None:
            await asyncio.gather(*[self._worker.run_task(task) for task in tasks])

        asyncio.run(run())
        return [list(task.output_tokens or ()) for task in tasks]

    def theirs(self, prompts: Prompts) -> Prompts:
        """The texts of one padded `generate`."""
        width = max(map(len, prompts))
        ids = self._torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = self._torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        self._network.generation_config.eos_token_id = None
        output = self._network.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=self._max_tokens, pad_token_id=0
        )
        texts: Prompts = output[:, width:].tolist()
        return texts

    def is_right(self, prompt: list[int], ours: list[int]) -> bool:
        """Whether a text is what transformers writes for a prompt alone, near-ties aside."""
        theirs = self.theirs([prompt])[0]
        first = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), None)
        if first is None:
            return True
        with self._torch.inference_mode():
            logits = self._network(self._torch.tensor([prompt + theirs[:first]])).logits[0, -1]
        return bool((logits[theirs[first]] - logits[ours[first]]).abs() < TIED)

    def shutdown(self) -> None:
        """Stop the engine."""
        self._worker.shutdown()


@benchmark("engines.huggingface_real --model FOLDER --dataset math500.jsonl")
@click.option("--model", default="tinylm/target", show_default=True, help="The model.")
@click.option("--dataset", default=EMBEDDED, show_default=True, help="Where the prompts come from.")
@size("--num_prompts", 16, quick=4, help="Prompts.")
@size("--max_tokens", 48, quick=16, help="Tokens of each text.")
@size("--repetitions", 3, quick=2, help="Pairs.", least=2)
def main(report: Report, model: str, dataset: str, num_prompts: int, max_tokens: int, repetitions: int) -> None:
    """Greedy texts of the transformers engine, CPU seconds in ratio to padded `generate`, and memory."""
    report.setting |= {"threads": 1, "num_prompts": num_prompts, "max_tokens": max_tokens, "repetitions": repetitions}
    tokenizer = load_tokenizer(model)
    drawn = {"num_samples": num_prompts, "seed": report.seed} if dataset == EMBEDDED else {"limit": str(num_prompts)}
    prompts: Prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": sample.prompt}], add_generation_prompt=True, return_dict=False
        )
        for sample in load_dataset(dataset, **drawn)
    ]
    sides, samples = Sides(model, max_tokens), Samples()
    texts = sides.ours(prompts)
    num_right = sum(sides.is_right(*pair) for pair in track(list(zip(prompts, texts, strict=True)), "texts"))
    num_tokens = num_prompts * max_tokens
    for pair in track(range(repetitions), "pairs"):
        sides_in_order = (sides.ours, sides.theirs)[:: 1 if pair % 2 else -1]
        cost = {side: cost_of(lambda side=side: len(side(prompts)) and num_tokens) for side in sides_in_order}
        ours, theirs = cost[sides.ours], cost[sides.theirs]
        samples.add(ratio=theirs.wall_s / ours.wall_s, cpu_ratio=theirs.cpu_s / ours.cpu_s)
        samples.add(tokens_per_s=1 / ours.wall_s, generate_tokens_per_s=1 / theirs.wall_s)
    sides.shutdown()
    samples.report(report)
    memory = peak_mib("tinylm/target")
    report.figure("num_right", num_right)
    report.figure("peak_mib_of_tinylm_target", memory)
    report.bar("texts that are transformers' own", num_right, ">=", num_prompts)
    report.bar("CPU seconds of padded generate to ours", samples.mean("cpu_ratio"), ">=", LEAST_RATIO)
    report.bar("MiB of a process with tinylm/target", memory, "<=", MOST_MIB)


if __name__ == "__main__":
    main()
