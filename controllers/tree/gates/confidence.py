"""Confidence gates: a model's confidence in its branches decides which end, and which need a verdict."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from scaffolding_ext import require
from scaffolding_ext.errors import ConfigError

G = TypeVar("G")


@dataclass(frozen=True)
class ConfidenceGate:
    """Passes if the model's confidence in one branch leads so clearly that no branch needs a verdict.

    Args:
        least: Minimum confidence of the leading branch, in [0, 1].
        gap: Its minimum lead over the next branch, relative to its confidence, in [0, 1].

    Reference:
        RKSC, equation 4 (0.70 and 0.06, on whole branches: the verdict is skipped), and the exit while branches are
        decoded (0.72 and 0.10, after 3 steps: the others end).

    Deviation:
        The released code uses an absolute gap in some places; the paper's is relative.
    """

    least: float = 0.70
    gap: float = 0.06

    def __post_init__(self) -> None:
        require.number("least", self.least, least=0, most=1)
        require.number("gap", self.gap, least=0, most=1)

    def leader(self, confidences: Sequence[float]) -> int | None:
        """Index of the branch that passes the gate, or None. A single branch needs no lead."""
        if not confidences:
            return None
        best = max(range(len(confidences)), key=confidences.__getitem__)
        passes = confidences[best] >= self.least and relative_gap(confidences) >= self.gap
        return best if passes else None


@dataclass(frozen=True)
class DecodeExit(ConfidenceGate):
    """Gate on the first tokens of branches: if one branch leads, it continues and the others end.

    Args:
        after: Tokens of each branch to look at.

    Deviation:
        The released code also ends the leading branch, so it returns no answer.
    """

    least: float = 0.72
    gap: float = 0.10
    after: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        require.whole("after", self.after)


@dataclass(frozen=True)
class Gates:
    """The gates of a tree (RKSC). None disables a gate.

    Args:
        skip: If it passes, no branch of the round gets a verdict.
        decode_exit: If it passes, the other branches of the round end after their first tokens.
    """

    skip: ConfidenceGate | None = None
    decode_exit: DecodeExit | None = None

    @classmethod
    def of(cls, given: Gates | Mapping[str, Any] | None, known_skip: ConfidenceGate | None = None) -> Gates:
        """Build from gates or a mapping of `skip` and `decode_exit`; without `skip`, the calibration's gate is used."""
        if isinstance(given, Gates):
            return given
        given = {} if given is None else given
        if not isinstance(given, Mapping) or not given.keys() <= {"skip", "decode_exit"}:
            raise ConfigError(
                f"is {require.shown(given)}; give a mapping of skip and decode_exit (layer_exit is an argument "
                "of the scorer verdict)",
                "gates",
            )
        with require.under("gates"):
            return cls(
                gate_from("skip", ConfidenceGate, given.get("skip"), known_skip),
                gate_from("decode_exit", DecodeExit, given.get("decode_exit")),
            )


def gate_from(key: str, kind: type[G], given: G | Mapping[str, Any] | bool | None, known: G | None = None) -> G | None:
    """Build a gate: a mapping has its arguments, True takes the defaults, False gives none, None the calibration's."""
    if given is None or isinstance(given, kind):
        return known if given is None else given
    if given is False:
        return None
    if given is not True and not isinstance(given, Mapping):
        raise ConfigError(f"is {given!r}; give a mapping of arguments, or true or false", key)
    arguments = {} if given is True else dict(given)
    signature = inspect.signature(kind)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        names = [
            each.name if each.default is each.empty else f"{each.name} (optional)"
            for each in signature.parameters.values()
        ]
        takes = ", ".join(names)
        raise ConfigError(f"is {given!r}; give a mapping of its arguments ({takes}), or false", key) from error
    with require.under(key):
        return kind(**arguments)


def relative_gap(confidences: Sequence[float]) -> float:
    """Lead of the highest confidence over the next, relative to the highest; 1 for a single one, 0 for zeros."""
    if not confidences:
        raise ValueError("there are no confidences; give one per branch")
    best, *rest = sorted(confidences, reverse=True)
    if not rest:
        return 1.0
    return (best - rest[0]) / best if best > 0 else 0.0


def fit_gate(confidences: Sequence[Sequence[float]]) -> ConfidenceGate:
    """Gate of a calibration: the 75th percentile of the highest confidences, the 25th of the relative gaps.

    Args:
        confidences: Confidences of the branches of each problem; at least one problem and one branch each.

    Reference:
        RKSC, calibration of the skip gate.
    """
    if not confidences:
        raise ValueError("there are no problems to fit a gate to; give at least one")
    highest: npt.NDArray[np.float64] = np.array([max(each) for each in confidences])
    gaps = np.array([relative_gap(each) for each in confidences])
    return ConfidenceGate(float(np.percentile(highest, 75)), float(np.percentile(gaps, 25)))
