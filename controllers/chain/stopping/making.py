"""Makes rules of what a controller is given."""

from __future__ import annotations

import inspect
from typing import Any

from scaffolding_ext.controllers.chain.stopping.base import Rule, StoppingRule
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.registry import import_target, stopping_rules


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
