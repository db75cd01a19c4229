"""Equality by processes: what they are asked, what is remembered, and what they say to the hard cases."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.answers import Equality, Verdict, equal, group
from scaffolding_ext.answers.pool import OverrunError
from scaffolding_ext.answers.symbolic import symbolic
from scaffolding_ext.errors import EngineError

EQUAL, DIFFERENT, UNDETERMINED = Verdict
ENDLESS = r"\sum_{n=1}^{10^{12}} \sin(n^n)"


class Asked:
    """A pool that keeps what it is asked, for the test to answer."""

    def __init__(self) -> None:
        self.jobs: list[tuple[tuple[Any, ...], Future[Any]]] = []

    def submit(self, deadline_seconds: float, *arguments: Any) -> Future[Any]:
        assert deadline_seconds == 1.0
        self.jobs.append((arguments, Future()))
        return self.jobs[-1][1]

    def close(self) -> None:
        self.jobs.clear()

    @property
    def arguments(self) -> list[tuple[Any, ...]]:
        return [arguments for arguments, _ in self.jobs]

    def answer(self, *results: Any) -> None:
        """Settle the oldest open jobs."""
        for result in results:
            future = next(future for _, future in self.jobs if not future.done())
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)


@pytest.fixture
def pool() -> Asked:
    return Asked()


def test_what_the_text_tells_asks_no_process(pool: Asked) -> None:
    equality = Equality(pool=pool)
    assert [equality.equal("1/2", "0.5"), equality.equal("1", "2"), equality.equal("word", "1,2")] == [*Verdict]
    assert pool.jobs == []


def test_each_answer_is_looked_at_once_and_each_pair_compared_once(pool: Asked) -> None:
    equality = Equality(pool=pool)
    future = equality.submit("x+1", "1+x")
    assert pool.arguments == [(False, "1+x"), (False, "x+1")]
    pool.answer(None, None)
    assert pool.arguments[2:] == [(False, "1+x", "x+1")]
    assert not future.done()
    pool.answer("equal")
    assert future.result() is EQUAL
    assert equality.equal("1+x", "x+1") is EQUAL
    equality.submit("x+1", "x+2")
    assert pool.arguments[3:] == [(False, "x+2")]
    assert equality.num_comparisons == 1


def test_an_answer_that_cannot_be_handled_costs_one_deadline(pool: Asked) -> None:
    equality = Equality(pool=pool)
    future = equality.submit(ENDLESS, "x+1")
    assert pool.arguments == [(False, ENDLESS), (False, "x+1")]
    pool.answer(OverrunError())
    assert future.result() is UNDETERMINED  # whatever the other is
    pool.answer(None)
    assert equality.equal(ENDLESS, "x+2") is UNDETERMINED
    assert len(pool.jobs) == 2
    assert equality.num_comparisons == 0


def test_a_comparison_that_overruns_is_undetermined_and_remembered(pool: Asked) -> None:
    equality = Equality(pool=pool)
    future = equality.submit("x+1", "1+x")
    pool.answer(None, None, OverrunError())
    assert future.result() is UNDETERMINED
    assert equality.equal("x+1", "1+x") is UNDETERMINED
    assert len(pool.jobs) == 3


def test_a_process_that_does_not_start_is_an_error_and_the_next_caller_tries_again(pool: Asked) -> None:
    equality = Equality(pool=pool)
    for future in (equality.submit("x+1", "1+x"), equality.submit("1+x", "x+1")):
        if pool.jobs and not pool.jobs[0][1].done():
            pool.answer(EngineError("no process"), EngineError("no process"))
        with pytest.raises(EngineError, match="no process"):
            future.result()
    future = equality.submit("x+1", "1+x")
    pool.answer(None, None, "equal")
    assert future.result() is EQUAL


def test_a_bounded_number_of_verdicts_is_remembered(pool: Asked) -> None:
    equality = Equality(pool=pool, max_remembered=3)
    for _ in range(2):
        equality.submit("x+1", "1+x")
        pool.answer(*[None] * 2, "equal")
        equality.submit("y+1", "1+y")  # pushes all of the first out
        pool.answer(*[None] * 2, "equal")
    assert equality.num_comparisons == 4


# ---- with processes


@pytest.fixture(scope="module")
def processes() -> Iterator[Equality]:
    equality = Equality(3600.0, num_processes=1)
    yield equality
    equality.close()


def test_hard_cases(processes: Equality) -> None:
    for a, b, verdict in [
        (r"11\sqrt2", r"\sqrt{242}", EQUAL),
        (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt3}", EQUAL),
        (r"\sqrt{2}", "1.41421356237", DIFFERENT),  # a decimal is exact
        (r"10^{-8}\sqrt2", r"10^{-8}\sqrt3", DIFFERENT),
        (r"e^{\pi\sqrt{163}}", "262537412640768744", DIFFERENT),
        ("10^{60}+1", "10^{60}+2", DIFFERENT),
        ("2^{10}", "1024", EQUAL),
        (r"\log_2 8", "3", EQUAL),
        (r"\binom{5}{2}", "10", EQUAL),
        (r"7\pi", r"7 \pi", EQUAL),
        (r"\pi", "3.14", DIFFERENT),
        ("(x+1)^2", "x^2+2x+1", EQUAL),
        ("(a+5)(b+2)", "ab+2a+5b+10", EQUAL),
        ("x+1", "x+2", DIFFERENT),
        ("x+1", "X+1", DIFFERENT),
        ("6-5i", "-5i+6", EQUAL),
        ("(1+i)^2", "2i", EQUAL),
        (r"\sin^2 x+\cos^2 x", "1", EQUAL),
        (r"\cot x", r"\frac{1}{\tan x}", EQUAL),
        (r"\left(\sqrt8, 1\right)", r"(2\sqrt2, 1)", EQUAL),
        (r"\left(\sqrt8, 1\right)", r"(1, 2\sqrt2)", DIFFERENT),
        (r"[0, \sqrt8)", r"[0, 2\sqrt2)", EQUAL),
        (r"[0, \sqrt8)", r"[0, 2\sqrt2]", DIFFERENT),
        (r"\{1, \sqrt8\}", r"\{2\sqrt2, 1\}", EQUAL),
        (r"1 \pm \sqrt{19}", r"1+\sqrt{19}, 1-\sqrt{19}", EQUAL),
        (r"(-\infty, 2) \cup (3, \infty)", r"(3,\infty)\cup(-\infty,2)", EQUAL),
        (r"\begin{pmatrix} -1/3 \\ \sqrt8 \end{pmatrix}", r"\begin{bmatrix} -\frac13 \\ 2\sqrt2 \end{bmatrix}", EQUAL),
        ("y = 2x+3", "y = 3+2x", EQUAL),
        ("y = 2x+3", "y = 2x+4", DIFFERENT),
        ("5x - 7y + 4 = 0", "7y - 5x - 4 = 0", EQUAL),
        ("x > 3", "3 < x", EQUAL),
        ("Caf\u00e9", "Cafe\u0301", EQUAL),
        ("3\u200b", "3", EQUAL),
        ("don\u2019t", "don't", EQUAL),
        ("\u00bd", "1/2", EQUAL),
        ("3\u00bd", "7/2", EQUAL),
        ("x\u00b2\u207a\u00b9", "x^3", EQUAL),
        ("90\u00ba", "90^\\circ", EQUAL),
        (r"\varnothing", r"\emptyset", EQUAL),
        ("\u2205", r"\varnothing", EQUAL),
        (r"\varnothing", r"\{ \}", EQUAL),
        (r"x \in \varnothing", r"\emptyset", EQUAL),
        (r"\varnothing", "5", DIFFERENT),
        ("2e-3", "-3+2e", UNDETERMINED),
        ("3e-5", "-4+3e", UNDETERMINED),
        ("1.5e3 m", "1500 m", UNDETERMINED),
        ("1.5x10^3", "1.5 x 10^3", EQUAL),
        (r"\sqrt{x^2}", "x", UNDETERMINED),
        (r"\ln(x^2)", r"2\ln x", UNDETERMINED),
        ("|x|", "x", UNDETERMINED),
        ("|x|", "x+1", DIFFERENT),
        (r"\sqrt{x^2y}", r"x\sqrt{y}", UNDETERMINED),
        (r"\sqrt{x^2}", "-x", DIFFERENT),
        ("2(q-p)", "2", DIFFERENT),
        (r"\frac{q}{p}", "3", DIFFERENT),
        (r"\varphi", r"\phi", EQUAL),
        (r"\epsilon", r"\varepsilon", EQUAL),
        ("1<x<2", "(1,2)", UNDETERMINED),
        ("x'", "x", UNDETERMINED),
        ("1 2", "3", UNDETERMINED),
        (r"\frac{1}{0}", "5", UNDETERMINED),
        (r"\foo{x}", "x", UNDETERMINED),
        (r"\sqrt{2", r"\sqrt{2}", UNDETERMINED),
    ]:
        assert processes.equal(a, b) is verdict, (a, b)
        assert processes.equal(b, a) is verdict, (a, b)


_EXPRESSIONS = st.sampled_from(
    [
        "x+1",
        "1+x",
        "2x",
        r"\sqrt{8}",
        r"2\sqrt2",
        "(x,1)",
        "(1+x-1,1)",
        r"\{1,x\}",
        "x=1",
        "y=x",
        r"\pi",
        "x>2",
        "",
        "1,x",
    ]
)


@settings(deadline=None, max_examples=60)
@given(_EXPRESSIONS, _EXPRESSIONS)
def test_equality_is_reflexive_and_symmetric(processes: Equality, a: str, b: str) -> None:
    assert processes.equal(a, b) is processes.equal(b, a)
    assert processes.equal(a, a) is (EQUAL if a else UNDETERMINED)


@settings(deadline=None, max_examples=30)
@given(st.data(), st.lists(_EXPRESSIONS | st.none(), max_size=6))
def test_classes_do_not_depend_on_the_order(
    processes: Equality, data: st.DataObject, answers: list[str | None]
) -> None:
    order = data.draw(st.permutations(range(len(answers))))
    classes = processes.group(answers)
    back = dict(zip(order, processes.group([answers[i] for i in order]), strict=True))
    assert all((classes[i] == classes[j]) == (back[i] == back[j]) for i in back for j in back)


def test_scripts_have_functions() -> None:
    assert equal("x+1", "1+x", 3600.0) is EQUAL
    assert equal("50%", "50") is UNDETERMINED
    assert equal("50%", "50", units_implied=True) is EQUAL
    assert equal(ENDLESS, "5", deadline_seconds=0.02) is UNDETERMINED
    assert group(["5 cm", None, "5", "0.05"], 3600.0, units_implied=True) == [0, -1, 0, 1]


def test_numbers_are_told_apart_to_45_digits() -> None:
    cases = [
        ("1." + "0" * 44 + "2", Verdict.DIFFERENT),  # by more than 1e-45
        ("1." + "0" * 45 + "5", Verdict.EQUAL),  # by less, which 50 digits do not tell
    ]
    assert [(other, verdict, found) for other, verdict in cases if (found := symbolic("1", other)) is not verdict] == []


def test_two_ways_to_write_nothing_are_equal() -> None:
    assert symbolic("0", r"\sin(0)") is Verdict.EQUAL
