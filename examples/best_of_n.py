"""Best of n samples by your own checker: here, the share of a chain's equations that hold.

    python examples/best_of_n.py

Replace `share_of_true_equations` with your tests: it gets a finished sample and returns a number.
"""

import re

from scaffolding_ext import BestOfNController, HuggingFaceWorker, NativeGenerationController, ScaffoldingLlm
from scaffolding_ext.controllers.vote.sample import Sample

EQUATION = re.compile(r"(-?\d+)([+-])(-?\d+)=(-?\d+)")
QUESTIONS = [
    "Start with 16. Apply d-4,e-7,f+5,g+2. Find the total.",
    "Start with 35. Apply a-8,b+6,c-3,d+7,e-2. Find the total.",
]


def share_of_true_equations(sample: Sample) -> float:
    """Return the share of a chain's equations that hold; 0 without an answer."""
    if sample.answer is None:
        return 0.0
    found = EQUATION.findall(sample.task.output_str or "")
    true = sum(int(a) + int(b) * (1 if sign == "+" else -1) == int(c) for a, sign, b, c in found)
    return true / len(found) if found else 0.0


best = BestOfNController(
    NativeGenerationController({"temperature": 1.0, "max_tokens": 1200}),
    default_sample_num=4,
    reward=share_of_true_equations,
)
with ScaffoldingLlm(best, {"generation": HuggingFaceWorker("tinylm/target")}, seed=0, owns_workers=True) as llm:
    for result in llm.generate(QUESTIONS):
        (chosen,) = (event for event in result.program.trace if event["event"] == "best_of_n")
        scores = [round(score, 2) for score in chosen["scores"]]
        print(f"answers {chosen['answers']}, scores {scores}: {result.answer} is given")
