"""What is left to do after the early look, by hand."""

import numpy as np
import pytest

from benchmarks._lib.searching import Searched
from benchmarks.studies.search_effort import of_chain, of_search
from scaffolding_ext.controllers.certaindex import entropy_certaindex
from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.evaluation.recordings.recording import Looks


def search(answers, rounds):
    num = len(answers)
    return Searched("q", 3, answers, [False] * num, [0.5] * num, [10] * num, 0, 0, 0, 0, num, 0, 0.0, rounds)


def test_a_search_has_left_what_comes_before_its_answer_stands():
    effort = of_search(search(["1", "1", "2", "3", "2", "2"], [[10, 0], [40, 4], [60, 5], [80, 6]]))
    assert effort.signals["certaindex, entropy"] == entropy_certaindex([0, 0, 1, 2])
    assert effort.left == pytest.approx((80 - 40) / 80)  # after five solutions the first answer still leads
    assert of_search(search(["1"] * 6, [[40, 4], [80, 6]])).left == 0


def looks(classes, forced):
    probes = [Probe(Prefix(32 * (at + 1), "", None), answer_class=each) for at, each in enumerate(classes)]
    nothing = np.zeros(len(classes), dtype=np.int64)
    return Looks(probes, np.array(forced), nothing, nothing, 32 * len(classes))


def test_a_chain_has_left_what_comes_before_its_forced_answer_is_its_last():
    effort = of_chain(looks([1, 1, 2, 2, 1, 2, 2, 2], [1, 1, 1, 1, 1, 1, 1, 2]), final=2)
    assert effort.signals == {"certaindex, equal answers": pytest.approx(2 / 3)}
    assert effort.left == pytest.approx(2 / 8)
    assert of_chain(looks([2] * 8, [2] * 8), final=2).left == 0
    assert of_chain(looks([2] * 6, [2] * 6), final=2) is None
