"""Shorthand arguments of a probed chain, and the rule, schedule and probe that they stand for."""

from __future__ import annotations

import inspect
import warnings
from typing import Any, Literal

from scaffolding_ext import require
from scaffolding_ext.controllers.chain.probe import AnswerProbe
from scaffolding_ext.controllers.chain.probing import ProbeSchedule
from scaffolding_ext.controllers.chain.stopping.base import Rule, StoppingRule
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.families import DEFAULT_FAMILY, UNTHINKING_FAMILY, PromptFamily, family_named
from scaffolding_ext.registry import stopping_rules

# Required agreeing probes, and tokens between probes. Source: Dynasor's code, `dynasor/cot.py`.
EFFORTS = {"mild": (8, 64), "low": (5, 64), "mid": (3, 64), "high": (2, 64), "crazy": (2, 32)}


def parts_of(
    rule: str | Rule | None,
    schedule: ProbeSchedule | None,
    probe: AnswerProbe | None,
    *,
    effort: str | None,
    certainty_threshold: int | None,
    chunk_size: int | None,
    hedge_match: Literal["word", "substring"] | None,
) -> tuple[StoppingRule, ProbeSchedule, AnswerProbe]:
    """Return the given parts, or those of the short arguments; raise ConfigError if one is given twice."""
    if effort is not None:
        require.alone("effort", effort, certainty_threshold=certainty_threshold, chunk_size=chunk_size)
        certainty_threshold, chunk_size = EFFORTS[require.one_of("effort", effort, EFFORTS)]
    if certainty_threshold is not None:
        require.whole("certainty_threshold", certainty_threshold)
    require.alone("probe", probe, hedge_match=hedge_match)
    named = _with_threshold("consecutive" if rule is None else rule, certainty_threshold)
    found: StoppingRule = stopping_rules.build(named, "rule")
    require.alone("rule", found.schedule, schedule=schedule, chunk_size=chunk_size)
    require.alone("schedule", schedule, chunk_size=chunk_size)
    default = ProbeSchedule() if chunk_size is None else ProbeSchedule(chunk_size)
    asks = probe or AnswerProbe(hedge_match=hedge_match or "word")
    return found, found.schedule or schedule or default, asks


def _with_threshold(rule: str | Rule, threshold: int | None) -> Any:
    if threshold is None:
        return rule
    is_known = isinstance(rule, str) and ":" not in rule
    if not is_known or "threshold" not in inspect.signature(stopping_rules.resolve(str(rule))).parameters:
        raise ConfigError(
            f"is {rule!r}, which takes no certainty_threshold; leave that out, or give it to the rule", "rule"
        )
    return {"type": rule, "args": {"threshold": threshold}}


def warn_if_unthinking(family: PromptFamily) -> None:
    """Warn before probing the chains of a model that does not think; a prompt that closes thinking is meant so."""
    if family is family_named(UNTHINKING_FAMILY):
        warnings.warn(
            f"the model's chat template has no <think>: its chain is probed as a plain answer, which suits a model "
            f"that does not think (family={UNTHINKING_FAMILY!r} in the controller's arguments silences this). For a "
            f"model that thinks, family={DEFAULT_FAMILY!r} probes it as a chain of thought",
            stacklevel=4,
        )
