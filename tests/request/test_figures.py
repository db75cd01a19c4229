"""Figures of a request add up, keep their kind, and are numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.request.figures import Answers, Ratio, added
from scaffolding_ext.request.program import Program, enter_program, leave_program, publish_figures


@pytest.mark.parametrize(
    ("before", "new", "both"),
    [
        (None, 3, 3),
        (3, 4.5, 7.5),
        (Ratio(1, 2), Ratio(0, 3), Ratio(1, 5)),
        ({"a": 1}, {"b": 2, "a": 3}, {"a": 4, "b": 2}),
        (Answers(["1"]), Answers(["2", None]), Answers(["2", None])),
    ],
)
def test_figures_add_up(before: Any, new: Any, both: Any) -> None:
    assert added(before, new) == both


@pytest.mark.parametrize(
    ("before", "new", "error", "message"),
    [
        (3, Ratio(1, 2), TypeError, "rate is a Ratio, and was a number before"),
        ({"a": 1}, 3, TypeError, "rate is a number, and was counts"),
        (None, "3", ConfigError, "rate: is '3'"),
        (None, Ratio(1, math.inf), ConfigError, "rate: is inf"),
        (None, {"a": None}, ConfigError, "must be a number"),
        (None, True, ConfigError, "must be a number"),
    ],
)
def test_what_is_no_figure_is_refused_by_name(before: Any, new: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        added(before, new, "rate")


def test_a_request_keeps_what_is_published_and_nothing_is_kept_outside() -> None:
    program = Program()
    publish_figures("Nobody", tries=1)
    enter_program(program)
    publish_figures("Mine", tries=1, ends={"well": 1})
    publish_figures("Mine", tries=2)
    publish_figures("Another", rate=Ratio(1, 3))
    leave_program()
    assert program.figures == {"Mine": {"tries": 3, "ends": {"well": 1}}, "Another": {"rate": Ratio(1, 3)}}
    assert Program().figures == {}
