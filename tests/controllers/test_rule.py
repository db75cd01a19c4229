"""Every rule that decides when enough is known keeps one contract: of chains, votes, searches and drafts."""

from __future__ import annotations

from collections.abc import Iterator

from scaffolding_ext.controllers.rule import DecisionRule
from scaffolding_ext.registry import Registry, allocation_rules, search_stops, stopping_rules, take_over_rules

REGISTRIES = (stopping_rules, allocation_rules, search_stops, take_over_rules)
LOOKS_AT = {
    "stopping rule": {"answer", "answer_logprobs"},
    "allocation rule": {"size", "counts", "answers", "rewards", "lengths", "probabilities"},
    "take-over rule": {"scores", "texts", "verdicts"},
}
LOOKS_AT["search stop"] = LOOKS_AT["allocation rule"]
IN_ORDER = {"alpha", "rate", "share", "miss", "at_least"}  # the larger, the more careful; of `miss` the smaller


def faults(registry: Registry, name: str) -> Iterator[str]:
    kind = registry.resolve(name)
    if not (isinstance(kind, type) and issubclass(kind, DecisionRule)):
        yield f"{name} is no DecisionRule"
        return
    for title, settings in kind.search_space().items():
        built = [registry.build({"type": name, "args": dict(args)}) for args in settings]
        if any(not each.inputs <= LOOKS_AT[registry.kind] for each in built):
            yield f"{name} looks at more than a {registry.kind} is shown"
        names = settings[0] if settings else {}
        moving = {field for field in names if len({repr(args[field]) for args in settings}) > 1}
        for field in moving & IN_ORDER if len(moving) == 1 else ():
            values = [args[field] for args in settings]
            if values != sorted(values, reverse=field != "miss"):
                yield f"{name}, {title}: {field} does not go from the most careful to the boldest"


def test_what_a_rule_wants_tried_can_be_built_and_says_what_it_looks_at() -> None:
    assert not [fault for registry in REGISTRIES for name in registry.names() for fault in faults(registry, name)]


def test_every_kind_of_rule_wants_something_tried() -> None:
    for registry in REGISTRIES:
        assert any(registry.resolve(name).search_space() for name in registry.names()), registry.kind
