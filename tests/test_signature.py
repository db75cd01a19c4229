"""The arguments of a factory are read from its signature, its bases and its annotations."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pytest

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.signature import Signature

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]


class Base:
    def __init__(self, first: int, second: str = "", *, third: float = 0.0) -> None: ...


class Passing(Base):
    def __init__(self, own: bool, **rest: Any) -> None:
        super().__init__(**rest)


class Settling(Passing):
    def __init__(self, *args: Any, **rest: Any) -> None:
        """Gives one argument itself."""
        super().__init__(*args, second="set", **rest)


class Keeping(Base):
    def __init__(self, own: int, **kept: Any) -> None:
        super().__init__(own)
        self.kept = kept


class Silent(Base):
    """Has the constructor of its base."""


class Record(NamedTuple):
    name: str
    number: int = 0


class Colour(enum.Enum):
    RED = "red"


class Thing:
    """A value that no YAML can express."""

    def __repr__(self) -> str:
        return "Thing()"  # test names must not change from process to process


def annotated(
    number: float = 0,
    words: Sequence[str] = (),
    choice: Literal["a", "b"] = "a",
    table: Mapping[str, int] | None = None,
    pair: tuple[int, int] = (0, 0),
    colour: Colour = Colour.RED,
    thing: Thing | None = None,
    scripted: Callable[[], int] | str = "",
    unknown: Unknown = None,
    implicit: int = None,  # type: ignore[assignment]  # noqa: RUF013
    bare=None,  # type: ignore[no-untyped-def]
) -> None: ...


def names(factory: Callable[..., Any]) -> tuple[list[str], bool]:
    arguments = Signature.of(factory)
    return list(arguments.parameters), arguments.takes_more


def test_names_are_followed_through_base_classes() -> None:
    assert names(Base) == names(Silent) == (["first", "second", "third"], False)
    assert names(Passing) == (["own", "first", "second", "third"], True)
    assert names(Settling) == (["own", "first", "second", "third"], True)


def test_what_a_class_keeps_for_itself_may_have_any_name() -> None:
    assert names(Keeping) == (["own", "first", "second", "third"], True)
    built(Keeping, {"own": 1, "secnd": "kept"})  # what its base needs it gives itself


def test_a_name_for_type_checkers_alone_leaves_the_others_checked() -> None:
    Signature.of(annotated).check("it", {"unknown": 3, "number": 1}, "at")
    with pytest.raises(ConfigError, match=r"at.number: is 'x'"):
        Signature.of(annotated).check("it", {"unknown": 3, "number": "x"}, "at")


def test_functions_and_classes_without_a_constructor_have_names_too() -> None:
    assert names(lambda a, *, b=1, **more: None) == (["a", "b"], True)
    assert names(Record) == (["name", "number"], False)
    assert names(Thing) == ([], False)


@pytest.mark.parametrize(
    "args",
    [
        {"number": 1},
        {"words": ["a", "b"]},
        {"choice": "b"},
        {"table": {"a": 1}},
        {"pair": [1, 2]},
        {"colour": "red"},
        {"thing": Thing()},
        {"scripted": "x"},
        {"unknown": 3},
        {"bare": 3},
    ],
    ids=str,
)
def test_a_value_of_the_annotations_type_goes(args: dict[str, Any]) -> None:
    Signature.of(annotated).check("it", args, "at")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"number": True}, "float"),
        ({"words": "wait"}, "Sequence[str]"),
        ({"words": ["a", 1]}, "Sequence[str]"),
        ({"choice": "c"}, "Literal['a', 'b']"),
        ({"table": {"a": "b"}}, "Mapping[str, int] | None"),
        ({"colour": "blue"}, "Colour"),
        ({"scripted": 3}, "Callable[[], int] | str"),
        ({"implicit": "x"}, "int"),
    ],
    ids=str,
)
def test_another_value_is_refused_with_key_and_type(args: dict[str, Any], expected: str) -> None:
    [(key, value)] = args.items()
    with pytest.raises(ConfigError) as caught:
        Signature.of(annotated).check("it", args, "at")
    assert str(caught.value).replace('"', "'") == f"at.{key}: is {value!r}; it must be of type {expected}"


def built(factory: Callable[..., Any], args: dict[str, Any]) -> Any:
    """Build a factory's object as a stack does."""
    accepted = Signature.of(factory)
    accepted.check("it", args, "at")
    try:
        return factory(**args)
    except TypeError as error:
        raise accepted.explained("it", args, "at", error) or error from None


def test_unknown_and_missing_names_are_told_with_those_of_the_bases() -> None:
    with pytest.raises(ConfigError, match=r"at.secnd: .*did you mean 'second'.*accepts: own, first, second, third"):
        built(Passing, {"own": True, "first": 1, "secnd": "x"})
    with pytest.raises(ConfigError, match=r"at: it needs 'first'"):
        built(Passing, {"own": True})
    with pytest.raises(ConfigError, match=r"at.third: is 'x'"):
        built(Passing, {"own": True, "first": 1, "third": "x"})
    with pytest.raises(ConfigError, match=r"at: it needs 'own'.*accepts: own, first"):
        Signature.of(Passing).check("it", {"first": 1}, "at")
    with pytest.raises(ConfigError, match=r"at.thrid: .*did you mean 'third'.*accepts: first, second, third"):
        Signature.of(Silent).check("it", {"first": 1, "thrid": 1.0}, "at")


def test_another_error_of_a_constructor_is_its_own() -> None:
    accepted = Signature.of(Passing)
    assert accepted.explained("it", {"own": True, "first": 1}, "at", TypeError("unhashable type: 'list'")) is None
