"""The contract of stopping rules: what a rule needs, what it sees, and what it decides.

A rule is any callable that takes the looks at a chain, oldest first, and says whether thinking is to end now; a
`StoppingRule` says more. It is asked after every look, and only while thinking is open. It must not keep anything of a
request: all of a controller's requests share it. What it sees is data (`chain.probe.Probe`), so a rule that is shown
recorded looks (`chain.probe.row_of`) decides as it did on the running chain: call `decide(rule, looks)` for both.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from scaffolding_ext.controllers.chain.looking import Needs
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.registry import import_target, stopping_rules

Rule = Callable[[Sequence[Probe]], bool]


class Stop(NamedTuple):
    """Thinking is to end.

    Attributes:
        reason: The request's exit reason.
        answer: What the request is left with: the `newest` answer, the `best` (the most frequent, the newest among
            equals), or `none`. Where there is no such answer the chain is asked for one, but for `none`.
        figures: What was decided on, for the trace.
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


class StoppingRule(ABC):
    """A rule with what a plain function does not say.

    Attributes:
        needs: What it needs to see.
        exit_reason: The request's exit reason where the rule ended it.
        answer: What a request that it ended is left with (see `Stop`).
    """

    needs: Needs = Needs()
    exit_reason: str = "certain"
    answer: Literal["newest", "best", "none"] = "newest"

    @abstractmethod
    def __call__(self, probes: Sequence[Probe]) -> bool:
        """Whether thinking is to end.

        Args:
            probes: The looks at the chain so far, oldest first, at least one.
        """

    @classmethod
    def settings_to_try(cls) -> Iterable[Mapping[str, Any]]:
        """Arguments that a calibration tries; a rule without any is not calibrated."""
        return ()

    def observe(self, num_tokens: int) -> Mapping[str, float] | None:
        """Take note of where a chain was left or ended; what it returns goes into the trace."""
        return None

    def figures(self, probes: Sequence[Probe]) -> Mapping[str, float]:
        """What it decides on at the newest look, for the trace."""
        return {}

    def certaindex(self, probes: Sequence[Probe]) -> float:
        """How near thinking is to its end, in [0, 1]; 0 where the rule cannot tell."""
        return 0.0

    def stop(self, probes: Sequence[Probe]) -> Stop | None:
        """How thinking is to end; None where it goes on."""
        return Stop(self.exit_reason, self.answer, self.figures(probes)) if self(probes) else None


def decide(rule: Rule, probes: Sequence[Probe]) -> Stop | None:
    """How a rule, or a plain function, has thinking end after these looks; None where it goes on."""
    if isinstance(rule, StoppingRule):
        return rule.stop(probes)
    return Stop("certain") if rule(probes) else None


def needs_of(rule: Rule) -> Needs:
    """What a rule needs; a plain function sees answers."""
    return rule.needs if isinstance(rule, StoppingRule) else Needs()


def certaindex_of(rule: Rule, probes: Sequence[Probe]) -> float:
    """How near a rule has thinking to its end, in [0, 1]; a plain function cannot tell."""
    return rule.certaindex(probes) if isinstance(rule, StoppingRule) else 0.0


def make_rule(rule: str | Rule, threshold: int | None = None) -> Rule:
    """The rule of a name, or the rule itself.

    Args:
        rule: A registered name, `"module:name"` of a function whose argument is called `probes` or of a StoppingRule
            that is built without arguments, or a rule itself.
        threshold: Of a named rule that has one; None takes the rule's own.

    Raises:
        ConfigError: It is none of these, or has no threshold to set.
    """
    found: Any = rule
    if isinstance(rule, str):
        found = _checked_target(rule) if ":" in rule else stopping_rules.resolve(rule)
    elif isinstance(rule, type) or not callable(rule):
        raise ConfigError(
            f"is {rule!r}; give a name, or a function (or object) that takes the probes and returns a bool"
        )
    is_class = isinstance(found, type) and issubclass(found, StoppingRule)
    if threshold is not None and not (is_class and "threshold" in inspect.signature(found).parameters):
        raise ConfigError(f"is {rule!r}, which takes no certainty_threshold; leave that out, or give it to the rule")
    if not is_class:
        decides: Rule = found
        return decides
    built: Rule = stopping_rules.obtain(rule if threshold is None else {"type": rule, "args": {"threshold": threshold}})
    return built


def _checked_target(name: str) -> Any:
    """What `"module:name"` names, if it is a rule: a stack file must not have just any function called."""
    found: Any = import_target(name)
    is_rule = isinstance(found, StoppingRule) or (isinstance(found, type) and issubclass(found, StoppingRule))
    if is_rule or (inspect.isfunction(found) and list(inspect.signature(found).parameters)[:1] == ["probes"]):
        return found
    raise ConfigError(
        f"{name!r} is no stopping rule; name a StoppingRule, or a function whose first argument is called 'probes'"
    )
