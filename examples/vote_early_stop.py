"""A vote that stops as soon as its winner is settled, compared with the vote of all samples.

    python examples/vote_early_stop.py
    python examples/vote_early_stop.py Qwen/Qwen2.5-1.5B-Instruct gsm8k.jsonl

The second line takes your model and questions: JSONL with "question" and "answer". Both votes draw the same samples,
so the early stop can only save tokens, or lose a vote.
"""

import json
import sys
from pathlib import Path

from scaffolding_ext import HuggingFaceWorker, MajorityVoteController, NativeGenerationController, ScaffoldingLlm
from scaffolding_ext.answers import Verdict, equal

model, file = sys.argv[1:] or ("tinylm/target", Path(__file__).with_name("problems.jsonl"))
rows = [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]

sample = NativeGenerationController({"temperature": 0.7, "max_tokens": 1200})
votes = {
    "all 8 samples": MajorityVoteController(sample, 8, allocation=None),
    "early stop": MajorityVoteController(sample, 8),  # its rule: the rest would probably not change the winner
}
worker = HuggingFaceWorker(model)
for name, vote in votes.items():
    with ScaffoldingLlm(vote, {"generation": worker}, seed=0) as llm:
        results = llm.generate([row["question"] for row in rows])
    answers = [result.answer for result in results]
    pairs = zip(answers, [row["answer"] for row in rows], strict=True)
    right = sum(answer is not None and equal(answer, target) is Verdict.EQUAL for answer, target in pairs)
    decoded = sum(result.program.ledger.total.decoded for result in results)
    print(f"{name:<14}{right} of {len(rows)} right, {decoded} tokens decoded, answers {' '.join(map(str, answers))}")
worker.shutdown()
