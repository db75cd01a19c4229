"""The contract of every rule that decides when enough is known: of a chain, a vote, a search or a draft.

Each rule stays with its algorithm. What stands here is what a trial needs of all of them.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

E = TypeVar("E")


class DecisionRule(ABC, Generic[E]):
    """Decides when enough is known. All requests of a stack share a rule, so it keeps nothing of a request.

    Attributes:
        plainness: How plain the rule is, the plainest 0: of settings that do equally well a trial takes the plainer.
    """

    plainness: ClassVar[int] = 3

    @property
    def looks_at(self) -> frozenset[str]:
        """What the decision depends on. A trial leaves a rule out that looks at what was not recorded."""
        return frozenset()

    @classmethod
    def settings_to_try(cls, recorded: Sequence[Any] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Short lists of constructor arguments, by name; each list goes from the most careful setting to the boldest.

        Args:
            recorded: What the settings will be tried on, for rules that fit a setting to it.

        Returns:
            The lists; none where a rule has nothing to choose.
        """
        return {}

    def observe(self, ended: E) -> Mapping[str, float] | None:
        """Take note of what has ended under the rule; returns figures for the trace."""
        return None
