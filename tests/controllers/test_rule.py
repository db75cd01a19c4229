"""Every rule that decides when enough is known keeps one contract: of chains, votes, searches and drafts."""

from __future__ import annotations

import pytest

from scaffolding_ext.controllers.rule import DecisionRule
from scaffolding_ext.registry import Registry, allocation_rules, search_stops, stopping_rules, take_over_rules

REGISTRIES = (stopping_rules, allocation_rules, search_stops, take_over_rules)
RULES = [(registry, name) for registry in REGISTRIES for name in registry.names()]
LOOKS_AT = {
    "stopping rule": {"answer", "answer_logprobs"},
    "allocation rule": {"size", "counts", "answers", "rewards", "lengths", "probabilities"},
    "take-over rule": {"scores", "texts", "verdicts"},
}
LOOKS_AT["search stop"] = LOOKS_AT["allocation rule"]
IN_ORDER = {"alpha", "rate", "share", "miss", "at_least"}  # the larger, the more careful; of `miss` the smaller


@pytest.mark.parametrize(("registry", "name"), RULES, ids=[name for _, name in RULES])
def test_what_a_rule_wants_tried_can_be_built_and_says_what_it_looks_at(registry: Registry, name: str) -> None:
    kind = registry.resolve(name)
    assert isinstance(kind, type)
    assert issubclass(kind, DecisionRule)
    for title, settings in kind.search_space().items():
        assert title, "a list has a name"
        built = [registry.build({"type": name, "args": dict(args)}) for args in settings]
        assert all(each.inputs <= LOOKS_AT[registry.kind] for each in built)
        names = settings[0] if settings else {}
        moving = {field for field in names if len({repr(args[field]) for args in settings}) > 1}
        for field in moving & IN_ORDER if len(moving) == 1 else ():
            values = [args[field] for args in settings]
            assert values == sorted(values, reverse=field != "miss"), "from the most careful to the boldest"


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.kind)
def test_every_kind_of_rule_wants_something_tried(registry: Registry) -> None:
    kinds = [registry.resolve(name) for name in registry.names()]
    assert any(kind.search_space() for kind in kinds)
