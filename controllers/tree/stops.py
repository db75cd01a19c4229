"""Ends of a search: its budget, or a rule that reads the solutions that have ended."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from scaffolding_ext import require
from scaffolding_ext.controllers.certaindex import Threshold, is_certain
from scaffolding_ext.controllers.rule import DecisionRule
from scaffolding_ext.controllers.tree.select import Leaf
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.controllers.vote.allocation.leader_change import MISSES, LeaderChange
from scaffolding_ext.controllers.vote.voting import vote
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.registry import allocation_rules


class Spent(NamedTuple):
    tokens: int
    computed_tokens: int
    nodes: int


@dataclass(frozen=True)
class Budget:
    """Limits of a search; it ends at the first one reached, with its best solution so far.

    Args:
        nodes: Steps.
        tokens: Decoded tokens, including those of judges and look-aheads. The last step is cut to the remainder. A step
            counts as at least one token.
        computed_tokens: Decoded and prefilled tokens.
    """

    nodes: int | None = 64
    tokens: int | None = None
    computed_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("nodes", "tokens", "computed_tokens"):
            value = getattr(self, name)
            if value is not None:
                require.whole(name, value)
        if (self.nodes, self.tokens, self.computed_tokens) == (None,) * 3:
            raise ConfigError("has no limit, and some strategies end only with their budget; give one", "nodes")

    @classmethod
    def of(cls, given: Budget | Mapping[str, Any] | int | None) -> Budget:
        if given is None or isinstance(given, Budget):
            return given or cls()
        if not isinstance(given, Mapping):
            return cls(nodes=require.whole("budget", given))
        with require.under("budget"):
            known = cls.__dataclass_fields__.keys()
            if not given.keys() <= known:
                raise ConfigError(f"is {given!r}; give a mapping of {', '.join(known)}")
            return cls(**({} if "nodes" in given else {"nodes": None}), **given)

    def used(self, spent: Spent) -> float:
        """Return the used share of the limit that is closest to being reached, in [0, 1]."""
        return min(1.0, max(spent[at] / limit for at, limit in enumerate(self._limits()) if limit is not None))

    def nodes_left(self, spent: Spent) -> int | None:
        return None if self.nodes is None else max(0, self.nodes - spent.nodes)

    def tokens_left(self, spent: Spent) -> int | None:
        return None if self.tokens is None else max(0, self.tokens - spent.tokens)

    def _limits(self) -> tuple[int | None, ...]:
        return self.tokens, self.computed_tokens, self.nodes


class Look(NamedTuple):
    """Input of a stop.

    Attributes:
        leaves: Solutions that have ended, in the order of their ends; those of one round by path.
        leaders: Most frequent class after each round, and its share of the answers.
        num_left: Solutions that the budget still allows, at the mean cost so far.
    """

    leaves: Sequence[Leaf]
    leaders: Sequence[tuple[int, float]]
    num_left: int


class SearchStop(DecisionRule[Look]):
    """Rule that ends a search once it has seen enough."""

    @property
    def inputs(self) -> frozenset[str]:
        """`"answers"` of leaves, `"rewards"` (their values), or what an allocation rule reads."""
        return frozenset({"answers"})

    @abstractmethod
    def is_enough(self, look: Look) -> bool:
        """Return True if the search may end."""


_PRESETS: dict[str, tuple[tuple[tuple[str, float], ...], int]] = {
    "mcts_gsm8k": ((("entropy", 0.99), ("mean_reward", 0.4)), 3),
    "mcts_asdiv": ((("mean_reward", 0.4),), 3),
    "rebase_gsm8k": ((("entropy", 0.85), ("max_reward", 0.99)), 16),
    "rebase_math": ((("entropy", 0.75),), 16),
}


class Certaindex(SearchStop):
    """Dynasor's certaindex over the leaves: all measures reach their thresholds.

    Args:
        thresholds: `{measure, at_least}` each; measures are `entropy`, `mean_reward` (MCTS) and `max_reward` (REBASE).
            Or a preset of the paper: `mcts_gsm8k`, `mcts_asdiv`, `rebase_gsm8k`, `rebase_math`.
        every: Leaves between two looks; None takes the preset's, else 1. A search with no more leaves is refused.

    Reference:
        Fu et al., "Efficiently Scaling LLM Reasoning with Certaindex", arXiv 2412.20993, its configured thresholds.
    """

    def __init__(
        self,
        thresholds: Sequence[Threshold | Mapping[str, Any]] | str = (Threshold("entropy", 0.75),),
        every: int | None = None,
    ) -> None:
        known_every = 1
        if isinstance(thresholds, str):
            pairs, known_every = _PRESETS[require.one_of("thresholds", thresholds, _PRESETS, instead="a list")]
            thresholds = [{"measure": measure, "at_least": least} for measure, least in pairs]
        self.thresholds = tuple(Threshold.of(each) for each in thresholds)
        if not self.thresholds:
            raise ConfigError("is empty; give at least one", "thresholds")
        self.every = require.whole("every", known_every if every is None else every)

    @property
    def inputs(self) -> frozenset[str]:
        measures = {each.measure for each in self.thresholds}
        return frozenset({"answers"} if measures == {"entropy"} else {"answers", "rewards"})

    @classmethod
    def search_space(cls, recorded: Sequence[Any] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        thresholds = ([{"measure": "entropy", "at_least": least}] for least in (1.0, 0.85, 0.75, 0.5))
        return {"certaindex": [{"thresholds": each} for each in thresholds]}

    def is_enough(self, look: Look) -> bool:
        leaves = look.leaves[: len(look.leaves) // self.every * self.every]
        if not leaves:
            return False
        needs_rewards = any(each.measure != "entropy" for each in self.thresholds)
        rewards = [leaf.value for leaf in leaves] if needs_rewards else None
        return is_certain(self.thresholds, [leaf.answer_class for leaf in leaves], rewards)


class Agreement(SearchStop):
    """A vote's allocation rule over the leaves: more of them would probably not change the winner.

    Args:
        rule: The allocation rule.
    """

    registries: ClassVar = {"rule": allocation_rules}

    def __init__(self, rule: AllocationRule | Mapping[str, Any] | str = "LeaderChange") -> None:
        self.rule: AllocationRule = allocation_rules.build(rule, "rule")

    @property
    def inputs(self) -> frozenset[str]:
        return self.rule.inputs

    @classmethod
    def search_space(cls, recorded: Sequence[Any] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        rule = allocation_rules.name_of(LeaderChange)
        return {"agreement": [{"rule": {"type": rule, "args": {"miss": miss}}} for miss in MISSES]}

    def is_enough(self, look: Look) -> bool:
        classes = [leaf.answer_class for leaf in look.leaves]
        if not classes:
            return False
        votes = Votes(
            classes,
            len(classes) + look.num_left,
            [leaf.value for leaf in look.leaves] if "rewards" in self.rule.inputs else None,
            [leaf.num_tokens for leaf in look.leaves],
        )
        return self.rule.num_more(votes) == 0


class Unchanged(SearchStop):
    """The most frequent answer has been the same for some rounds, and has enough leaves.

    Args:
        rounds: Rounds with new leaves, at least 1.
        share: Minimum share of the leading answer, in (0, 1].
    """

    def __init__(self, rounds: int = 3, share: float = 0.5) -> None:
        self.rounds = require.whole("rounds", rounds)
        self.share = require.share("share", share)

    @classmethod
    def search_space(cls, recorded: Sequence[Any] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"unchanged": [{"rounds": rounds} for rounds in (5, 3, 2, 1)]}

    def is_enough(self, look: Look) -> bool:
        last = look.leaders[-self.rounds :]
        same = len(last) == self.rounds and len({leader for leader, _ in last}) == 1 and last[-1][0] >= 0
        return same and last[-1][1] >= self.share


class Accepted(SearchStop):
    """The value of a leaf is high enough, for example accepted by a checker.

    Args:
        at_least: Minimum value of an accepted leaf.
    """

    def __init__(self, at_least: float = 1.0) -> None:
        self.at_least = require.number("at_least", at_least)

    @property
    def inputs(self) -> frozenset[str]:
        return frozenset({"rewards"})

    @classmethod
    def search_space(cls, recorded: Sequence[Any] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"accepted": [{"at_least": least} for least in (0.99, 0.9, 0.75, 0.5)]}

    def is_enough(self, look: Look) -> bool:
        return any(leaf.value >= self.at_least for leaf in look.leaves)


def leader_of(leaves: Sequence[Leaf]) -> tuple[int, float]:
    """Return the most frequent class, -1 without an answer, and its share of the answers."""
    classes = [leaf.answer_class for leaf in leaves if leaf.answer_class >= 0]
    leader = vote(classes)
    return leader, classes.count(leader) / len(classes) if classes else 0.0
