"""When a chain of thought has thought enough: rules over what was seen of it.

A rule is any callable that takes the looks at a chain, oldest first, and says whether thinking is to end now. It is
asked after every look, and only while thinking is open. It must not keep anything of a request: all of a controller's
requests share it.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from scaffolding_ext import require
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.maths.certaindex import window_consistency
from scaffolding_ext.maths.total_variation import has_stabilised
from scaffolding_ext.registry import import_target, stopping_rules

Rule = Callable[[Sequence[Probe]], bool]


class StoppingRule(ABC):
    """A rule with what a plain function does not say.

    Attributes:
        needs_probes: Whether the chain is to be asked for its answer at every look. Off, a look costs no token.
        exit_reason: The request's exit reason where the rule ended it.
    """

    needs_probes: ClassVar[bool] = True
    exit_reason: ClassVar[str] = "certain"

    @abstractmethod
    def __call__(self, probes: Sequence[Probe]) -> bool:
        """Whether thinking is to end.

        Args:
            probes: The looks at the chain so far, oldest first, at least one.
        """


class Consecutive(StoppingRule):
    """The last `threshold` answers are equal, none of them missing and none of them hedged.

    Reference: the released code of Dynasor-CoT.

    Args:
        threshold: How many probes in a row must agree, at least 1.
    """

    def __init__(self, threshold: int = 3) -> None:
        self.threshold = require.whole("threshold", threshold)

    def __call__(self, probes: Sequence[Probe]) -> bool:
        classes = [-1 if probe.hedged else probe.answer_class for probe in probes]
        return window_consistency(classes, self.threshold) == 1.0


class Window(StoppingRule):
    """The share C_k of the last `threshold` answers that equal the newest is at least `share`; hedged ones left out.

    Reference: Fu et al., "Efficiently Scaling LLM Reasoning with Certaindex" (Dynasor), the rule C_k >= tau.

    Args:
        threshold: Size w of the window, at least 1.
        share: tau, in (0, 1].
    """

    def __init__(self, threshold: int = 3, share: float = 1.0) -> None:
        self.threshold = require.whole("threshold", threshold)
        self.share = require.share("share", share)

    def __call__(self, probes: Sequence[Probe]) -> bool:
        classes = [probe.answer_class for probe in probes if not probe.hedged]
        if probes[-1].hedged or len(classes) < self.threshold:
            return False
        return window_consistency(classes, self.threshold) >= self.share


class TotalVariation(StoppingRule):
    """The answers of the last `window` probes are distributed like those of every window up to as many probes before.

    Hedged answers are left out, and answers that go round in a circle have not settled. The newest answer, which the
    chain is left with, must be among the most frequent of its window. What guarantee that gives, and why practice
    cannot pay for it: docs/certaindex.md.

    Reference: Fu et al., "Efficiently Scaling LLM Reasoning with Certaindex" (Dynasor), appendix E.

    Args:
        window: Probes k of a mixture, at least 1; twice as many must be there.
        tolerance: Largest total-variation distance of two mixtures, in [0, 1).
    """

    def __init__(self, window: int = 3, tolerance: float = 0.0) -> None:
        self.window = require.whole("window", window)
        self.tolerance = require.number("tolerance", tolerance, least=0, below=1)

    def __call__(self, probes: Sequence[Probe]) -> bool:
        newest = probes[-1]
        if newest.answer is None or newest.hedged:
            return False
        classes = [probe.answer_class for probe in probes if not probe.hedged]
        counts = Counter(classes[-self.window :])
        return counts[newest.answer_class] == max(counts.values()) and has_stabilised(
            classes, self.window, self.tolerance
        )


class PatternStop(StoppingRule):
    r"""A regular expression appears in the chain's text; no probe is needed.

    Each look reads the text that is new since the look before, and what of a match may stand before it. The chain is
    left at the look that saw the pattern, so looks should be close where the cut is to be: they cost nothing.

    Args:
        pattern: What ends thinking, such as `r"(?i)\bfinal answer\b"`.
        max_match_len: Characters of the longest match that is found where two looks share it.

    Raises:
        ConfigError: The pattern is no regular expression, or matches everywhere.
    """

    needs_probes = False
    exit_reason = "pattern"

    def __init__(self, pattern: str, max_match_len: int = 200) -> None:
        try:
            self.pattern = re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ConfigError(f"is {pattern!r}, which is no regular expression: {error}", "pattern") from error
        if self.pattern.search(""):
            raise ConfigError(f"is {pattern!r}, which matches everywhere; it must need some text", "pattern")
        self.max_match_len = require.whole("max_match_len", max_match_len)

    def __call__(self, probes: Sequence[Probe]) -> bool:
        num_seen = len(probes[-2].prefix.text) if len(probes) > 1 else 0
        return self.pattern.search(probes[-1].prefix.text, max(0, num_seen - self.max_match_len)) is not None


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
    built: Rule = stopping_rules.make(str(rule), **({} if threshold is None else {"threshold": threshold}))
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
