"""The cost of probes is counted and shown: of the suffixes, and of the tokens that the worker computed."""

import pytest

from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.prompts.tokenizers import load_tokenizer
from scaffolding_ext.protocol.meta import Purpose


@pytest.fixture(scope="module")
def prompting():
    return Prompting(load_tokenizer("tinylm/draft"), "tinylm")


def test_the_tokens_of_the_suffixes_are_counted(scripted, prompting, events):
    worker, controller = scripted("consecutive")
    controller.prompting = prompting
    controller.mode = "chunk"
    with ScaffoldingLlm(controller, {"generation": worker("4}" * 20)}) as llm:
        result = llm.generate("Q")
    expected = len(prompting.encode(prompting.family.probe))
    probes = events(result, "probe")
    assert [event["suffix_tokens"] for event in probes] == [expected] * len(probes)
    assert len(probes) >= 3


def test_what_looks_wrote_stands_in_the_trace_and_in_the_ledger(ask, events):
    result, _ = ask("consecutive", ["4}"], mode="chunk")
    probes = events(result, "probe")
    ledger = result.program.ledger.by_purpose[Purpose.PROBE]
    assert sum(event["answer_tokens"] for event in probes) == ledger.decoded == 3 * len("4}")
    assert ledger.prefilled > 0
    assert not any("suffix_tokens" in event for event in probes)  # nobody can count them without a tokenizer
