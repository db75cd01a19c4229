"""Budgets of thinking are kept: never a token above, none below where they are exact, and an answer every time.

    python -m benchmarks.studies.kept_budgets --num_problems 500

Each problem thinks twice for one of five budgets, at most and exactly; the largest is beyond where chains end by
themselves. What was thought is counted on the ids of the output.
"""

from __future__ import annotations

import click

from benchmarks._lib.command import benchmark, size
from benchmarks._lib.report import Report
from benchmarks._lib.served_queue import hosted
from scaffolding_ext import BudgetForcingController, HuggingFaceWorker, Prompting
from scaffolding_ext.evaluation.run.datasets import Example, load_dataset
from scaffolding_ext.request.results import ScaffoldingResult

BUDGETS = (0, 32, 96, 200, 480)
AT_ONCE = 32
ANSWER_TOKENS = 32
DRAWN = {"temperature": 0.7}


def study(report: Report, worker: HuggingFaceWorker, prompting: Prompting, samples: list[Example], exact: bool) -> None:
    """All problems, each with its budget."""
    what, number = "exact" if exact else "at most", len(samples)
    over = short = unanswered = num_waits = 0
    for place, budget in enumerate(BUDGETS):
        forcing = BudgetForcingController(budget, max_answer_tokens=ANSWER_TOKENS, exact=exact, sampling_params=DRAWN)
        with hosted(forcing, worker, prompting, AT_ONCE, report.seed) as llm:
            mine = samples[place :: len(BUDGETS)]
            results = [llm.generate_async(sample.prompt, sample_id=sample.id) for sample in mine]
            for result in results:
                result.exception()
        thought = [num_thinking(result, prompting) for result in results]
        over += sum(tokens > budget for tokens in thought)
        short += sum(tokens < budget for tokens in thought)
        unanswered += sum(not result.answer for result in results)
        num_waits += sum(event.get("num_waits") or 0 for result in results for event in result.program.trace)
    report.share(f"{what}: thought less than the budget", short, number)
    report.figure(f"{what}: extended by a wait, times a problem", num_waits / number)
    report.bar(f"{what}: above the budget, of {number}", over, "<=", 0)
    report.bar(f"{what}: without an answer, of {number}", unanswered, "<=", 0)
    if exact:
        report.bar(f"{what}: below the budget, of {number}", short, "<=", 0)


def num_thinking(result: ScaffoldingResult, prompting: Prompting) -> int:
    """Tokens of a result's output before its thinking is closed, by their ids."""
    ids, close = result.outputs[0].token_ids or [], prompting.family.think_close
    text = prompting.decode(ids)
    at = text.index(close) if close in text else len(text)
    return max(n for n in range(len(ids) + 1) if len(prompting.decode(ids[:n])) <= at)


@benchmark("studies.kept_budgets --num_problems 500")
@click.option("--model", default="tinylm/target", show_default=True, help="Embedded model, or a folder.")
@size("--num_problems", 500, quick=10, help="Held-out problems.", least=len(BUDGETS))
def main(report: Report, model: str, num_problems: int) -> None:
    """Thinking tokens against budgets, at most and exact, and whether every problem gets an answer."""
    prompting = Prompting.for_model(model)
    samples = load_dataset("tinylm:held_out", num_samples=num_problems, seed=report.seed)
    with HuggingFaceWorker(model) as worker:
        for exact in (False, True):
            study(report, worker, prompting, samples, exact)


if __name__ == "__main__":
    main()
