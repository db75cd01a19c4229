"""The contract of stopping rules: what a rule needs, what it sees, and what it decides.

A controller asks its rule after every look, while thinking is open. What a rule sees is data (`chain.probe.Probe`): on
recorded looks it decides as on the running chain.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from scaffolding_ext.controllers.chain.looking import LookNeeds, ProbeSchedule
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.controllers.rule import DecisionRule

Rule = Callable[[Sequence[Probe]], bool]


class Stop(NamedTuple):
    """Thinking is to end.

    Attributes:
        answer: What the request is left with: the `newest` answer, the `best` (the most frequent, the newest among
            equals), or `none`. Where there is no such answer the chain is asked for one, but for `none`.
    """

    reason: str
    answer: Literal["newest", "best", "none"] = "newest"
    figures: Mapping[str, float] = MappingProxyType({})

    def left_with(self, probes: Sequence[Probe]) -> Probe | None:
        """The look whose answer the request is left with; None where there is none, or it has no answer."""
        if self.answer == "best":
            answered = [probe for probe in probes if probe.answer is not None]
            kept = [probe for probe in answered if not probe.hedged] or answered
            votes = Counter(probe.answer_class for probe in kept)
            return max(reversed(kept), key=lambda probe: votes[probe.answer_class], default=None)
        return probes[-1] if self.answer == "newest" and probes[-1].answer is not None else None


class StoppingRule(DecisionRule[int]):
    """Decides when thinking ends. `observe` is told the tokens where a chain was left or ended."""

    needs: LookNeeds = LookNeeds()
    schedule: ProbeSchedule | None = None
    exit_reason: str = "certain"
    answer: Literal["newest", "best", "none"] = "newest"

    @abstractmethod
    def __call__(self, probes: Sequence[Probe]) -> bool:
        """Whether thinking is to end."""

    @property
    def looks_at(self) -> frozenset[str]:
        """The fields of `LookNeeds` that it has."""
        return frozenset(name for name, value in self.needs._asdict().items() if value)

    def figures(self, probes: Sequence[Probe]) -> Mapping[str, float]:
        """What it decides on at the newest look, for the trace."""
        return {}

    def certaindex(self, probes: Sequence[Probe]) -> float:
        """How near thinking is to its end, in [0, 1]; 0 where the rule cannot tell."""
        return 0.0

    def stop(self, probes: Sequence[Probe]) -> Stop | None:
        """How thinking is to end; None where it goes on."""
        return Stop(self.exit_reason, self.answer, self.figures(probes)) if self(probes) else None


class FunctionRule(StoppingRule):
    """A rule that a plain function of the looks decides; it sees answers alone."""

    def __init__(self, function: Rule) -> None:
        self.function = function

    def __call__(self, probes: Sequence[Probe]) -> bool:
        return self.function(probes)


def rule_of_function(part: Any) -> StoppingRule | None:
    """The rule of a function whose first argument is called `probes`; None for anything else.

    The name of the argument tells a rule from a function that makes one: a stack file may name any function.
    """
    if not callable(part):
        return None
    return FunctionRule(part) if next(iter(inspect.signature(part).parameters), "") == "probes" else None
