"""The router: one decision a question by its first chunks, one model for the rest of every chain, and a kept share."""

import numpy as np
import pytest

from scaffolding_ext.controllers.draft_target.conformal_draft_target import ConformalDraftTargetController
from scaffolding_ext.controllers.draft_target.router import Router
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.request.figures import Ratio
from scaffolding_ext.testing import ScriptedWorker


def results(rule, nll, num_questions, num_chains=2, max_turns=3):
    """The result of each question, one request after the other, and how many chunks were scored."""
    scored = []

    def respond(task):
        if not isinstance(task, ScoreTask):
            return "T" * 99
        scored.append(task)
        return [-nll()] * len(task.continuation_str)

    made = ConformalDraftTargetController(
        rule=rule, num_chains=num_chains, max_turns=max_turns, draft_tokens=4, target_tokens=4, max_tokens=40
    )
    draft = ScriptedWorker(lambda task: "}" if task.input_str.endswith("{") else "d" * 99)  # it has no answer
    with ScaffoldingLlm(made, {"draft": draft, "target": ScriptedWorker(respond)}, seed=0) as llm:
        return [llm.generate(f"question {number}") for number in range(num_questions)], len(scored)


def decided(result):
    return [event for event in result.program.trace if event["event"] in ("accept", "take_over")]


def test_a_strange_question_is_the_target_s_alone_and_no_other_chunk_is_scored():
    (result,), num_scored = results(Router(threshold=1.0), lambda: 2.0, 1)
    assert [event["event"] for event in decided(result)] == ["take_over"] * 2
    assert {event["num_target_tokens"] for event in decided(result)} == {40}  # the whole chain, not a chunk
    assert num_scored == 2
    assert result.outputs[0].text.startswith("T" * 40)


def test_a_usual_question_is_the_draft_s_alone_and_no_other_chunk_is_scored():
    (result,), num_scored = results(Router(threshold=3.0), lambda: 2.0, 1)
    assert [event["event"] for event in decided(result)] == ["accept"] * 6  # three turns of two chains
    assert num_scored == 2
    assert "T" not in result.outputs[0].text
    rate = result.program.figures["ConformalDraftTargetController"]["take_over_rate"]
    assert rate == Ratio(0, 2)  # a chain is decided once


def test_chains_without_an_answer_say_that_their_budget_cut_them():
    (result,), _ = results(Router(threshold=3.0), lambda: 2.0, 1, max_turns=50)
    assert (result.answer, result.exit_reason) == (None, "length")


def test_all_chains_of_a_question_go_to_the_same_model():
    nlls = iter([0.0, 9.0])
    (result,), _ = results(Router(threshold=4.0), lambda: next(nlls), 1)
    assert {event["event"] for event in decided(result)} == {"take_over"}
    assert {event["question_score"] for event in decided(result)} == {4.5}


def test_the_share_of_exchangeable_questions_is_kept():
    """300 questions; 4 binomial standard errors."""
    rng = np.random.default_rng(3)
    found, _ = results(Router(0.3), lambda: float(rng.gamma(2.0)), 300, num_chains=1, max_turns=1)
    share = np.mean([decided(result)[0]["event"] == "take_over" for result in found])
    assert share == pytest.approx(0.3, abs=4 * (0.21 / 300) ** 0.5)


def test_the_strangest_questions_are_routed_once_enough_came_before():
    nlls = iter([*range(10), 20.0, -1.0])
    found, _ = results(Router(0.2, min_questions=10), lambda: float(next(nlls)), 12, num_chains=1, max_turns=1)
    assert [decided(result)[0]["event"] for result in found[10:]] == ["take_over", "accept"]


@pytest.mark.parametrize(
    ("arguments", "key"), [({"share": 2}, "share"), ({"min_questions": 0}, "min_q"), ({"most_questions": 7}, "most_q")]
)
def test_settings_out_of_range_are_refused(arguments, key):
    with pytest.raises(ConfigError, match=key):
        Router(**arguments)
