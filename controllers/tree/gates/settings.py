"""The gates as arguments of a controller: one ends branches early, one spares verdicts."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from scaffolding_ext import require
from scaffolding_ext.controllers.tree.gates.confidence import ConfidenceGate
from scaffolding_ext.errors import ConfigError

G = TypeVar("G")


@dataclass(frozen=True)
class DecodeExit(ConfidenceGate):
    """A gate on the first tokens of branches. Where one branch leads, the other branches end and it goes on.

    Args:
        least: As for every gate.
        gap: As for every gate.
        after: Tokens of each branch that it looks at.

    Raises:
        ValueError: One is outside its range.

    Deviation:
        The released code also ends the leading branch, so it gives no answer.
    """

    least: float = 0.72
    gap: float = 0.10
    after: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        require.whole("after", self.after)


def gate_from(key: str, kind: type[G], given: G | Mapping[str, Any] | bool | None, known: G | None = None) -> G | None:
    """A gate from what a user gives: an object, its arguments, or whether there is a gate at all.

    Args:
        key: Name of the argument.
        kind: Class of the gate.
        given: The gate, or a mapping of its arguments. True: a gate with its defaults. False: no gate. None: `known`.
        known: The gate of a calibration.

    Raises:
        ConfigError: It is none of these, or an argument of the gate is wrong.
    """
    if given is None or isinstance(given, kind):
        return known if given is None else given
    if given is False:
        return None
    if given is not True and not isinstance(given, Mapping):
        raise ConfigError(f"is {given!r}; give a mapping of arguments, or true or false", key)
    parameters = inspect.signature(kind).parameters.values()
    lacking = [
        each.name for each in parameters if each.default is each.empty and (given is True or each.name not in given)
    ]
    unknown = [] if given is True else [name for name in given if name not in {each.name for each in parameters}]
    if lacking or unknown:
        takes = ", ".join(each.name if each.default is each.empty else f"{each.name} (optional)" for each in parameters)
        raise ConfigError(f"is {given!r}; give a mapping of its arguments ({takes}), or false for none", key)
    with require.under(key):
        return kind(**({} if given is True else given))


@dataclass(frozen=True)
class Gates:
    """The gates of a tree (RKSC). None switches a gate off.

    Args:
        skip: Where it passes, no branch of the round gets a verdict.
        decode_exit: Where it passes, the other branches of the round end after their first tokens.
    """

    skip: ConfidenceGate | None = None
    decode_exit: DecodeExit | None = None

    @classmethod
    def of(cls, given: Gates | Mapping[str, Any] | None, known_skip: ConfidenceGate | None = None) -> Gates:
        """The gates from what users give.

        Args:
            given: Gates, which are taken as they are, or a mapping of `skip` and `decode_exit`, each as `gate_from`
                takes it.
            known_skip: The skip gate of a calibration, for a mapping that leaves `skip` open.

        Raises:
            ConfigError: It is neither, or an argument of a gate is wrong.
        """
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
