"""A rule that is shown the looks of a request again decides as it did."""

import itertools
import json

import pytest

from scaffolding_ext.controllers.chain.probe import probes_of, row_of
from scaffolding_ext.controllers.chain.stopping.agreement import Consecutive, TotalVariation
from scaffolding_ext.controllers.chain.stopping.base import StoppingRule
from scaffolding_ext.controllers.chain.stopping.confidence import AnswerConfidence
from scaffolding_ext.controllers.chain.stopping.several import AllOf, AnyOf


class Watched(StoppingRule):
    """Decides as another rule, and keeps the looks of one request as JSON."""

    def __init__(self, rule):
        self.rule, self.needs, self.lines = rule, rule.needs, []

    def stop(self, probes):
        self.lines.append(json.dumps(row_of(probes)))
        return self.rule.stop(probes)

    def __call__(self, probes):
        return self.stop(probes) is not None


RULES = [
    Consecutive(2),
    TotalVariation(2),
    AnswerConfidence(0.9),
    AnyOf([Consecutive(4), AnswerConfidence(0.9)]),
    AllOf([Consecutive(2), AnswerConfidence(0.9)]),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_rule_decides_on_the_record_as_it_did_on_the_chain(ask, mode, rule):
    watched = Watched(rule)
    sure = itertools.chain([0.3, 0.6, 0.9, 0.5, 0.7], itertools.repeat(0.95))
    result, _ = ask(watched, ["3}", "4}", "4}", "5}", "4}"], lambda task: {0: (p := next(sure)), 1: 1.0 - p}, **mode)
    looks = probes_of(map(json.loads, watched.lines))
    decisions = [rule.stop(looks[: end + 1]) for end in range(len(looks))]
    assert decisions[:-1] == [None] * (len(looks) - 1)
    if decisions[-1] is None:
        assert result.exit_reason == "end"
    else:
        (stop,) = [event for event in result.program.trace if event["event"] == "stop"]
        assert (decisions[-1].reason, looks[-1].prefix.num_tokens) == (stop["reason"], stop["position"])
        assert {name: stop[name] for name in decisions[-1].figures} == decisions[-1].figures
