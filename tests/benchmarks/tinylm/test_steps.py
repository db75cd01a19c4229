"""Steps: what each method misreads, and the checker of what is written."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.tinylm.steps import CAREFUL, IMMUNE, METHODS, QUICK, Method, check_steps, write_step
from scaffolding_ext.tinylm.grammar import KINDS, Problem, apply_operation, sample_problem

untimed = settings(deadline=None)
seeds = st.integers(0, 2**63 - 1)
kinds = st.sampled_from(KINDS)
methods = st.sampled_from(METHODS)
BY_NAME = {method.name: method for method in METHODS}
SUM = Problem("sum", "Start with 22. Apply c+4,d-6,e+8. Find the total.", "28", 22, ("c+4", "d-6", "e+8"))


def of(kind: str, start: int = 0, parameter: int = 0, operation: str = "z0") -> Problem:
    """A problem whose first operation is another one than those that are worked out."""
    return Problem(kind, "", "", start, (operation,), parameter)


@pytest.mark.parametrize(
    ("problem", "method", "operation", "state", "text"),
    [
        (SUM, "columns", "c+4", 22, "c+4:22+9=31\n"),
        (SUM, "fingers", "c+4", 22, "c+4;22+4=26\n"),
        (SUM, "fingers", "d-6", 26, "d-6;26-5=21\n"),
        (SUM, "columns", "d-4", 26, "d-4:26-4=22\n"),  # after a plus only
        (of("walk"), "halves", "bR7", 20, "bR7|20+1=21\n"),
        (of("walk"), "blocks", "bL9", 2, "bL9/2-4=-2\n"),
        (of("modular", parameter=7), "dots", "b*8", 3, "b*8!3*2=6>6\n"),
        (of("modular", parameter=7), "units", "b*8", 3, "b*8?3*8=24>3\n"),
        (of("count", parameter=4), "tens", "b5", 1, "b5~6>4 yes 2\n"),
        (of("count", parameter=-4), "tens", "b5", 1, "b5~5<4 no 1\n"),
        (of("count", parameter=-4), "groups", "b5", 1, "b5@3<4 yes 2\n"),
        (of("maximum"), "pairs", "b48", 40, "b48^46>40 46\n"),
        (of("maximum"), "rounding", "b46", 50, "b46#48<50 50\n"),
    ],
)
def test_a_method_shows_what_it_reads_and_calculates_right(
    problem: Problem, method: str, operation: str, state: int, text: str
) -> None:
    assert write_step(problem, BY_NAME[method], operation, state).text == text


@pytest.mark.parametrize(
    ("problem", "operation", "state", "right", "misled"),
    [
        (of("sum", 13, operation="a+3"), "a+3", 13, "13+3=16\n", "18+3=21\n"),
        (of("walk", 33, operation="aL5"), "aL5", 33, "33-5=28\n", "38-5=33\n"),
        (of("modular", 3, 11, "a*2"), "a*2", 3, "3*2=6>6\n", "8*2=16>5\n"),
        (of("count", parameter=3), "b6", 2, "6>3 yes 3\n", "6>8 no 2\n"),
        (of("maximum"), "b73", 75, "73<75 75\n", "78>75 78\n"),
    ],
)
def test_a_misleading_place_misleads_all_but_a_quick_and_a_careful_method(
    problem: Problem, operation: str, state: int, right: str, misled: str
) -> None:
    read = {method.name: write_step(problem, method, operation, state) for method in METHODS}
    immune = {name for name, step in read.items() if step.text[len(operation) + 1 :] == right}
    assert immune == set(IMMUNE[problem.kind])
    assert read["units"].text == f"{operation}?{misled}"
    assert {step.is_misread for name, step in read.items() if name not in immune} == {True}
    assert [any(method.name in immune for method in group) for group in (QUICK, CAREFUL)] == [True, True]


def test_a_start_misleads_the_first_operation_alone() -> None:
    problem = Problem("sum", "", "", 13, ("a+7", "b+3"))
    assert write_step(problem, BY_NAME["units"], "b+3", 13).text == "b+3?13+3=16\n"


def test_methods_have_names_and_marks_of_their_own() -> None:
    assert len({method.name for method in METHODS}) == len({method.mark for method in METHODS}) == 12
    assert len({method.misreading for method in METHODS}) == 12


@untimed
@given(seeds, kinds, methods)
def test_a_line_that_is_not_misread_is_right(seed: int, kind: str, method: Method) -> None:
    problem = sample_problem(random.Random(seed), kind=kind)
    state = problem.start
    for operation in problem.operations:
        step = write_step(problem, method, operation, state)
        if not step.is_misread:
            assert step.state == apply_operation(problem, operation, state)
        assert step.text.startswith(operation + method.mark)
        state = step.state


# ---- the checker


def test_a_chain_is_checked_line_by_line() -> None:
    chain = (
        "Okay, by columns first.\nc+4:22+9=31\nd-6:31-6=25\ne+8:25+8=33\nSo I get 33.\n"
        "Wait, from the start by units.\nc+4?22+4=26\nd-6?26-6=20\ne+8?20+8=28\n"
        "But now I get 28, not 33. I made a slip.\nHmm, the second half by pairs.\nd-6^26-6=20\ne+8^20+6=26\n"
    )
    lines = check_steps(SUM, chain)
    assert "".join(line.text for line in lines) == chain
    assert [line.is_right for line in lines if line.is_right is not None] == [
        *(False, True, True),
        *(True, True, True),
        *(True, False),
    ]
    assert all(line.follows_method for line in lines if line.is_right is not None)
    misread = [line.text for line in lines if line.is_misread]
    assert misread == ["c+4:22+9=31\n", "e+8^20+6=26\n"]
    assert [line.is_on_right_way for line in lines] == [
        *(True, False, False, False, False),
        *(True, True, True, True, True),
        *(True, True, False),
    ]
    assert [line.belief for line in lines] == [None] * 4 + ["33"] * 5 + ["28"] * 4
    assert [line.method.name for line in lines if line.method] == ["columns"] * 4 + ["units"] * 4 + ["pairs"] * 3


def test_a_check_of_the_second_half_goes_on_from_the_state_in_the_middle() -> None:
    lines = check_steps(SUM, "c+4:22+9=31\nd-6:31-6=25\ne+8:25+8=33\nSo I get 33.\nHmm, the second half by units.\n")
    assert not lines[-1].is_on_right_way
    lines = check_steps(SUM, "c+4?22+4=26\nd-6?26-6=20\ne+8?20+6=26\nSo I get 26.\nHmm, the second half by units.\n")
    assert lines[-1].is_on_right_way


def test_what_a_model_writes_astray_is_wrong() -> None:
    thinking = "c+4:22+4=26\nd-9:26-9=17\nz+1 1\nSo I get 1.\nWait, from the start by units.\nc+4\nd-6?22-6=16\nAnd so"
    lines = check_steps(SUM, thinking)
    assert [line.is_right for line in lines] == [True, False, False, None, None, False, False, None]
    assert [line.follows_method for line in lines] == [False, False, False, None, None, False, False, None]
    assert not lines[-1].is_on_right_way
    assert lines[-1].belief == "1"


def test_a_line_that_is_not_complete_is_not_judged() -> None:
    (*_, last) = check_steps(SUM, "c+4?22+4=26\nd-6?26-")
    assert (last.is_right, last.method, last.is_on_right_way) == (None, None, True)
    assert check_steps(SUM, "") == []


def test_a_step_that_is_left_out_is_one_mistake() -> None:
    lines = check_steps(SUM, "c+4?22+4=26\ne+8?26+8=34\nSo I get 34.\nHmm, the second half by units.\nd-6?26-6=20\n")
    assert [line.is_right for line in lines] == [True, False, None, None, True]


def test_lines_beyond_the_last_operation_are_wrong() -> None:
    lines = check_steps(SUM, "c+4?22+4=26\nd-6?26-6=20\ne+8?20+8=28\nf+1?28+1=29\nSo I get 28.\n")
    assert [line.is_right for line in lines] == [True, True, True, False, None]
    assert lines[-1].is_on_right_way
