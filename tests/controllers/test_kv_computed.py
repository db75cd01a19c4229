"""Chain tokens are computed once: what the worker's counter says of a DynasorCoT run on a real model."""

import pytest

from scaffolding_ext import load_stack
from scaffolding_ext.evaluation.run.datasets import load_dataset
from scaffolding_ext.prompts.prompting import Prompting

NUM_PROBLEMS = 24
BLOCK_LEN = 32


def run(mode):
    """Computed positions, and those that no method could avoid: prompt, generated, probe suffixes and answers."""
    samples = load_dataset("tinylm:held_out", num_samples=NUM_PROBLEMS, seed=5)
    prompting = Prompting.for_model("tinylm/draft")
    suffix_len = len(prompting.encode(prompting.family.probe))
    overrides = ("workers.generation.args.model=tinylm/draft", f"controller.args.mode={mode}")
    with load_stack("configs:dynasor_cot", overrides=overrides) as llm:
        results = llm.generate([sample.prompt for sample in samples])
        metrics = llm.workers["generation"].metrics
    num_probes = sum(event["event"] in ("probe", "force") for result in results for event in result.program.trace)
    prompt_len = sum(len(prompting.encode(f"<|user|>{sample.prompt}<|assistant|><think>\n")) for sample in samples)
    decoded = sum(result.program.ledger.total.decoded for result in results)
    ledger_computed = sum(result.program.ledger.total.computed for result in results)
    return metrics, prompt_len + decoded + num_probes * suffix_len, num_probes, ledger_computed


@pytest.mark.parametrize("mode", ["stream", "chunk"])
def test_nothing_is_computed_twice_but_half_a_block_at_each_border(mode):
    metrics, needed, num_probes, ledger_computed = run(mode)
    assert num_probes > 2 * NUM_PROBLEMS  # the probes really ran
    assert metrics.num_reused > needed  # without reuse each of them would have computed its whole prefix
    borders = num_probes * (2 if mode == "chunk" else 1)  # before a probe, and before a chunk
    num_computed = metrics.num_decoded + metrics.num_prefilled
    assert num_computed <= 1.1 * needed + BLOCK_LEN / 2 * borders
    # The ledger tells the same story; the last token of each text is decoded, but its KV never computed.
    assert 0 <= ledger_computed - num_computed <= 0.1 * needed
