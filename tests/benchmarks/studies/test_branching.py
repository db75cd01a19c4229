"""What methods choose among branches, and which gates change how many answers."""

import pytest

from benchmarks.studies.branching import (
    BOTH,
    EXIT,
    FULL,
    RANDOM,
    SKIP,
    VOTE,
    depth_of,
    elected,
    leaving,
    methods,
    skipping,
)
from scaffolding_ext.controllers.tree.calibration_file import BranchingCalibration, BranchingFigures
from scaffolding_ext.controllers.tree.gates.confidence import ConfidenceGate
from scaffolding_ext.evaluation.calibrate.branching_run import BranchedProblem
from scaffolding_ext.protocol.branching import LayerExit


def problem(confidences, scores, answers=("1", "2", "2"), early=(0.5, 0.5, 0.5), id="a"):
    entropies = [[3.0, 0.2, 0.1]] * 3
    read = [[0.5, first, last] for first, last in zip(early, scores, strict=True)]
    right = [answer == "2" for answer in answers]
    fields = (list(answers), right, [4, 5, 6], list(confidences), list(confidences), list(scores), entropies, read)
    return BranchedProblem(id, "sum", *fields)


CLEAR = problem((0.9, 0.5, 0.6), (0.2, 0.9, 0.1), early=(0.1, 0.8, 0.3))
CLOSE = problem((0.7, 0.69, 0.6), (0.2, 0.1, 0.9), early=(0.9, 0.1, 0.2))


def test_a_gate_goes_before_the_verdicts():
    gated = skipping(ConfidenceGate(0.8, 0.2), BranchedProblem.chosen)
    assert (gated(CLEAR), gated(CLOSE)) == (0, 2)
    assert CLEAR.chosen() == 1


def test_an_exit_reads_the_layer_that_has_settled():
    rule = LayerExit(1.0, 5.0)
    assert [leaving(rule)(each) for each in (CLEAR, CLOSE)] == [1, 0]
    assert [leaving(None)(each) for each in (CLEAR, CLOSE)] == [1, 2]
    assert depth_of(rule, [CLEAR, CLOSE]) == pytest.approx(2 / 3)
    assert depth_of(None, [CLEAR]) == 1.0


def test_a_vote_gives_the_first_branch_of_the_winner():
    assert elected(CLEAR) == 1
    assert elected(problem((0.5,) * 3, (0.5,) * 3, answers=(None, None, None))) == 0


def test_methods_choose_among_the_same_branches():
    figures = BranchingFigures(
        num_problems=2,
        skip_rate=0.5,
        skip_agreement=0.0,
        exit_agreement=0.5,
        exit_share=1.0,
        depth=0.7,
        median_agreement=0.5,
        median_depth=0.7,
    )
    calibration = BranchingCalibration(
        model="m",
        data="d",
        branching_factor=3,
        seed=0,
        least_agreement=0.5,
        skip_gate=ConfidenceGate(0.8, 0.2),
        layer_exit=LayerExit(1.0, 5.0),
        median_exit=LayerExit(1.0, 3.0),
        figures=figures,
    )
    found = methods(calibration, [CLEAR, CLOSE], seed=0)
    chosen = {name: found[name].choices for name in (FULL, SKIP, EXIT, BOTH, VOTE)}
    assert chosen == {FULL: [1, 2], SKIP: [0, 2], EXIT: [1, 0], BOTH: [0, 0], VOTE: [1, 1]}
    assert found[SKIP].changed(found[FULL]) == [True, False]
    assert found[VOTE].changed(found[FULL]) == [False, False]  # another branch, and the same answer
    assert found[BOTH].right == [0.0, 0.0]
    first, second = found[RANDOM].choices
    assert first in (0, 1)  # the surest branch, or the verdicts' choice
    assert second in (0, 2)
