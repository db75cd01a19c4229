"""Figures that controllers publish for a request; they are summed over its parts and over a run's requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from scaffolding_ext import require


class Ratio(NamedTuple):
    """A ratio of two sums, such as take-overs to all decisions; `of` may be 0."""

    num: float
    of: float


class KeptSample(NamedTuple):
    """One sample of a vote: `output_tokens` include probes, `logprob` is the mean natural log over its tokens."""

    answer: str | None
    output_tokens: int
    seconds: float | None
    logprob: float | None
    text: str
    reward: float | None = None


class Answers(NamedTuple):
    """The answers of a vote's samples; an evaluation shows their best@n, maj@n and mean@n.

    Attributes:
        classes: Class number of each sample, equal for equal answers, -1 without one; None lets the evaluation
            classify.
        samples: The samples, if the caller keeps them.
    """

    answers: Sequence[str | None]
    classes: Sequence[int] | None = None
    samples: Sequence[KeptSample] | None = None


Figure: TypeAlias = "float | Ratio | Mapping[str, float] | Answers"


FIGURES = "figures"  # trace event with `section` and `figures`


class PublishedFigures(dict[str, dict[str, Any]]):
    """The figures of one request by section (a controller's class) and name, reduced from its trace."""

    __slots__ = ()

    def observe(self, decision: Mapping[str, Any]) -> None:
        if decision["event"] == FIGURES:
            known = self.setdefault(decision["section"], {})
            for name, value in decision["figures"].items():
                known[name] = added(known.get(name), value, name)


def added(before: Any, new: Any, name: str = "a figure") -> Any:
    """Add two values of one figure; of `Answers` keep the newer ones, because the outermost vote ends last.

    Raises:
        TypeError: The kinds differ.
        ConfigError: The value is not a number, `Ratio`, counts by name, or `Answers`.
        ConfigError: A number is not finite.
    """
    kind = new.__class__  # ordered so that common, valid figures need few calls
    value: Any = new
    if kind is Ratio:
        value = Ratio(_number(name, new.num), _number(name, new.of))
    elif kind is not int and kind is not Answers:
        if kind is dict or isinstance(new, Mapping):
            value = {str(key): _number(f"{name}[{key!r}]", number) for key, number in new.items()}
        else:
            value = require.number(name, new)
    if before is None:
        return value
    if _kind(before) != _kind(value):
        raise TypeError(f"{name} is {_kind(value)}, and was {_kind(before)} before; a figure keeps its kind")
    if kind is Answers:
        return value
    if kind is Ratio:
        return Ratio(before.num + value.num, before.of + value.of)
    if isinstance(value, dict):
        return before | {key: before.get(key, 0) + number for key, number in value.items()}
    return before + value


def _kind(value: Any) -> str:
    if isinstance(value, Ratio | Answers):
        return "a Ratio" if isinstance(value, Ratio) else "Answers"
    return "counts" if isinstance(value, dict) else "a number"


def _number(name: str, value: float) -> float:
    return value if value.__class__ is int else require.number(name, value)  # whole numbers stay whole in JSON
