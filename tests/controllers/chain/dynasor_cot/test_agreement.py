"""Dynasor-CoT's stopping rules: a chain stops exactly where its probes' last answers agree, and none is hedged."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.chain.probe import AnswerProbe
from scaffolding_ext.controllers.chain.stopping.agreement import Window
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import TaskStatus
from scaffolding_ext.protocol.meta import PROBE, purpose_of
from scaffolding_ext.protocol.tasks import CompareTask
from scaffolding_ext.testing import ScriptedWorker

ENDLESS = "thinking on and on " * 100
RESPONSES = {  # response: the answer's value, or None, and whether it is hedged
    "5}": (5, False),
    "5.0} I know": (5, False),  # "know" is no "no"
    r"\frac{10}{2}}": (5, False),
    "6}": (6, False),
    "}": (None, False),
    "5": (None, False),  # the box was not closed
    "5} Hmm, really": (5, True),
    "6} but": (6, True),
}


def first_exit(responses, threshold):
    """The plain reading of the rule: the first probe at which the last w answers agree."""
    for last in range(threshold - 1, len(responses)):
        window = [RESPONSES[r] for r in responses[last - threshold + 1 : last + 1]]
        values = {value for value, _ in window}
        if len(values) == 1 and None not in values and not any(hedged for _, hedged in window):
            return last
    return None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(RESPONSES)), max_size=9),
    st.integers(1, 4),
    st.sampled_from(["chunk", "chunk_in_turn", "stream"]),
)
def test_it_exits_exactly_when_the_last_answers_agree(
    ask, dynasor, events, positions, closed, responses, threshold, mode
):
    result, _ = ask(dynasor(mode, certainty_threshold=threshold, max_tokens=100), ENDLESS, responses)
    expected = first_exit(responses, threshold)
    if expected is None:
        assert result.exit_reason == "length"
        assert events(result, "stop") == []
        return
    (stop,) = events(result, "stop")
    assert stop["position"] == 10 * (expected + 1)
    assert len(positions(result)) == expected + 1
    assert result.exit_reason == "certain"
    assert result.outputs[0].text == closed(ENDLESS[: stop["position"]], result.answer)


@pytest.mark.parametrize(
    ("responses", "stops_at"),
    [
        (["0.5}", "\\frac12}", "1/2}"], 30),
        (["5}", "5} wait", "5}", "5}"], None),
        (["x+1}", "1+x}", "x+1}"], None),  # not known to be equal
        (["I know}", "I know}", "I know}"], 30),
    ],
)
def test_agreement(mode, responses, stops_at, ask, dynasor, events):
    result, _ = ask(dynasor(mode, certainty_threshold=3, max_tokens=80), ENDLESS, responses)
    assert [event["position"] for event in events(result, "stop")] == ([] if stops_at is None else [stops_at])


@pytest.mark.parametrize(
    ("response", "options", "hedged"),
    [
        ("5} I know, it is denoted", {}, False),
        ("5} I know, it is denoted", {"hedge_match": "word"}, False),
        ("5} I know, it is denoted", {"hedge_match": "substring"}, True),
        ("5} no", {}, True),
        ("5} NO!", {}, True),
        ("5} maybe", {"hedge_words": ["maybe"]}, True),
        ("5} no", {"hedge_words": []}, False),
        ("5} axb", {"hedge_words": ["a.b"]}, False),
    ],
)
def test_hedging(response, options, hedged, ask, dynasor, events):
    probe = AnswerProbe(99, **options)
    result, _ = ask(dynasor(certainty_threshold=1, probe=probe), ENDLESS[:25], [response])
    assert events(result, "probe")[0]["hedged"] is hedged
    assert (result.exit_reason == "certain") is not hedged


def window_exit(responses, threshold, share):
    kept = []
    for last, (value, hedged) in enumerate(RESPONSES[r] for r in responses):
        if hedged:
            continue
        kept.append(value)
        window = kept[-threshold:]
        agreeing = window.count(value)
        if value is not None and len(window) == threshold and agreeing / threshold >= share:
            return last
    return None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(RESPONSES)), max_size=9),
    st.integers(1, 5),
    st.sampled_from([0.2, 0.4, 0.5, 0.6, 2 / 3, 0.8, 1.0]),
)
def test_the_window_rule_is_the_papers(ask, dynasor, events, responses, threshold, share):
    """C_k is the share of the last w answers that equal the newest; hedged answers are left out; stop at C_k >= tau."""
    result, _ = ask(dynasor(rule=Window(threshold, share), max_tokens=100), ENDLESS, responses)
    expected = window_exit(responses, threshold, share)
    stops = [event["position"] for event in events(result, "stop")]
    assert stops == ([] if expected is None else [10 * (expected + 1)])


def test_a_share_that_is_reached_exactly_is_enough(ask, dynasor):
    responses = ["6}"] * 9 + ["5}"] * 11  # 11 of 20, and 0.55 * 20 is above 11 in floating point
    result, _ = ask(dynasor(rule=Window(20, 0.55)), ENDLESS, responses)
    assert result.exit_reason == "certain"


def test_probes_are_compared_by_the_stacks_compare_worker():
    class Comparing(ScriptedWorker):
        async def _compare(self, task):
            self.tasks.append(task)
            task.classes = [-1 if answer is None else 0 for answer in task.answers]
            return TaskStatus.SUCCESS

        task_handlers = ScriptedWorker.task_handlers | {CompareTask: _compare}

    answers = iter(["\\sin x}", "\\cos(y)}", "\\tan z}"])
    worker = ScriptedWorker(lambda task: next(answers) if purpose_of(task) == PROBE else "thinking on " * 90)
    compare = Comparing("never generates")
    controller = DynasorCoTController(rule="consecutive", chunk_size=16, family="tinylm")
    with ScaffoldingLlm(controller, {"generation": worker, "compare": compare}) as llm:
        result = llm.generate("Question")
    assert result.exit_reason == "certain"
    assert [len(task.answers) for task in compare.tasks] == [2, 3]
