"""What the study of a real model computes, on chains and votes made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from benchmarks._lib.easy_questions import Exam, Question
from benchmarks._lib.recorded_chains import RecordedChain
from benchmarks._lib.report import Report
from benchmarks._lib.vote_replays import play
from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.probe import Entropy, Probe
from scaffolding_ext.controllers.vote.allocation.baselines import Even
from scaffolding_ext.errors import MissingDependencyError

pytest.importorskip("torch")

from benchmarks.studies import real_model

RIGHT, WRONG = 7, 3


def chain(question: str, probed: Sequence[int], sure: Sequence[float], full: int = RIGHT) -> RecordedChain:
    """A chain that is looked at every four tokens, and gives these answers there, as sure as that."""
    looks = [
        Probe(
            Prefix(4 * number, "", None),
            str(answer),
            answer,
            answer_logprobs=(float(np.log(share)),),
            entropy=Entropy(1 - share, 0),
        )
        for number, (answer, share) in enumerate(zip(probed, sure, strict=True), 1)
    ]
    ones = [1] * len(looks)
    return RecordedChain(question, looks, probed, ones, ones, full, RIGHT, 10, 40, 40, 2, 2)


def played(rule: str, chains: Sequence[RecordedChain]) -> list[int]:
    judged = real_model.judge(chains, real_model.RULES[rule], 4, np.random.default_rng(0))
    return judged.outcome.exits.tolist()


def test_the_default_rule_waits_until_equal_answers_are_sure() -> None:
    chains = [chain("a", [WRONG, WRONG, RIGHT, RIGHT], [0.5, 0.5, 0.95, 0.95])]
    assert played(real_model.PLAIN_TWO, chains) == [1]
    assert played(real_model.DYNASOR, chains) == [-1]
    assert played("confidence 0.9", chains) == [2]
    assert played(real_model.DEFAULT, chains) == [3]


def test_every_task_is_held_against_a_cut_of_its_own() -> None:
    early = [chain("a", [RIGHT] * 8, [0.95] * 8, WRONG)]  # a cut at the first look is right, the whole chain is not
    late = [chain("b", [WRONG] * 8, [0.95] * 8)]
    judged = real_model.Pool([early, late]).judged(real_model.RULES[real_model.PLAIN_TWO], 4, np.random.default_rng(0))
    assert judged.outcome.exits.tolist() == [1, 1]
    assert judged.cut_right.tolist() == [1.0, 0.0]
    assert judged.outcome.costs["decoded"].tolist() == [10, 10]  # eight of the chain, and two probes


def test_a_cut_that_costs_as_much_as_whole_chains_is_left_out() -> None:
    early_right = [chain(str(number), [WRONG] * 2 + [RIGHT], [0.95] * 3, WRONG) for number in range(4)]
    cuts = real_model.cuts_of([each._replace(num_tokens=14) for each in early_right])
    assert [cut.costs["decoded"].mean() for cut in cuts] == [5, 9, 13, 14]
    cuts = real_model.cuts_of([each._replace(num_tokens=13) for each in early_right])
    assert [cut.costs["decoded"].mean() for cut in cuts] == [5, 9, 13]  # the cut at 12 costs as much as whole chains
    assert cuts[-1].right.tolist() == [0.0] * 4


def test_a_cut_of_as_long_chains_pays_no_probes() -> None:
    chains = [chain(str(number), [WRONG, WRONG, RIGHT, RIGHT], [0.95] * 4, WRONG) for number in range(4)]
    judged = real_model.judge(chains, real_model.RULES[real_model.PLAIN_TWO], 4, np.random.default_rng(0))
    assert judged.outcome.right.tolist() == [0.0] * 4  # after eight tokens, for ten
    assert judged.as_long_right.tolist() == [0.0] * 4
    assert judged.cut_right.tolist() == [0.25] * 4  # between the cuts that cost nine and thirteen


def test_what_a_rule_saves_is_reported_by_question() -> None:
    report = Report("real_model", {}, 0)
    pool = real_model.Pool([[chain(name, [RIGHT] * 8, [0.95] * 8) for name in ("a", "a", "b")]])
    found = real_model.add_rules(report, real_model.POOLED, pool)
    assert report.figures["all chains, whole chains: decoded"]["value"] == 40
    ours = f"all chains, {real_model.DEFAULT}, every 4"
    assert report.figures[f"{ours}: fired"]["value"] == 1
    # it is left at the second look, after 8 tokens, with two probes of a token each
    assert report.figures[f"{ours}: decoded saved"]["value"] == pytest.approx(1 - 10 / 40)
    assert report.figures[f"{ours}: points over whole"]["value"] == 0
    over = f"all chains, {real_model.DEFAULT} over {real_model.DYNASOR}, every 4"
    assert report.figures[f"{over}: decoded"]["value"] == pytest.approx(10 / 15)
    real_model.add_bars(report, found, pool)
    assert [bar.holds for bar in report.bars] == [True, True]  # all of them are right everywhere


def test_the_bars_fall_where_a_cut_is_better() -> None:
    report = Report("real_model", {}, 0)
    rash = [chain(str(number), [WRONG] * 5 + [RIGHT] * 4, [0.95] * 9) for number in range(6)]
    never_sure = [chain(str(number), [RIGHT] * 9, [0.5] * 9) for number in range(6, 12)]
    pool = real_model.Pool([rash + never_sure])
    real_model.add_bars(report, real_model.add_rules(report, real_model.POOLED, pool), pool)
    assert [bar.holds for bar in report.bars] == [False, False]
    name = f"{real_model.DEFAULT}: questions for power 0.9"
    assert report.figures[f"{name}, to tell it from a cut"]["value"] > 1
    assert f"{name}, less 2 points" not in report.figures  # no number of questions would show what is not so


def vote(classes: Sequence[int], weights: Sequence[float]) -> dict[str, Any]:
    """A vote whose right answers are of class 1."""
    correct = [number == 1 for number in classes]
    return {
        "id": "a",
        "classes": list(classes),
        "correct": correct,
        "lengths": [10] * len(classes),
        "weights": list(weights),
        "computed": 99,
    }


@pytest.mark.parametrize(
    ("how", "is_right"),
    [("majority", False), (real_model.BY_PROBABILITY, True), ("likeliest half", True), (real_model.BEST, True)],
)
def test_a_vote_may_go_by_how_likely_its_samples_are(how: str, is_right: bool) -> None:
    one = real_model.labelled(vote([0, 0, 1], [0.2, 0.2, 0.9]))
    assert real_model.is_right(one, 3, how) is is_right
    assert not real_model.is_right(one, 2, how)


def test_a_smaller_vote_of_as_many_tokens_is_drawn_by_lot_between_two() -> None:
    orders = [[real_model.labelled(vote([0, 1, 1, 1], [0.5] * 4))]]
    sizes = [play(Even(num_samples=num), orders) for num in (1, 2, 3, 4)]
    # two samples tie, and the first one's answer wins; three are right
    assert [real_model.smaller_vote(sizes, tokens).tolist() for tokens in (10, 20, 25, 30, 99)] == [
        [0.0],
        [0.0],
        [0.5],
        [1.0],
        [1.0],
    ]


def test_votes_are_held_against_one_greedy_chain() -> None:
    report = Report("real_model", {}, 0)
    rows = [vote([1] * 8, [0.5] * 8), vote([0] * 8, [0.5] * 8) | {"id": "b"}]
    real_model.add_votes(report, rows, np.array([0.0, 0.0]))
    assert report.figures["vote of 8: decoded"]["value"] == 80
    assert report.figures["vote of 8, majority: accuracy"]["value"] == 0.5
    assert report.figures["vote of 8, majority: points over one greedy chain"]["value"] == 50
    assert report.figures["curtailment: points against all 8"]["value"] == 0
    assert report.figures["curtailment: stopped early"]["value"] == 1
    assert report.figures["vote of 8: computed"]["value"] == 99


def test_tasks_of_a_package_that_is_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    exam = Exam("sum", [], [Question("1 + 1?", "2", "")] * 2)

    def draw(task: str, num: int, seed: int) -> Exam:
        if task.startswith("gym"):
            raise MissingDependencyError("reasoning-gym", "problems")
        return exam

    class Answering:
        """Of two questions one is right."""

        def stored(self, name: str, find: Any) -> list[dict[str, Any]]:
            return [{"right": True, "decoded": 5}, {"right": False, "decoded": 7}]

    monkeypatch.setattr(real_model, "draw_exam", draw)
    monkeypatch.setattr(Exam, "samples", lambda self, prompting, with_examples=True: [])
    report = Report("real_model", {}, 0)
    real_model.add_tasks(report, Answering(), None, ["sum", "gym gcd"], 2)  # type: ignore[arg-type]
    assert report.setting["left out, reasoning-gym is not installed"] == ["gym gcd"]
    assert report.figures["sum, greedy: right"]["value"] == 0.5
    assert report.figures["sum, greedy: decoded"]["value"] == 6
    assert not any(name.startswith("gym") for name in report.figures)
