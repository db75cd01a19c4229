"""Are answers over the front those in process? The same questions and seeds, both ways, by the official client.

python -m benchmarks.engines.serve_parity --quick
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click

from benchmarks._lib.command import benchmark, size
from benchmarks._lib.report import Report
from scaffolding_ext import (
    DynasorCoTController,
    HuggingFaceWorker,
    MajorityVoteController,
    NativeGenerationController,
    ScaffoldingLlm,
)
from scaffolding_ext.evaluation.run.datasets import load_dataset
from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.server import FrontThread
from scaffolding_ext.serving.settings import Limits

SAMPLING = {"temperature": 0.7}
CONTROLLERS = {
    "plain": lambda most: NativeGenerationController({**SAMPLING, "max_tokens": most}),
    "dynasor": lambda most: DynasorCoTController(most, 4, 32, sampling_params=SAMPLING),
    "vote": lambda most: MajorityVoteController(
        NativeGenerationController({**SAMPLING, "max_tokens": most}), 4, allocation=None
    ),
}


@benchmark("engines.serve_parity")
@size("--num_problems", 100, quick=8, help="Problems.")
@click.option("--model", default="tinylm/target", show_default=True, help="Of the worker.")
@click.option("--max_tokens", default=400, show_default=True, help="Of a chain.")
@click.option("--at_once", default=32, show_default=True, help="Clients at once.")
def main(report: Report, num_problems: int, model: str, max_tokens: int, at_once: int) -> None:
    """Plain chains, DynasorCoT and a vote of 4: texts and answers over HTTP against those in process."""
    import openai

    problems = load_dataset("tinylm:held_out", num_samples=num_problems, seed=report.seed)
    prompts = [problem.prompt for problem in problems]
    limits = Limits(max_queue=4 * num_problems)
    worker = HuggingFaceWorker(model)
    for name, make in CONTROLLERS.items():
        with ScaffoldingLlm(make(max_tokens), {"generation": worker}) as llm:
            told = [llm.generate_async(prompt, seed=number) for number, prompt in enumerate(prompts)]
            known = [(result.result().outputs[0].text, result.answer) for result in told]
        stack = ServedStack(name, ScaffoldingLlm(make(max_tokens), {"generation": worker}), limits)
        with FrontThread(Front([stack], limits)) as front, ThreadPoolExecutor(at_once) as pool:
            client = openai.OpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0, timeout=600)

            def ask(number: int, name: str = name, client: Any = client) -> tuple[str, str | None]:
                message = {"role": "user", "content": prompts[number]}
                asked: Any = {"model": name, "messages": [message], "seed": number}
                choice = client.chat.completions.create(**asked).choices[0]
                thinking, said = choice.message.reasoning_content, choice.message.content
                return thinking + ("</think>\n" + said if said else ""), choice.scaffolding["answer"]

            heard = list(pool.map(ask, range(len(prompts))))
        same_texts = sum(ours == theirs for (ours, _), (theirs, _) in zip(heard, known, strict=True))
        same_answers = sum(ours == theirs for (_, ours), (_, theirs) in zip(heard, known, strict=True))
        report.share(f"same_texts_{name}", same_texts, len(prompts))
        report.share(f"same_answers_{name}", same_answers, len(prompts))
        report.bar(f"same answers, {name}", same_answers / len(prompts), ">=", 1.0)
    worker.shutdown()


if __name__ == "__main__":
    main()
