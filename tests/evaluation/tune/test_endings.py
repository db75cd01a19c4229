"""Recorded chains, ended: as a controller would have done it live, and at the cost by hand."""

from __future__ import annotations

import dataclasses
import re
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.chain.probe import AnswerProbe, Probe
from scaffolding_ext.controllers.chain.probing import ProbeSchedule
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.evaluation.logs.samples import ChainProbes, RecordedQuestion, Recording
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.evaluation.run.record_chain import RecordChainController
from scaffolding_ext.evaluation.run.records import record_writer
from scaffolding_ext.evaluation.run.runner import evaluate
from scaffolding_ext.evaluation.tune.choose import MostAccurate, chosen
from scaffolding_ext.evaluation.tune.costs import Price
from scaffolding_ext.evaluation.tune.endings import (
    Cut,
    RecordedChains,
    Stopped,
    Whole,
    endings_to_try,
)
from scaffolding_ext.evaluation.tune.replay import Replay
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.protocol.meta import PROBE, purpose_of
from scaffolding_ext.registry import probe_schedules, stopping_rules
from scaffolding_ext.testing import ScriptedWorker

FAMILY = family_named("tinylm")
QUESTION = "Question {}: "
CHAINS = ("so 1 it 2 is " * 3 + "</think> \\boxed{7}", "x" * 33 + "</think> \\boxed{9}", "y" * 200, "short \\boxed{3}")
PROBES = ("7", "9", "7", "7", "7", "9")  # by the number of tens of tokens


def respond(task: Any) -> str:
    """The chain of the question's number, or an answer that depends on how long the chain is."""
    found = re.match(r"Question (\d): (.*)", task.input_str, re.DOTALL)
    assert found is not None
    number, text = found.groups()
    if purpose_of(task) != PROBE:
        return CHAINS[int(number)][len(text) :]
    suffix = next(each for each in (FAMILY.probe, FAMILY.close) if text.endswith(each))
    answer = PROBES[(len(text) - len(suffix)) // 10 % len(PROBES)]
    return f"{answer}}} hmm" if suffix == FAMILY.probe and len(text) % 7 == 0 else f"{answer}}}"


def stopping(**arguments: Any) -> DynasorCoTController:
    given = {"max_tokens": 150, "mode": "stream", "family": "tinylm", "max_lead": 1, "schedule": ProbeSchedule(10)}
    given |= {} if "certainty_threshold" in arguments else {"rule": "consecutive"}
    return DynasorCoTController(**(given | arguments), probe=AnswerProbe(8))  # type: ignore[arg-type]


def run(controller: Any) -> list[Any]:
    samples = [Example(str(number), QUESTION.format(number), "7") for number in range(len(CHAINS))]
    with ScaffoldingLlm(controller, {"generation": ScriptedWorker(respond)}) as llm:
        return list(evaluate(llm, samples))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    path = tmp_path_factory.mktemp("recorded") / "samples.jsonl"
    with record_writer(path) as write:
        for record in run(RecordChainController(stopping(), num_logprobs=0)):
            assert record.error is None
            write(record)
    return read_recording([path])


def schedule(**args: Any) -> dict[str, Any]:
    return {"type": "ProbeSchedule", "args": args}


def rule(name: str, **args: Any) -> dict[str, Any]:
    return {"type": name, "args": args}


STOPS = MappingProxyType(
    {
        "two agree": Stopped(rule("consecutive", threshold=2), schedule(chunk_size=10)),
        "two agree, late": Stopped(rule("consecutive", threshold=2), schedule(chunk_size=20, first_probe=40)),
        "three agree, doubling": Stopped(rule("consecutive", threshold=3), schedule(chunk_size=10, growth=2.0)),
        "most agree": Stopped(rule("window", threshold=4, share=0.75), schedule(chunk_size=10)),
        "never": Stopped(rule("consecutive", threshold=99), schedule(chunk_size=20)),
        "a pattern, no probes": Stopped(rule("pattern", pattern="2 is"), schedule(chunk_size=10)),
    }
)


@pytest.mark.parametrize("name", STOPS)
def test_a_replay_is_what_the_controller_does(recording: Recording, name: str) -> None:
    stop = STOPS[name]
    ended = RecordedChains(recording).ended(stop)
    live = stopping(rule=stopping_rules.build(stop.rule), schedule=probe_schedules.build(stop.schedule))
    for number, record in enumerate(run(live)):
        assert record.correct == bool(ended.correct[number, 0])
        total, vain = record.ledger["total"], record.ledger["by_purpose"].get("discarded", {"decoded": 0})
        assert total["decoded"] - vain["decoded"] == ended.costs["decoded"][number, 0]


def test_a_cut_is_asked_for_its_answer(recording: Recording) -> None:
    ended = RecordedChains(recording).ended(Cut(20))
    assert ended.correct[:, 0].tolist() == [True, True, True, False]
    assert ended.costs["decoded"][:, 0].tolist() == [22, 22, 22, len(CHAINS[3])]
    whole = RecordedChains(recording).ended(Cut(1000))
    np.testing.assert_array_equal(whole.costs["decoded"], RecordedChains(recording).ended(Whole()).costs["decoded"])


def probed(answers: list[str | None], *, confidences: list[float] | None = None, gap: int = 40) -> ChainProbes:
    probes = [
        Probe(
            Prefix(gap * (index + 1), "", None),
            answer,
            -1 if answer is None else int(answer),
            answer_logprobs=None if confidences is None else (float(np.log(confidences[index])),),
        )
        for index, answer in enumerate(answers)
    ]
    number = len(probes)
    return ChainProbes(
        probes,
        forced=np.full(number, 5),
        num_answer_tokens=np.full(number, 3),
        num_forced_tokens=np.full(number, 2),
        length=200,
        num_prompt_tokens=50,
        num_probe_suffix=6,
        num_close_suffix=9,
    )


def recorded(*chains: ChainProbes, num_questions: int = 1) -> Recording:
    own = RecordedQuestion(
        id="q",
        run="",
        task="",
        classes=np.full(len(chains), 7),
        correct=np.ones(len(chains), dtype=bool),
        target=7,
        tokens=np.full(len(chains), 204),
        probes=list(chains),
        missing=frozenset({"seconds", "logprobs", "rewards"}),
    )
    return Recording([own] * num_questions, ["here"], "sha256:0")


def test_costs_of_probes_by_hand() -> None:
    ended = RecordedChains(recorded(probed(["1", "7", "7", "7"]))).ended(
        Stopped(rule("consecutive", threshold=2), schedule(chunk_size=40)),
        Price(1.0, 0.1, 2.0),
    )
    decoded = 120 + 3 * 3  # the third probe ends it
    before = [50 + 40, 50 + 80, 50 + 120]
    assert ended.correct.tolist() == [[True]]
    assert ended.costs["decoded"].tolist() == [[decoded]]
    dollars = (decoded * 2 + (50 + sum(before)) * 0.1 + 18 * 1) / 1e6
    assert ended.costs["dollars"].tolist() == [[pytest.approx(dollars)]]


def test_costs_of_a_forced_answer_by_hand() -> None:
    ended = RecordedChains(recorded(probed(["1", "7", "7"]))).ended(Cut(80), Price(1.0, 0.1, 2.0))
    dollars = ((80 + 2) * 2 + (50 + 50 + 80) * 0.1 + 9 * 1) / 1e6  # the forced answer reads question and chain again
    assert ended.costs["dollars"].tolist() == [[pytest.approx(dollars)]]


def test_costs_of_whole_chains_read_the_question_by_hand() -> None:
    ended = RecordedChains(recorded(probed(["1", "7"]))).ended(Whole(), Price(1.0, 0.1, 2.0))
    assert {name: cost.tolist() for name, cost in ended.costs.items()} == {
        "decoded": [[204]],
        "critical": [[204]],
        "dollars": [[pytest.approx((204 * 2 + 50 * 0.1) / 1e6)]],
    }
    once = {name: cost.tolist() for name, cost in ended.once.items()}
    assert once == {"dollars": [pytest.approx(50 * 0.9 / 1e6)]}


def test_the_answer_at_the_stop_weighs_as_much_as_it_is_probable() -> None:
    ended = RecordedChains(recorded(probed(["1", "7"], confidences=[0.3, 0.8]))).ended(
        Stopped(rule("confidence", threshold=0.7), schedule(chunk_size=40)),
    )
    assert ended.weights["answer_probability"].tolist() == [[pytest.approx(0.8)]]
    cut = RecordedChains(recorded(probed(["1", "7"], confidences=[0.3, 0.8]))).ended(Cut(40))
    assert cut.weights["answer_probability"].tolist() == [[pytest.approx(0.3)]]
    assert cut.classes.tolist() == [[5]]  # what it answers when its thinking is closed
    assert cut.tokens.tolist() == [[40 + 2]]


def test_what_the_probes_lack_is_refused_and_not_tried() -> None:
    found = recorded(probed(["1", "7"]))
    with pytest.raises(ConfigError, match="needs log-probabilities of answers, but the recorded probes have none"):
        RecordedChains(found).ended(Stopped(rule("confidence"), schedule(chunk_size=40)))
    with pytest.raises(ConfigError, match="probes after 30 tokens, but nothing was recorded there"):
        RecordedChains(found).ended(Stopped(rule("consecutive"), schedule(chunk_size=30)))
    without = dataclasses.replace(found.questions[0], probes=None, missing=frozenset({"probes"}))
    with pytest.raises(ConfigError, match="the log has no probes of chains"):
        RecordedChains(Recording([without], ["here"], "sha256:0")).ended(Cut(40))
    tried = endings_to_try(found)
    assert any(name.startswith("equal answers") for name in tried)
    assert not any(name.startswith("sure") for name in tried)


def test_probes_at_uneven_gaps_are_taken_one_by_one() -> None:
    chain = probed(["7", "7"], gap=33)
    uneven = chain._replace(probes=[chain.probes[0], chain.probes[1]._replace(prefix=Prefix(90, "", None))])
    stop = endings_to_try(recorded(uneven))["equal answers, a probe every 45"][-1]
    ended = RecordedChains(recorded(uneven)).ended(stop)
    assert ended.costs["decoded"].tolist() == [[90 + 2 * 3]]


def test_every_rule_is_tried_on_every_schedule(recording: Recording) -> None:
    tried = endings_to_try(recording)
    schedules = {name.removeprefix("equal answers, ") for name in tried if name.startswith("equal answers, ")}
    assert {"a probe every 10", "at doubled gaps"} < schedules
    assert any(name.startswith("from ") for name in schedules)
    plain = [
        each for each in (name for name in tried if name.startswith("settled answers")) if not tried[each][0].is_nested
    ]
    assert plain == ["settled answers, a probe every 10"]
    chains = RecordedChains(recording)
    for found in tried.values():
        for ending in found:
            assert chains.ended(ending).classes.shape == (len(CHAINS), 1)


def test_uneven_probes_are_found_by_their_place_on_any_schedule() -> None:
    chain = probed(["1", "2", "7", "7"])
    at = [Prefix(num_tokens, "", None) for num_tokens in (30, 75, 110, 160)]
    uneven = recorded(
        chain._replace(probes=[each._replace(prefix=own) for each, own in zip(chain.probes, at, strict=True)])
    )
    chains = RecordedChains(uneven)
    late = Stopped(rule("consecutive", threshold=1), schedule(chunk_size=40, first_probe=120))
    doubled = Stopped(rule("consecutive", threshold=2), schedule(chunk_size=40, growth=2.0))
    assert chains.ended(late).tokens.tolist() == [[110 + 3]]  # the third probe
    assert chains.ended(doubled).tokens.tolist() == [[204 + 3 * 3]]  # probes 1, 2 and 4 never agree


def test_the_joint_space_holds_cuts_stops_numbers_and_weights() -> None:
    """Short chains are right where they are sure; whole ones think themselves wrong."""
    rng = np.random.default_rng(0)
    questions = []
    for number in range(8):
        chains = []
        for _ in range(3):
            sure = rng.random() < 0.7
            answer = "7" if sure else str(rng.integers(1, 4))
            chains.append(probed([answer] * 4, confidences=[0.95 if sure else 0.3] * 4))
        own = recorded(*chains).questions[0]
        probes = [each._replace(forced=np.array([each.probes[0].answer_class] * 4)) for each in chains]
        classes = np.array([each.probes[0].answer_class for each in chains])
        questions.append(dataclasses.replace(own, id=str(number), probes=probes, classes=classes, correct=classes == 7))
    trial = Replay(Recording(questions, ["here"], "sha256:0"))
    trial.try_all()
    kinds = {type(own[0].ending) for own in trial.lists.values()}
    assert kinds == {Whole, Cut, Stopped}
    assert {own[0].weight for own in trial.lists.values()} >= {None, "answer_probability"}
    setting = chosen(trial, MostAccurate(0.5))
    assert setting is not None
    assert setting.ending != Whole()
    played = trial.played[setting]
    assert played.costs["decoded"].sum() <= 0.5 * trial.full.costs["decoded"].sum()
    assert played.right.mean() >= trial.full.right.mean() - 0.05
