"""Interface for stopping rules.

A controller asks its rule after every probe while thinking is open. A rule sees only data (`chain.probe.Probe`), so it
decides the same on recorded probes as on the running chain.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.controllers.chain.probing import ProbeNeeds, ProbeSchedule
from scaffolding_ext.controllers.rule import DecisionRule

Rule = Callable[[Sequence[Probe]], bool]


class Stop(NamedTuple):
    """The decision to end thinking.

    The newest answer is the request's; if there is none, the chain is asked for one.
    """

    reason: str
    figures: Mapping[str, float] = MappingProxyType({})

    def left_with(self, probes: Sequence[Probe]) -> Probe | None:
        """Return the probe that answers the request; None if there is none, or it has no answer."""
        return probes[-1] if probes[-1].answer is not None else None


class StoppingRule(DecisionRule[int]):
    """Decides when thinking ends. `observe` receives the tokens at which a chain was left or ended."""

    needs: ProbeNeeds = ProbeNeeds()
    schedule: ProbeSchedule | None = None
    exit_reason: str = "certain"

    @abstractmethod
    def __call__(self, probes: Sequence[Probe]) -> bool:
        """Return True to end thinking."""

    @property
    def inputs(self) -> frozenset[str]:
        return frozenset(name for name, value in self.needs._asdict().items() if value)

    def figures(self, probes: Sequence[Probe]) -> Mapping[str, float]:
        """Return the values behind the decision at the newest probe, for the trace."""
        return {}

    def certaindex(self, probes: Sequence[Probe]) -> float:
        """Return the progress towards the end of thinking, in [0, 1]; 0 if the rule cannot tell."""
        return 0.0

    def stop(self, probes: Sequence[Probe]) -> Stop | None:
        """Return the decision to end thinking; None to continue."""
        return Stop(self.exit_reason, self.figures(probes)) if self(probes) else None


class Never(StoppingRule):
    """Ends no chain, and probes none."""

    needs = ProbeNeeds(answer=False)

    def __call__(self, probes: Sequence[Probe]) -> bool:
        return False


class FunctionRule(StoppingRule):
    """A rule that is a plain function of the probes; it sees only answers."""

    def __init__(self, function: Rule) -> None:
        self.function = function

    def __call__(self, probes: Sequence[Probe]) -> bool:
        return self.function(probes)


def rule_of_function(part: Any) -> StoppingRule | None:
    """Wrap a function whose first argument is called `probes`; None for anything else.

    A stack file may name any function; the argument's name tells a rule from a factory of rules.
    """
    if not callable(part):
        return None
    return FunctionRule(part) if next(iter(inspect.signature(part).parameters), "") == "probes" else None
