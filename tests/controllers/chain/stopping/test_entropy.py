"""Entropy after thinking: by hand, in a controller, and where the worker tells too little."""

import math

import pytest

from scaffolding_ext.controllers.chain.stopping.entropy import EntropyAfterThinking
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.protocol.meta import PROBE, Purpose, purpose_of

FAMILY = family_named("tinylm")
NUM_CHARACTERS = len("Q:")


@pytest.mark.parametrize(
    ("entropies", "variance", "stops"),
    [
        ([1.0], 9.0, False),  # at least two looks
        ([1.0, 1.0], 0.0, True),
        ([1.0, 0.0], 0.12, False),  # means 1 and 0.5: the variance is 0.5 * 0.25
        ([1.0, 0.0], 0.13, True),
        ([1.0, 0.0, 0.0], 0.09, False),  # 0.5 * 0.0625 + 0.5 * 0.125 = 0.09375
        ([1.0, 0.0, 0.0], 0.094, True),
        ([3.0, 3.0, 3.0], 0.0, True),  # how high it is does not count
    ],
)
def test_it_stops_where_the_variance_of_the_average_is_small(looks, entropies, variance, stops):
    rule = EntropyAfterThinking(variance, 0.5, min_looks=2)
    assert rule(looks(entropies=entropies)) is stops


def test_it_does_not_stop_before_its_looks_are_there(looks):
    rule = EntropyAfterThinking(min_looks=4)
    assert [rule(looks(entropies=[0.5] * num)) for num in range(1, 6)] == [False, False, False, True, True]


def spread(task):
    """A token that is one of two until the chain has 30 tokens, and certain from then on."""
    is_early = len(task.input_str) - NUM_CHARACTERS - len(FAMILY.close) < 30
    return {0: 0.5, 1: 0.5} if is_early else {0: 1.0}


def test_a_chain_is_stopped_where_its_entropy_has_settled(ask, mode, events):
    rule = EntropyAfterThinking(variance=0.03, smoothing=0.5, min_looks=2)
    result, worker = ask(rule, sure=spread, **mode)
    # ln 2 twice, which does not move, stops at once; so the first look that may is the second
    assert (result.answer, result.exit_reason) == ("4", "entropy")
    assert [event["position"] for event in events(result, "probe")] == [10, 20]
    rule = EntropyAfterThinking(variance=0.03, smoothing=0.5, min_looks=3)
    result, worker = ask(rule, sure=spread, **mode)
    # the third look is the first that is certain: 0.5 * (ln 2 / 2)^2 = 0.06, then 0.045, 0.026
    positions = [event["position"] for event in events(result, "probe")]
    assert positions == [10, 20, 30, 40, 50]
    (stop,) = events(result, "stop")
    assert stop["entropy_variance"] == pytest.approx(math.log(2) ** 2 * (1 / 32 + 1 / 64 + 1 / 128), abs=1e-9)
    assert (stop["position"], stop["reason"], stop["answer"]) == (50, "entropy", None)
    (forced,) = events(result, "force")
    assert (forced["position"], forced["answer"]) == (50, "4")
    asked = [task for task in worker.tasks if purpose_of(task) == PROBE]
    assert [task.max_tokens for task in asked] == [1] * 5 + [20]  # one token a look, and the answer once
    assert all(task.input_str.endswith(FAMILY.close) for task in asked)
    assert result.program.ledger.by_purpose[Purpose.PROBE].decoded == 5 + len("4}")


def test_the_suffix_may_be_another(ask):
    result, worker = ask(EntropyAfterThinking(min_looks=2, suffix="</think>"), mode="chunk")
    asked = [task.input_str for task in worker.tasks if purpose_of(task) == PROBE]
    assert [text.endswith("</think>") for text in asked] == [True, True, False]
    assert result.exit_reason == "entropy"


def test_where_not_all_is_told_the_trace_says_that_the_entropy_is_a_bound(ask, events):
    result, _ = ask(EntropyAfterThinking(min_looks=2), sure=lambda task: {0: 0.5, 1: 0.25})
    event = events(result, "probe")[0]
    assert event["entropy"] == pytest.approx(1.5 * math.log(2))
    assert event["entropy_is_bound"] is True
    assert event["missing"] == pytest.approx(0.25)
    exact, _ = ask(EntropyAfterThinking(min_looks=2), sure=lambda task: {0: 0.5, 1: 0.5})
    event = events(exact, "probe")[0]
    assert event["entropy"] == pytest.approx(math.log(2))
    assert "entropy_is_bound" not in event
    assert "answer" not in event  # it was not asked for one


def test_a_worker_without_log_probabilities_is_an_error_that_says_so(scripted):
    worker, controller = scripted(EntropyAfterThinking())
    with (
        ScaffoldingLlm(controller, {"generation": worker("text " * 30)}) as llm,
        pytest.raises(Exception, match="no log-probabilities of the token after closed thinking"),
    ):
        llm.generate("Q:")


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"variance": -0.1}, "variance"),
        ({"smoothing": 0.0}, "smoothing"),
        ({"min_looks": 1}, "min_looks"),
        ({"top_k": 0}, "top_k"),
        ({"suffix": ""}, "suffix"),
        ({"suffix": 5}, "suffix"),
    ],
)
def test_wrong_arguments_name_their_key(arguments, key):
    with pytest.raises(ConfigError) as caught:
        EntropyAfterThinking(**arguments)
    assert caught.value.key == key
