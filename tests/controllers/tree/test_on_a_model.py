"""Branches of a real model: a winner goes on as if nobody had looked, and verdicts read the question alone."""

import pytest

from scaffolding_ext.controllers.tree.kv_share_branching import KVShareBranchingController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol.meta import Purpose
from scaffolding_ext.stack.build import load_stack
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

PROMPT = "Start with 5. Apply a+3,b-2. Find the total."


@pytest.fixture(scope="module")
def worker():
    with HuggingFaceWorker("tinylm/draft", max_batch_size=8, tokens_per_block=16) as built:
        yield built


def answer(worker, **arguments):
    controller = KVShareBranchingController(3, max_tokens=24, scorer="verdict", insist_on_answer=False, **arguments)
    with ScaffoldingLlm(controller, {"generation": worker}, seed=1) as llm:
        return llm.generate(PROMPT, sample_id="one", timeout=120)


def test_a_winner_of_a_decode_exit_writes_what_it_would_have_written(worker, events):
    exited = answer(worker, gates={"decode_exit": {"least": 0.0, "gap": 0.0, "after": 6}})
    (gate,) = events(exited, "decode_exit")
    (own,), (whole,) = (events(result, "branches") for result in (exited, answer(worker)))
    leader = gate["leader"]
    assert own["paths"] == [(leader,)]
    assert [own[name] for name in ("answers", "num_tokens")] == [
        [whole[name][leader]] for name in ("answers", "num_tokens")
    ]
    for name in ("confidences", "mean_probabilities"):  # the same tokens have the same probabilities
        assert own[name] == pytest.approx([whole[name][leader]], abs=1e-4)
    assert exited.program.ledger.by_purpose[Purpose.DISCARDED].decoded == 2 * 6


def test_verdicts_read_little_more_than_their_question(worker):
    result = answer(worker)
    question = len(Prompting.for_model("tinylm/draft").encode("\n\nIs this answer correct? Reply with YES or NO.\n"))
    verify = result.program.ledger.by_purpose[Purpose.VERIFY]
    assert verify.decoded == 0
    assert verify.prefilled <= 3 * (question + 16)  # of each branch what its last, unfilled block holds
    assert verify.reused >= 3 * 16


@pytest.mark.parametrize(
    ("stack", "width", "stop"), [("search", 4, "Agreement"), ("rebase", 16, "Certaindex"), ("mcts", 3, "Certaindex")]
)
def test_the_stacks_of_searches_that_ship_have_a_stop_that_fires(stack, width, stop, events):
    """Solutions of an easy question agree, so that the search does not grow."""
    with load_stack(f"configs:{stack}") as llm:
        result = llm.generate(PROMPT, sample_id="one", timeout=120)
    (tree,) = events(result, "tree")
    assert (tree["reason"], tree["num_leaves"]) == ("stopped", width)
    assert events(result, "width")[0]["enough"] == [stop]
