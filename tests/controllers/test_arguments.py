"""Every number that a controller or a stopping rule is given is checked when it is built."""

import inspect
import types
import typing
from collections.abc import Callable

import pytest

from scaffolding_ext import registry
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.basic.best_of_n import BestOfNController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.chain.stopping.several import AllOf, AnyOf
from scaffolding_ext.controllers.chain.stopping.text import PatternStop
from scaffolding_ext.controllers.draft_target.conformal_draft_target import ConformalDraftTargetController
from scaffolding_ext.controllers.draft_target.conformal_rule import ConformalRule
from scaffolding_ext.controllers.vote.allocation.baselines import LengthThreshold
from scaffolding_ext.controllers.vote.allocation.skyline import Curve, DynamicSkyline, InitialStepSkyline
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.run.record_chain import RecordChainController

CURVE = Curve((1.0,), (3,))
NEEDED = {
    BestOfNController: {"generation_controller": NativeGenerationController(), "reward_controller": BaseController()},
    BudgetForcingController: {"thinking_tokens": 8},
    ConformalDraftTargetController: {"coverage": "conditional"},
    ConformalRule: {"coverage": "conditional"},
    MajorityVoteController: {"generation_controller": NativeGenerationController()},
    PatternStop: {"pattern": "so"},
    RecordChainController: {"generation_controller": DynasorCoTController()},
    AnyOf: {"rules": ["consecutive"]},
    AllOf: {"rules": ["consecutive"]},
    LengthThreshold: {"max_mean_length": 100.0},
    InitialStepSkyline: {"knob": 3, "curve": CURVE},
    DynamicSkyline: {"knobs": (3,), "curves": (CURVE,)},
}
OWN = [
    factory
    for kind in (
        registry.controllers,
        registry.stopping_rules,
        registry.take_over_rules,
        registry.probe_schedules,
        registry.answer_probes,
        registry.allocation_rules,
    )
    for factory in map(kind.resolve, kind.names())
    if factory.__module__.startswith("scaffolding_ext.")
]
UNBOUNDED = {("Router", "threshold")}  # in the unit of its score, which may be negative
WHOLE, REAL = (False, "8", 2.5, float("nan"), -1), (True, "0.5", float("nan"), float("inf"), -2)  # -1 is a cosine


def numbers(factory: Callable[..., object]) -> list[tuple[str, tuple[object, ...]]]:
    """The names of a factory's whole and real arguments, each with what it must refuse."""
    hints = typing.get_type_hints(factory.__init__)
    unions = (types.UnionType, typing.Union)
    kinds = {
        name: {hint, *(typing.get_args(hint) if typing.get_origin(hint) in unions else ())}
        for name, hint in hints.items()
    }
    return [
        (name, WHOLE if int in kinds[name] else REAL)
        for name in inspect.signature(factory).parameters
        if {int, float} & kinds.get(name, set())
    ]


def fault(factory: Callable[..., object], name: str, value: object) -> str | None:
    """Return how a factory fails to refuse a wrong value by name; None if it does refuse it so."""
    case = f"{factory.__name__}({name}={value!r})"
    try:
        factory(**NEEDED.get(factory, {}) | {name: value})
    except ConfigError as error:
        is_named = error.key == name and f"is {value!r}; it must be " in str(error)
        return None if is_named else f"{case}: {error}"
    return f"{case} is accepted"


def test_a_wrong_number_is_refused_by_name():
    cases = [
        (factory, name, value)
        for factory in dict.fromkeys(OWN)
        for name, values in numbers(factory)
        for value in values
        if value != -2 or (factory.__name__, name) not in UNBOUNDED
    ]
    assert {
        ("DynasorCoTController", "chunk_size"),
        ("ProbeSchedule", "first_probe"),
        ("ConformalDraftTargetController", "num_chains"),
        ("ConformalRule", "adaptive_step"),
        ("TotalVariation", "tolerance"),
    } <= {(factory.__name__, name) for factory, name, _ in cases}
    assert not list(filter(None, (fault(*case) for case in cases)))


def test_an_adaptive_level_needs_a_rate_that_it_can_keep():
    for alpha in (0, 1):
        with pytest.raises(ConfigError, match=f"^alpha: is {alpha}; it must be above 0 and below 1$"):
            ConformalRule(coverage="conditional", alpha=alpha, adaptive_step=0.005)
