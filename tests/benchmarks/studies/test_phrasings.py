"""Questions in other words: what templates do to them, and what thresholds give on branches that are known."""

import numpy as np
import pytest

from benchmarks._lib.lab import Lab
from benchmarks._lib.phrasings import GATE, SIGNALS, TEMPLATES, WORKER, Phraser, Row, changed, reordered, reworded
from benchmarks._lib.report import Report
from benchmarks.studies.phrasings import (
    Outcome,
    add_levels,
    add_prize,
    add_signal,
    curve,
    gain,
    prefilled,
    recommended,
)
from scaffolding_ext.evaluation.run.datasets import Example

SUM = "Start with 19. Apply u+7,v+5. Find the total."
LARGEST = "Find the largest number: v36,w17."


def row(question, template, agrees=True, scores=(0.0, 0.0, 0.0, 0.0), right=True):
    return Row(question, template, "1", "1" if agrees else "2", "1" if right else "3", list(scores), 10, 2, 5)


def test_templates_keep_what_is_asked_but_for_the_last_level():
    assert [template.rewrite(SUM) for template in TEMPLATES] == [
        "Start with 19. Apply u+7,v+5. Find the total",
        "Okay. Start with 19. Apply u+7,v+5. Find the total.",
        "Begin at 19. Then do u+7,v+5. Find the total.",
        "Please work this out. Start with 19. Apply u+7,v+5. Find the total.",
        "Find the total. Start with 19. Apply u+7,v+5.",
        "I have two minutes for this. Start with 19. Apply u+7,v+5. Find the total.",
        "Start with 18. Apply u+7,v+5. Find the total.",
        "Start with 19. Apply u+7,v+6. Find the total.",
    ]
    assert [template.level for template in TEMPLATES] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert reworded(LARGEST) == "Which is the largest number: v36,w17."
    assert reordered(LARGEST) == "v36,w17. Find the largest number:"
    bare = "Solve $x$"  # no mark, no common word, no second sentence, no number
    assert all(template.rewrite(bare) != bare for template in TEMPLATES)
    assert reordered("If x is 1, what is y?") == "what is y? If x is 1"
    assert changed(bare, 0) == "Not Solve $x$"


def test_the_largest_reuse_with_enough_agreement_is_chosen():
    scores, agrees = np.array([0.9, 0.8, 0.8, 0.5]), np.array([True, True, False, True])
    found = curve(scores, agrees)
    assert found.thresholds.tolist() == [0.9, 0.8, 0.5]
    assert found.reused.tolist() == [0.25, 0.75, 1.0]  # equal scores go together
    assert found.agreeing == pytest.approx([1.0, 2 / 3, 0.75])
    assert recommended(scores, agrees) == 0.9
    assert recommended(scores, agrees, 0.7) == 0.5
    assert recommended(scores, ~agrees) is None


def test_a_gate_pays_for_openings_that_do_not_stay():
    outcome = Outcome.of([row("a", 0), row("b", 0)])  # 10 tokens of a phrasing, 2 of an opening
    stays = np.array([True, False])
    assert prefilled(outcome, ~stays & stays, asks=False) == 24
    assert prefilled(outcome, stays, asks=False) == 2 + 12
    assert prefilled(outcome, stays, asks=True) == (2 + 1) + (2 + 12)


def outcome_of_ten():
    """Ten questions: the fourth signal knows when answers agree, the first is the same for all branches of one."""
    rows = []
    for number in range(10):
        blind = number / 10
        for index, template in enumerate(TEMPLATES):
            agrees = template.level < 3
            rows.append(row(f"q{number}", index, agrees, (blind, 0.5, 0.5, float(agrees)), right=agrees))
    return Outcome.of(rows)


def test_figures_tell_a_signal_that_knows_from_one_that_does_not():
    report, outcome = Report("phrasings", {}), outcome_of_ten()
    add_levels(report, outcome)
    add_prize(report, outcome)
    for number in (0, 3):
        add_signal(report, outcome, number)
    value = {name: figure["value"] for name, figure in report.figures.items()}
    assert value["level 0, nearly the same: answers agree, %"] == 100
    assert value["level 3, another meaning: answers agree, %"] == 0
    assert "level 3, another meaning: accuracy on the phrasing, %" not in value  # nobody knows its answer
    assert value[f"{GATE}: AUC within a question"] == 0.5
    assert value[f"{GATE}: branches of the second half that stay, %"] == 0  # no threshold has 99 %
    assert value[f"{GATE}: prefilled tokens saved, %"] == pytest.approx(-100 * 2 / 12)  # it read openings in vain
    knows = SIGNALS[3]
    assert value[f"{knows}: AUC of agreement"] == 1
    assert value[f"{knows}: threshold of the first half"] == 1
    assert value[f"{knows}: of these agree, %"] == 100
    assert value[f"{knows}: stay at level 0, %"] == 100
    assert value[f"{knows}: stay at level 3, %"] == 0
    assert value["every branch stays: prefilled tokens saved, %"] == pytest.approx(100 * 10 / 12)
    assert [bar.holds for bar in report.bars] == [False, False]
    assert gain(outcome, outcome.scores[3]).value == 0.25


def test_on_the_roots_kv_the_gate_sees_of_a_branch_its_opening_alone():
    samples = [Example("a", SUM, "31"), Example("b", LARGEST, "36")]
    with Lab({WORKER: "tinylm/draft"}, max_seq_len=256) as lab:
        rows = Phraser(lab, "tinylm/draft", ["Okay.\n", "First\n"], max_tokens=2).rows(samples)
    seen = {name: np.array([row.signals[n] for row in rows]).reshape(2, 8) for n, name in enumerate(SIGNALS)}
    assert [row.template for row in rows] == [*range(8)] * 2
    for own in seen[GATE]:
        assert len(set(own[::2])) == len(set(own[1::2])) == 1  # openings take turns
        assert own[0] != own[1]
    assert len(set(seen["embedding"][0])) > 2
    assert all(row.on_root == rows[0].on_root for row in rows[:8:2])
