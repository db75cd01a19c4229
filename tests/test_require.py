"""Checks of arguments: one sentence for each mistake, whoever is given it."""

import pickle
import re
from fractions import Fraction

import numpy as np
import pytest

from scaffolding_ext import require
from scaffolding_ext.errors import ConfigError


@pytest.mark.parametrize("value", [1, 7, np.int64(7)])
def test_a_whole_number_is_given_back_as_an_int(value):
    assert type(require.whole("num", value)) is int
    assert require.whole("num", value) == value


@pytest.mark.parametrize("value", ["8", 2.0, True, float("nan")])
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(ConfigError) as caught:
        require.whole("num", value)
    assert str(caught.value) == f"num: is {value!r}; it must be a whole number of at least 1"


@pytest.mark.parametrize(
    ("value", "least", "most", "bounds"),
    [(0, 1, None, "at least 1"), (-1, 0, None, "at least 0"), (6, 1, 5, "at least 1 and at most 5")],
)
def test_a_whole_number_keeps_its_bounds(value, least, most, bounds):
    with pytest.raises(ConfigError) as caught:
        require.whole("num", value, least, most)
    assert (caught.value.key, caught.value.message) == ("num", f"is {value}; it must be {bounds}")
    assert require.whole("num", value, None) == value


@pytest.mark.parametrize("value", ["0.5", True, None])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ConfigError, match=re.escape(f"{value!r}; it must be a number above 0 and at most 1")):
        require.share("keep", value)


@pytest.mark.parametrize(
    ("value", "bounds", "message"),
    [
        (float("nan"), {}, "is nan; it must be a finite number"),
        (float("inf"), {"above": 0}, "is inf; it must be a finite number above 0"),
        (0, {"above": 0}, "is 0; it must be above 0"),
        (1, {"least": 0, "below": 1}, "is 1; it must be at least 0 and below 1"),
        (-0.1, {"least": 0, "most": 1}, "is -0.1; it must be at least 0 and at most 1"),
        (1.01, {"above": 0, "most": 1}, "is 1.01; it must be above 0 and at most 1"),
    ],
)
def test_a_number_keeps_its_bounds(value, bounds, message):
    with pytest.raises(ConfigError) as caught:
        require.number("tau", value, **bounds)
    assert str(caught.value) == f"tau: {message}"


def test_the_ends_of_an_interval_belong_to_it_as_they_say():
    assert require.share("tau", 1) == 1.0
    assert require.number("tau", 0, least=0, below=1) == 0.0
    assert require.number("tau", np.float32(0.5), above=0, most=0.5) == 0.5


def test_one_of_several():
    assert require.one_of("mode", "b", {"a": 1, "b": 2}) == "b"
    with pytest.raises(ConfigError, match=r"^mode: is 'c'; choose one of a, b$"):
        require.one_of("mode", "c", ("a", "b"))
    with pytest.raises(ConfigError, match=r"^mode: is \['a'\]; choose one of a, b, or give a function$"):
        require.one_of("mode", ["a"], {"a": 1, "b": 2}, instead="a function")


def test_a_refusal_is_a_value_error_that_is_pickled_and_named_under_a_path():
    with pytest.raises(ValueError, match=r"^knob: is 0; it must be at least 1$") as refused:
        require.whole("knob", 0)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
    with pytest.raises(ConfigError, match=r"^allocation\.knob: is 0") as caught, require.under("allocation"):
        require.whole("knob", 0)
    assert caught.value.key == "allocation.knob"


@pytest.mark.parametrize(
    "refused",
    [
        lambda: require.whole("knob", 10**9999, most=5),
        lambda: require.number("knob", 10**9999, most=5),
        lambda: require.whole("knob", "word " * 9999),
        lambda: require.one_of("knob", "x" * 9999, ("a", "b")),
        lambda: require.number("knob", Fraction(1, 3**9) ** 400, above=1),
    ],
)
def test_a_message_does_not_repeat_what_has_thousands_of_characters(refused):
    with pytest.raises(ConfigError, match=r"^knob: is ") as caught:
        refused()
    assert len(str(caught.value)) < 400
    assert "must be" in str(caught.value) or "choose one of" in str(caught.value)
