"""Any and all of several rules, what rules need together, and stacks whose worker cannot give it."""

import pytest

from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.controllers.chain.probing import ProbeNeeds, ProbeSchedule
from scaffolding_ext.controllers.chain.stopping.agreement import Consecutive, Window
from scaffolding_ext.controllers.chain.stopping.base import StoppingRule
from scaffolding_ext.controllers.chain.stopping.confidence import AnswerConfidence
from scaffolding_ext.controllers.chain.stopping.several import AllOf, AnyOf
from scaffolding_ext.controllers.chain.stopping.text import PatternStop
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.registry import stopping_rules
from scaffolding_ext.stack.build import load_stack
from scaffolding_ext.testing import ScriptedWorker


def at(number, reason):
    """A rule that stops from the numbered look on."""

    class At(StoppingRule):
        exit_reason = reason

        def __call__(self, probes):
            return len(probes) >= number

        def figures(self, probes):
            return {reason: float(len(probes))}

    return At()


@pytest.mark.parametrize(
    ("rule", "reason", "position"),
    [
        (AnyOf([at(3, "late"), at(2, "soon")]), "soon", 20),
        (AnyOf([at(2, "first"), at(2, "second")]), "first", 20),
        (AllOf([at(3, "late"), at(2, "soon")]), "late+soon", 30),
        (AllOf([at(2, "certain"), lambda probes: len(probes) >= 4]), "certain", 40),
        (AnyOf([AllOf([at(2, "a"), at(9, "b")]), at(3, "c")]), "c", 30),
    ],
)
def test_several_rules_stop_as_one(ask, mode, events, rule, reason, position):
    result, _ = ask(rule, ["3}", "4}"], **mode)
    (stop,) = events(result, "stop")
    assert (stop["reason"], stop["position"], result.exit_reason) == (reason, position, reason)


def test_all_of_them_tell_what_they_decided_on(looks):
    seen = looks(answers=[("4", 0.9), ("5", 0.9), ("4", 0.9)])
    stop = AllOf([at(1, "first"), at(2, "second")]).stop(seen)
    assert stop.figures == {"first": 3.0, "second": 3.0}
    assert AllOf([at(1, "first"), at(9, "second")]).stop(seen) is None
    assert AnyOf([at(2, "x")])(seen)
    assert not AllOf([at(9, "x")])(seen)


def test_rules_need_together_what_each_needs():
    assert AnyOf([PatternStop("x"), AnswerConfidence()]).needs == ProbeNeeds(answer_logprobs=True)
    assert AnyOf([PatternStop("x"), PatternStop("y")]).needs == ProbeNeeds(answer=False)
    assert stopping_rules.build(lambda probes: True).needs == ProbeNeeds()
    assert ProbeNeeds(answer=False).num_logprobs == 0
    assert ProbeNeeds(answer_logprobs=True).num_logprobs == 1


@pytest.mark.parametrize(
    ("rules", "key"),
    [([], "rules"), ("consecutive", "rules"), ([5], "rules.0"), (["consecutive", "majority"], "rules.1")],
)
@pytest.mark.parametrize("kind", [AnyOf, AllOf])
def test_what_is_no_list_of_rules_is_refused(kind, rules, key):
    with pytest.raises(ConfigError) as caught:
        kind(rules)
    assert caught.value.key == key


# ---- stack files


class Silent(ScriptedWorker):
    max_num_logprobs = 0


def stack_file(rule, worker="ScriptedWorker", **arguments):
    arguments = {
        "rule": rule,
        "family": "tinylm",
        **({} if "schedule" in arguments else {"chunk_size": 10}),
        **arguments,
    }
    return {
        "controller": {"type": "DynasorCoTController", "args": arguments},
        "workers": {"generation": {"type": worker, "args": {"respond": "one two three"}}},
    }


def test_a_stack_file_names_several_rules_and_a_schedule():
    several = {
        "type": "any",
        "args": {"rules": ["consecutive", {"type": "confidence", "args": {"threshold": 0.9, "must_close": True}}]},
    }
    with load_stack(stack_file(several)) as llm:
        controller = llm.prototype_controller
    assert [type(rule) for rule in controller.rule.rules] == [Consecutive, AnswerConfidence]
    assert (controller.rule.rules[1].threshold, controller.rule.rules[1].must_close) == (0.9, True)
    geometric = {"type": "ProbeSchedule", "args": {"chunk_size": 8, "growth": 2}}
    with load_stack(stack_file("window", schedule=geometric)) as llm:
        gaps = llm.prototype_controller.schedule.gaps()
    assert [next(gaps) for _ in range(4)] == [8, 8, 16, 32]
    assert type(llm.prototype_controller.schedule) is ProbeSchedule


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        (
            {"type": "any", "args": {"rules": [{"type": "confidence", "args": {"treshold": 1}}]}},
            "rule.args.rules.0.args.treshold",
        ),
        ({"type": "all", "args": {"rules": ["nothing"]}}, "rule.args.rules.0"),
        ({"type": "confidence", "args": {"threshold": "high"}}, "rule.args.threshold"),
    ],
)
def test_a_wrong_rule_in_a_stack_file_names_its_key(rule, key):
    with pytest.raises(ConfigError) as caught:
        load_stack(stack_file(rule))
    assert caught.value.key == f"controller.args.{key}"


@pytest.mark.parametrize(
    "rule", ["confidence", {"type": "any", "args": {"rules": ["consecutive", "confidence"]}}], ids=str
)
def test_a_worker_that_gives_no_log_probabilities_is_refused_when_the_stack_is_built(rule):
    with pytest.raises(ConfigError, match="Silent reports log-probabilities of at most 0") as caught:
        load_stack(stack_file(rule, f"{__name__}:Silent"))
    assert caught.value.key == "workers.generation"


def test_a_rule_inside_a_vote_is_looked_for_too():
    inner = stack_file("confidence")["controller"]
    vote = {"type": "MajorityVoteController", "args": {"default_sample_num": 2, "generation_controller": inner}}
    workers = {"generation": {"type": f"{__name__}:Silent", "args": {"respond": "x"}}}
    with pytest.raises(ConfigError, match="at most 0 tokens per position, but 1 are read"):
        load_stack({"controller": vote, "workers": workers})


def test_of_several_rules_the_nearest_or_the_farthest_says_how_near_the_end_is():
    probes = [Probe(Prefix(number, "", None), "5", 0) for number in range(2)]
    near, far = Consecutive(2), Window(8)
    assert [rule.certaindex(probes) for rule in (near, far, stopping_rules.build(lambda probes: True))] == [
        1.0,
        2 / 8,
        0.0,
    ]
    assert (AnyOf([near, far]).certaindex(probes), AllOf([near, far]).certaindex(probes)) == (1.0, 2 / 8)
