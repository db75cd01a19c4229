"""Settings in words, as `tune` gives them as advice."""

from __future__ import annotations

import pytest

from scaffolding_ext.controllers.rule import DecisionRule
from scaffolding_ext.controllers.vote.allocation.baselines import Even
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.evaluation.tune.endings import Cut, Stopped, Whole
from scaffolding_ext.evaluation.tune.space import Setting
from scaffolding_ext.registry import allocation_rules, stopping_rules

LOOKS = {"type": "ProbeSchedule", "args": {"chunk_size": 500, "first_probe": 2000}}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (Setting(Whole(), 1), "ask once"),
        (Setting(Whole(), 2, weight="shortness"), "ask twice and take the shorter answer"),
        (Setting(Whole(), 8, weight="reward"), "ask 8 times and vote; better rewarded answers count more"),
        (
            Setting(Whole(), 8, LeaderChange(miss=0.1)),
            "ask up to 8 times and stop when the leader can hardly change (a chance of 10%)",
        ),
        (Setting(Whole(), 20, Even(num_samples=3), in_flight=20), "ask 20 times at once and stop when 3 have ended"),
        (
            Setting(Cut(2000), 8, Even(), in_flight=4),
            "ask up to 8 times, 4 at once, and stop when all have ended; cut thinking after 2,000 tokens",
        ),
        (
            Setting(Stopped({"type": "consecutive"}, LOOKS), 4),
            "ask 4 times and vote; end thinking when 3 answers in a row are equal, probing every 500 tokens, first "
            "after 2,000",
        ),
    ],
)
def test_a_setting_says_what_to_do(setting: Setting, words: str) -> None:
    assert str(setting) == words


def test_every_rule_that_is_tried_says_when_it_stops_and_names_no_class() -> None:
    votes = [LabelledVote(str(n), [0, 0, 1, 0], [True, True, False, True], [5, 9, 7, 6], [0.5] * 4) for n in range(4)]
    silent = set()
    for kinds in (allocation_rules, stopping_rules):
        for name in kinds.names():
            kind = kinds.resolve(name)
            assert issubclass(kind, DecisionRule)
            for args in [settings[0] for settings in kind.search_space(votes).values()]:
                words = kind(**args).words
                silent |= {name} if kind.__name__ in words or "{" in words else set()
    assert not silent
