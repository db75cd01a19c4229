"""The figures that controllers publish of a request; they add up over its parts and over the requests of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from scaffolding_ext import require


class Ratio(NamedTuple):
    """A ratio of two sums, such as take-overs to all decisions; a whole of 0 is allowed."""

    num: float
    of: float


class KeptSample(NamedTuple):
    """One sample of a vote, for a run that keeps them.

    Attributes:
        output_tokens: Tokens that it decoded, probes included.
        seconds: From its start to its end.
        logprob: Mean natural-log probability of its tokens; None where nobody asked for log-probabilities.
    """

    answer: str | None
    output_tokens: int
    seconds: float | None
    logprob: float | None
    text: str
    reward: float | None = None


class Answers(NamedTuple):
    """The answers of a vote's samples; an evaluation shows their best@n, maj@n and mean@n.

    Attributes:
        classes: A class number a sample, equal for equal answers, -1 without one; None leaves it to the evaluation.
        samples: All of each sample, where the caller keeps samples.
    """

    answers: Sequence[str | None]
    classes: Sequence[int] | None = None
    samples: Sequence[KeptSample] | None = None


Figure: TypeAlias = "float | Ratio | Mapping[str, float] | Answers"


FIGURES = "figures"  # event of a trace that tells some: `section` and `figures`


class PublishedFigures(dict[str, dict[str, Any]]):
    """The figures of one request by section and name, reduced from its trace; a section is a controller's class."""

    __slots__ = ()

    def observe(self, decision: Mapping[str, Any]) -> None:
        """Add up the figures of a decision that tells some."""
        if decision["event"] == FIGURES:
            known = self.setdefault(decision["section"], {})
            for name, value in decision["figures"].items():
                known[name] = added(known.get(name), value, name)


def added(before: Any, new: Any, name: str = "a figure") -> Any:
    """Two values of one figure as one: their sum; of `Answers` the newer ones, since the outermost vote ends last.

    Raises:
        TypeError: It is of another kind than the sum so far.
        ArgumentTypeError: It is no number, `Ratio`, counts by name, or `Answers`.
        ConfigError: A number is not finite.
    """
    kind = new.__class__  # most figures are published once and are sound: each case costs as few calls as can be
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
