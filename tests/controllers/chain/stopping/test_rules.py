"""Stopping rules by themselves and in a controller: built in, a stranger's, with and without probes."""

import re

import pytest

from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.chain.probe import AnswerProbe, Probe
from scaffolding_ext.controllers.chain.probing import ProbeNeeds
from scaffolding_ext.controllers.chain.stopping.agreement import Consecutive, TotalVariation, Window
from scaffolding_ext.controllers.chain.stopping.base import StoppingRule
from scaffolding_ext.controllers.chain.stopping.text import PatternStop
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.protocol.meta import PROBE, Purpose, purpose_of
from scaffolding_ext.registry import stopping_rules
from scaffolding_ext.testing import ScriptedWorker

FAMILY = family_named("tinylm")
CHAIN = "one two three. So the total is 9. four five six seven eight nine ten"
MODES = {"stream": {}, "chunk": {"mode": "chunk"}, "chunk_in_turn": {"mode": "chunk", "overlap": False}}
in_every_mode = pytest.mark.parametrize("mode", MODES)


def probes(*classes, hedged=()):
    return [Probe(Prefix(i, "", []), None if c < 0 else str(c), c, i in hedged) for i, c in enumerate(classes)]


def looks(*texts):
    return [Probe(Prefix(len(text), text, None)) for text in texts]


def most_agree(probes):
    """A stranger's rule: four probes, three quarters of which gave the newest answer."""
    newest = probes[-1].answer_class
    return len(probes) >= 4 and sum(probe.answer_class == newest for probe in probes) / len(probes) >= 0.75


def agree_in(probes, num=2):
    """A stranger's rule with a further argument, which has a default."""
    return len({probe.answer_class for probe in probes[-num:]}) == 1


def of_other_arguments(answers, probes=()):
    """No rule: its first argument is not called `probes`."""


TWO_AGREE = Consecutive(2)


class LongEnough(StoppingRule):
    """A rule that needs no probe, and is built without arguments."""

    needs = ProbeNeeds(answer=False)
    exit_reason = "long enough"

    def __call__(self, probes):
        return probes[-1].prefix.num_tokens >= 20


def request(rule, mode, chain=CHAIN, answers=("4}",), **arguments):
    given = iter([*answers, *["}"] * 99])

    def respond(task):
        return next(given) if purpose_of(task) == PROBE else chain[len(task.input_str) - 2 :]

    worker = ScriptedWorker(respond)
    controller = DynasorCoTController(chunk_size=10, family="tinylm", rule=rule, **MODES[mode], **arguments)
    with ScaffoldingLlm(controller, {"generation": worker}) as llm:
        return llm.generate("Q:"), worker


# ---- rules by themselves


@pytest.mark.parametrize(
    ("rule", "given", "stops"),
    [
        (Consecutive(2), probes(0), False),
        (Consecutive(2), probes(0, 0), True),
        (Consecutive(2), probes(0, 1), False),
        (Consecutive(2), probes(-1, -1), False),
        (Consecutive(2), probes(0, 0, hedged=[0]), False),
        (Window(2), probes(0, 1, 1, hedged=[1]), False),
        (Window(2), probes(1, 0, 1, hedged=[1]), True),
        (Window(4, 0.75), probes(1, 0, 1, 1), True),
        (Window(4, 0.75), probes(1, 0, 0, 1), False),
        (TotalVariation(2), probes(0, 0, 0), False),
        (TotalVariation(2), probes(0, 0, 0, 0), True),
        (TotalVariation(2), probes(1, 0, 0, 0, 0), True),
        (TotalVariation(2), probes(0, 1, 0, 1), False),  # goes round
        (TotalVariation(3, 0.49), probes(0, 1, 2, 0, 1, 2), False),
        (TotalVariation(2), probes(0, 0, 0, 1), False),
        (TotalVariation(2, 0.5), probes(0, 0, 0, 1), False),  # one probe alone has moved all the way
        (TotalVariation(4, 0.34), probes(1, 0, 0, 0, 1, 0, 0, 0), True),
        (TotalVariation(3), probes(0, 1, 1, 1, 1, 0), False),  # settled, but not on the newest
        (TotalVariation(1), probes(-1, -1), False),
        (TotalVariation(1), probes(0, 0, hedged=[1]), False),
        (TotalVariation(1), probes(0, 1, 0, hedged=[1]), True),
        (PatternStop(r"total is \d"), looks("so the total i"), False),
        (PatternStop(r"total is \d"), looks("so the total i", "so the total is 5"), True),
        (PatternStop(r"total is \d", max_match_len=3), looks("the total is", "the total is 5 or so"), False),
        (PatternStop("total"), looks("total is 5"), True),  # at the very beginning
        (PatternStop("total", 3), looks("ab", "ab total is 5, and on"), True),  # all that is new is read
        (PatternStop("total", 3), looks("ab", "ab total is 5", "ab total is 5, and on"), False),  # nothing twice
        (PatternStop("total is 5", 7), looks("xx total i", "xx total is 5"), True),  # seven characters before
        (PatternStop("total is 5", 6), looks("xx total i", "xx total is 5"), False),
        (PatternStop(r"goes$", max_match_len=3), looks("so it", "so it goes"), True),
        (PatternStop(r"^it", max_match_len=3), looks("so it", "so it goes"), False),
    ],
)
def test_a_rule_decides_on_what_was_seen(rule, given, stops):
    assert rule(given) is stops


def test_rules_by_name():
    assert stopping_rules.build("consecutive").threshold == 3
    assert DynasorCoTController(rule="consecutive", certainty_threshold=4).rule.threshold == 4
    window = DynasorCoTController(rule="window", certainty_threshold=5).rule
    assert (window.threshold, window.share) == (5, 1.0)
    assert isinstance(stopping_rules.build("total_variation"), TotalVariation)
    assert stopping_rules.build(most_agree).function is most_agree
    assert stopping_rules.build(f"{__name__}:most_agree").function.__name__ == "most_agree"
    assert isinstance(stopping_rules.build(f"{__name__}:LongEnough"), LongEnough)
    assert stopping_rules.build(f"{__name__}:TWO_AGREE") is TWO_AGREE
    assert stopping_rules.build(f"{__name__}:agree_in").function.__name__ == "agree_in"


@pytest.mark.parametrize("rule", ["total_variation", most_agree, Window(4, 0.5)])
def test_a_rule_without_a_threshold_of_the_controllers_is_given_none(rule):
    with pytest.raises(ConfigError, match="takes no certainty_threshold") as caught:
        DynasorCoTController(rule=rule, certainty_threshold=4)
    assert caught.value.key == "rule"


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            "majority",
            r"unknown stopping rule 'majority'; known: all, any, .*, consecutive, pattern, total_variation, window",
        ),
        ("pattern", r"needs 'pattern'; it accepts: .*; give \{type: pattern, args: \{...\}\}"),
        ("nowhere:rule", "cannot import 'nowhere:rule'"),
        ("os:getcwd", "so not a stopping rule; name such a class"),
        (f"{__name__}:of_other_arguments", "so not a stopping rule"),
        (5, r"give a stopping rule, the name of one"),
        (LongEnough, r"give a stopping rule, the name of one"),
    ],
)
def test_what_is_no_rule_is_refused(rule, message):
    with pytest.raises(ConfigError, match=message) as caught:
        DynasorCoTController(rule=rule)
    assert caught.value.key == "rule"


@pytest.mark.parametrize(
    ("build", "key"),
    [
        (lambda: PatternStop("(open"), "pattern"),
        (lambda: PatternStop(5), "pattern"),
        (lambda: PatternStop("a*"), "pattern"),
        (lambda: Consecutive(0), "threshold"),
        (lambda: Window(2.5), "threshold"),
        (lambda: Window(2, 0.0), "share"),
        (lambda: TotalVariation(0), "window"),
        (lambda: TotalVariation(2, 1.0), "tolerance"),
    ],
)
def test_bad_arguments_name_their_key(build, key):
    with pytest.raises(ConfigError) as caught:
        build()
    assert caught.value.key == key


# ---- rules in a controller


@in_every_mode
def test_a_pattern_ends_thinking_without_a_probe(mode):
    result, worker = request(PatternStop(r"total is \d+"), mode)
    position = 40  # the look behind the pattern's end, at 32
    assert result.outputs[0].text == CHAIN[:position] + FAMILY.close + "4" + FAMILY.answer_end
    assert (result.answer, result.exit_reason) == ("4", "pattern")
    assert [event["event"] for event in result.program.trace.decisions] == ["begin", "stop", "end", "force"]
    ledger = result.program.ledger.by_purpose
    assert ledger[Purpose.CHAIN].decoded == position
    assert ledger[Purpose.PROBE].decoded == len("4}")  # the answer, once
    assert len([task for task in worker.tasks if purpose_of(task) == PROBE]) == 1


@in_every_mode
def test_a_pattern_that_does_not_appear_lets_the_chain_end(mode):
    result, _ = request(PatternStop("no such text"), mode, chain="a thought</think> so \\boxed{7}")
    assert (result.answer, result.exit_reason) == ("7", "end")
    assert Purpose.PROBE not in result.program.ledger.by_purpose


@in_every_mode
def test_a_pattern_in_the_answer_ends_nothing(mode):
    chain = "a thought</think> so the total is \\boxed{7} and so on and on"
    result, _ = request(PatternStop("total is"), mode, chain=chain)
    assert (result.outputs[0].text, result.exit_reason) == (chain, "end")


@in_every_mode
def test_a_strangers_rule_decides(mode):
    result, _ = request(most_agree, mode, answers=["5}", "6}", "5}", "5}"])
    assert (result.answer, result.exit_reason) == ("5", "certain")
    assert result.outputs[0].text == CHAIN[:40] + FAMILY.close + "5" + FAMILY.answer_end


@in_every_mode
def test_a_rule_may_say_why_and_stop_without_an_answer(mode):
    result, _ = request(f"{__name__}:LongEnough", mode)
    assert (result.answer, result.exit_reason) == ("4", "long enough")
    assert result.outputs[0].text.startswith(CHAIN[:20] + FAMILY.close)


@in_every_mode
def test_a_rule_sees_all_looks_with_what_was_asked(mode):
    seen = []

    def watch(probes):
        seen.append(list(probes))
        return False

    request(watch, mode, answers=["5} wait", "", "6}"], max_tokens=40)
    assert [len(probes) for probes in seen] == [1, 2, 3]
    assert [(p.prefix.num_tokens, p.answer, p.answer_class, p.hedged, p.response) for p in seen[-1]] == [
        (10, "5", 0, True, "5} wait"),
        (20, None, -1, False, ""),
        (30, "6", 1, False, "6}"),
    ]
    assert [p.prefix.text for p in seen[-1]] == [CHAIN[:10], CHAIN[:20], CHAIN[:30]]


@pytest.mark.parametrize("words", ["wait", ["wait", 5]])
def test_hedge_words_are_a_list_of_words(words):
    with pytest.raises(ConfigError, match=re.escape("give a list of words, such as ['wait', 'but']")) as caught:
        AnswerProbe(hedge_words=words)
    assert caught.value.key == "hedge_words"
