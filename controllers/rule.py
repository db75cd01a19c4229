"""Interface for all rules that decide when enough is known of a chain, a vote, a search or a draft.

Each rule stays with its algorithm; this is the part that `tune` needs of all of them.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

E = TypeVar("E")


class DecisionRule(ABC, Generic[E]):
    """Decides when enough is known. All requests of a stack share a rule, so it must not keep a request's state.

    An audit decides by a copy of it (`copy.deepcopy`).

    Attributes:
        complexity_rank: 0 is the plainest: of equally good settings `tune` takes the plainest.
        stops_when: Condition under which it stops, in words, with fields of `{0}`, the rule; empty names its class.
    """

    complexity_rank: ClassVar[int] = 3
    stops_when: ClassVar[str] = ""

    @property
    def words(self) -> str:
        """The condition under which it stops, as in "stop when ..."."""
        return self.stops_when.format(self) or f"{type(self).__name__} says so"

    @property
    def inputs(self) -> frozenset[str]:
        """Inputs of the decision. `tune` skips a rule whose inputs were not recorded."""
        return frozenset()

    @classmethod
    def search_space(cls, recorded: Sequence[Any] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return short lists of constructor arguments, by name, each from the most careful to the boldest setting.

        Args:
            recorded: Recordings to play, for rules that fit a setting to them.
        """
        return {}

    def observe(self, ended: E) -> None:
        """Learn from a finished run."""
