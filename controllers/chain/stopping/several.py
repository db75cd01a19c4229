"""Combinations of stopping rules."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from scaffolding_ext import require
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.controllers.chain.probing import ProbeNeeds
from scaffolding_ext.controllers.chain.stopping.agreement import Consecutive
from scaffolding_ext.controllers.chain.stopping.base import Rule, Stop, StoppingRule
from scaffolding_ext.controllers.chain.stopping.confidence import AnswerConfidence
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.registry import stopping_rules


class SeveralRules(StoppingRule):
    """Rules on the same chain.

    Args:
        rules: Rules, or names of rules, at least one.
    """

    def __init__(self, rules: Sequence[str | Rule]) -> None:
        if isinstance(rules, str) or not isinstance(rules, Sequence) or not rules:
            raise ConfigError(f"is {rules!r}; give a list of rules, such as ['consecutive', 'confidence']", "rules")
        self.rules: list[StoppingRule] = [
            stopping_rules.build(rule, f"rules.{number}") for number, rule in enumerate(rules)
        ]
        with require.under("rules"):
            self.needs = functools.reduce(ProbeNeeds.joined, [rule.needs for rule in self.rules])

    def __call__(self, probes: Sequence[Probe]) -> bool:
        return self.stop(probes) is not None

    @abstractmethod
    def stop(self, probes: Sequence[Probe]) -> Stop | None: ...


class AnyOf(SeveralRules):
    """Stops when any of several rules does; the first in the list gives the reason and the answer.

    Args:
        rules: Rules, or names of rules, at least one.
    """

    @property
    def words(self) -> str:
        return " or ".join(rule.words for rule in self.rules)

    def stop(self, probes: Sequence[Probe]) -> Stop | None:
        return next((stop for rule in self.rules if (stop := rule.stop(probes)) is not None), None)

    def certaindex(self, probes: Sequence[Probe]) -> float:
        return max(rule.certaindex(probes) for rule in self.rules)


class AllOf(SeveralRules):
    """Stops when all of several rules do at one probe; the first gives the answer, and all of them the reason.

    Reference: a conjunction of measures, as in certaindex: Fu et al., arXiv 2412.20993.

    Args:
        rules: Rules, or their names; None takes two equal answers in a row, the newest with a confidence of 0.9.
    """

    def __init__(self, rules: Sequence[str | Rule] | None = None) -> None:
        super().__init__([Consecutive(2), AnswerConfidence(0.9)] if rules is None else rules)

    @property
    def words(self) -> str:
        return " and ".join(rule.words for rule in self.rules)

    @classmethod
    def search_space(cls, recorded: Sequence[Any] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        pairs = ((3, 0.99), (2, 0.99), (2, 0.9), (2, 0.8))
        return {
            "equal and sure answers": [
                {
                    "rules": [
                        {"type": "consecutive", "args": {"threshold": threshold}},
                        {"type": "confidence", "args": {"threshold": least}},
                    ]
                }
                for threshold, least in pairs
            ]
        }

    def stop(self, probes: Sequence[Probe]) -> Stop | None:
        stops = [stop for rule in self.rules if (stop := rule.stop(probes)) is not None]
        if len(stops) < len(self.rules):
            return None
        reason = "+".join(dict.fromkeys(stop.reason for stop in stops))
        figures: Mapping[str, float] = {name: value for stop in stops for name, value in stop.figures.items()}
        return stops[0]._replace(reason=reason, figures=figures)

    def certaindex(self, probes: Sequence[Probe]) -> float:
        return min(rule.certaindex(probes) for rule in self.rules)
