"""The target computes each drafted chunk once for its scores, on real models; the history comes from its KV."""

from scaffolding_ext import load_stack
from scaffolding_ext.evaluation.run.datasets import load_dataset
from scaffolding_ext.protocol.meta import Purpose

NUM_PROBLEMS, NUM_CHAINS = 2, 3
SETTINGS = (f"num_chains={NUM_CHAINS}", "max_turns=4")


def test_scoring_rereads_nothing():
    samples = load_dataset("tinylm:held_out", num_samples=NUM_PROBLEMS, seed=5)
    overrides = [f"controller.args.{setting}" for setting in SETTINGS]
    with load_stack("configs:conformal_draft_target", overrides=overrides) as llm:
        results = llm.generate([sample.prompt for sample in samples])
        target = llm.workers["target"].metrics
    decisions = [e for r in results for e in r.program.trace if e["event"] in ("accept", "take_over")]
    num_scored = 48 * len(decisions)  # an upper bound of the chunks' tokens
    own = sum(event["num_target_tokens"] for event in decisions)
    prompts = sum(len(r.program.question.prompting.encode(s.prompt)) + 8 for r, s in zip(results, samples, strict=True))
    assert len(decisions) > 3 * NUM_PROBLEMS
    assert own > 0
    borders = 16 * len(decisions)  # of a scored chunk: half a block is read again, on average
    # First drafts may come before the prompt's KV.
    assert target.num_decoded + target.num_prefilled <= 1.1 * (num_scored + own) + NUM_CHAINS * prompts + borders
    assert sum(r.program.ledger.by_purpose[Purpose.SCORE].reused for r in results) > num_scored
