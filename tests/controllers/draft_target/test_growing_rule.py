"""Pools that grow: coins first, then ranks among the questions that were answered before, the oldest forgotten."""

import numpy as np
import pytest

from scaffolding_ext.controllers.draft_target.conformal_draft_target import ConformalDraftTargetController
from scaffolding_ext.controllers.draft_target.growing_rule import GrowingRule
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.testing import ScriptedWorker


def decisions(rule, nll, num_questions, num_chains=1, max_turns=1):
    """The decisions of each question, one request after the other."""

    def respond(task):
        return [-nll(task)] * len(task.continuation_str) if isinstance(task, ScoreTask) else "T" * 9

    made = ConformalDraftTargetController(
        rule=rule, num_chains=num_chains, max_turns=max_turns, draft_tokens=4, target_tokens=4
    )
    with ScaffoldingLlm(made, {"draft": ScriptedWorker("d" * 9), "target": ScriptedWorker(respond)}, seed=0) as llm:
        traces = [llm.generate(f"question {number}").program.trace for number in range(num_questions)]
    return [[event for event in trace if event["event"] in ("accept", "take_over")] for trace in traces]


def test_a_turn_ranks_once_enough_questions_have_reached_it_and_forgets_the_oldest():
    made = decisions(GrowingRule(0.25, min_questions=2, most_questions=3), lambda task: 1.0, 6, 2, 2)
    sizes = [{event["turn"]: event["num_calibration"] for event in question} for question in made]
    assert sizes == [{0: 0, 1: 0}, {0: 0, 1: 0}, {0: 4, 1: 4}, {0: 6, 1: 6}, {0: 6, 1: 6}, {0: 6, 1: 6}]


def test_a_chunk_is_ranked_among_earlier_questions_alone():
    nlls = iter([1.0, 2.0, 3.0, 0.5, 9.0])
    made = decisions(GrowingRule(0.25, min_questions=3), lambda task: next(nlls), 5)
    assert [event["event"] for (event,) in made[3:]] == ["accept", "take_over"]
    assert 0.75 < made[3][0]["p_value"] <= 1
    assert 0 < made[4][0]["p_value"] <= 0.2


def test_the_rate_is_alpha_on_exchangeable_questions():
    """400 questions of one chain; 4 binomial standard errors."""
    rng = np.random.default_rng(3)
    made = decisions(GrowingRule(0.4), lambda task: float(rng.gamma(2.0)), 400)
    rate = np.mean([event["event"] == "take_over" for (event,) in made])
    assert rate == pytest.approx(0.4, abs=4 * (0.24 / 400) ** 0.5)


def test_a_pool_of_the_first_turn_has_each_score_at_once_and_a_coin_decides_on_one_chunk_alone():
    rule = GrowingRule(0.25, min_questions=1, most_questions=2, pool="first_turn")
    made = decisions(rule, lambda task: 1.0, 4, 2, 3)
    sizes = [[event["num_calibration"] for event in sorted(q, key=lambda e: (e["turn"], e["chain"]))] for q in made]
    assert [sum(size == 0 for size in question) for question in sizes] == [1, 0, 0, 0]
    assert max(map(max, sizes)) == 4  # two questions of two chains
    assert min(map(min, sizes[2:])) >= 2


def test_a_chunk_of_a_later_turn_is_ranked_among_first_turns():
    nlls = iter([1.0, 2.0, 3.0, 4.0, 0.5, 9.0])
    made = decisions(GrowingRule(0.34, 1, pool="first_turn"), lambda task: next(nlls), 3, max_turns=2)
    assert made[2][1]["event"] == "take_over"  # 9.0 beside the first chunks 1.0, 3.0 and 0.5
    assert 0 < made[2][1]["p_value"] <= 0.25


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"pool": "all"}, "pool"),
        ({"alpha": 2}, "alpha"),
        ({"min_questions": 0}, "min_q"),
        ({"most_questions": 7}, "most_q"),
    ],
)
def test_settings_out_of_range_are_refused(arguments, key):
    with pytest.raises(ConfigError, match=key):
        GrowingRule(**arguments)
