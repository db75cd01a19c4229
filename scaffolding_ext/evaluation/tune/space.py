"""Settings to try: ends of chains, numbers of samples, weights and stops of the vote."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from scaffolding_ext.controllers.vote.allocation.agreement import AgreementDoubling
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule
from scaffolding_ext.controllers.vote.allocation.baselines import Even
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.controllers.vote.allocation.value_of_vote import ValueOfVote
from scaffolding_ext.controllers.vote.draws import Order
from scaffolding_ext.evaluation.logs.samples import Recording
from scaffolding_ext.evaluation.tune.endings import Ending, Stopped, Whole
from scaffolding_ext.registry import allocation_rules

ASKED = "answer_probability"  # the weight that needs one more probe of a sample
_MOST_NUMBERS = 8  # of samples to try
_JOINT_NUMBERS = 4  # to try with every way to end a chain
_JOINT_MISSES = (0.1, 0.2, 0.3)
_AT_ONCE = (1, 0.75, 0.5, 0.375, 0.3125, 0.25, 0.1875, 0.125)  # sizes to try, as shares of the samples
_LEAST_AT_ONCE = 8  # samples, to try what a further vote is worth
_PRICES = (0.02, 0.05)
_COUNTING = {ASKED: "surer", "mean_logprob": "surer", "shortness": "shorter", "reward": "better rewarded"}  # in words
_NESTED_NUMBERS = 2  # to try with another schedule of such a way


@dataclass(frozen=True, eq=False)
class Setting:
    """One point of the joint space.

    Attributes:
        rule: Ends the vote; None draws all samples at once.
        weight: Weight of votes; None weighs all equally.
        in_flight: Samples that run at once in a vote that rolls, in which they count in this `order`; None: rounds.
        complexity_rank: Lowest for the plainest; among equally good settings the plainer one is chosen.
    """

    ending: Ending
    num_samples: int
    rule: AllocationRule | None = None
    weight: str | None = None
    complexity_rank: int = 0
    in_flight: int | None = None
    order: Order = "tokens"

    def __str__(self) -> str:
        """The setting as an instruction to people, without the names of classes."""
        number, counting = times(self.num_samples), _COUNTING.get(self.weight or "", self.weight)
        parts = [f"{counting} answers count more"] if counting else []
        if self.num_samples == 1:
            parts = ["ask once"]
        elif self.rule is None:
            is_either = counting and self.num_samples == 2
            parts = [f"ask twice and take the {counting} answer"] if is_either else [f"ask {number} and vote", *parts]
        elif self.in_flight is None:
            parts.insert(0, f"ask up to {number} and stop when {self.rule.words}")
        elif self.in_flight >= self.num_samples:
            parts.insert(0, f"ask {number} at once and stop when {self.rule.words}")
        else:
            parts.insert(0, f"ask up to {number}, {self.in_flight} at once, and stop when {self.rule.words}")
        return "; ".join(filter(None, (*parts, str(self.ending))))

    @property
    def is_fitted(self) -> bool:
        return self.rule is not None and self.rule.is_fitted

    def rule_config(self) -> dict[str, Any] | None:
        """Return the rule as a stack file names it."""
        if self.rule is None:
            return None
        return {"type": allocation_rules.name_of(type(self.rule)), "args": self.rule.settings()}


def times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def numbers_to_try(num_samples: int, most: int = _MOST_NUMBERS) -> list[int]:
    """Return at most `most` numbers of samples, from all of them down to one."""
    if num_samples <= most:
        return list(range(num_samples, 0, -1))
    ratio = num_samples ** (1 / (most - 1))
    return sorted({round(num_samples / ratio**power) for power in range(most)}, reverse=True)


def flights_to_try(num_samples: int) -> dict[str, list[Setting]]:
    """Return votes in flight, by name.

    The first to finish of all samples; smaller votes that begin all at once, from all samples to an eighth of them; and
    votes that roll, of which fewer in flight take fewer tokens and more time.

    Reference:
        Hassid et al., "Don't Overthink it: Preferring Shorter Thinking Chains", arXiv 2505.17813, for the first to
        finish ("short-m@k").
    """
    firsts = [Even(num_samples=number) for number in numbers_to_try(num_samples) if 1 < number < num_samples]
    lists = {
        "first to finish": [Setting(Whole(), num_samples, each, None, 12, num_samples, "arrival") for each in firsts]
    }
    sizes = sorted({round(num_samples * share) for share in _AT_ONCE} - {0, 1}, reverse=True)
    lists["LeaderChange, all at once"] = [Setting(Whole(), size, LeaderChange(), None, 10, size) for size in sizes]
    small = [size for size in sizes if _LEAST_AT_ONCE <= size <= num_samples / 2]
    for price in _PRICES:
        rule = ValueOfVote(price=price, size=num_samples)
        lists[f"ValueOfVote {price:g}, all at once"] = [Setting(Whole(), size, rule, None, 17, size) for size in small]
    rules = [LeaderChange(miss=miss) for miss in _JOINT_MISSES]
    for width in itertools.takewhile(lambda width: width < num_samples, (2**power for power in range(1, 7))):
        lists[f"LeaderChange, {width} in flight"] = [
            Setting(Whole(), num_samples, rule, None, 16, width) for rule in rules
        ]
    return lists


def weighed_to_try(num_samples: int, weight: str) -> list[Setting]:
    """Return votes by a weight that end early."""
    rules = [LeaderChange(miss=miss) for miss in _JOINT_MISSES] if num_samples > 1 else []
    return [Setting(Whole(), num_samples, rule, weight, complexity_rank=15) for rule in rules]


def votes_over(ending: Ending, num_samples: int, weights: Sequence[str]) -> list[Setting]:
    """Return the settings over chains that end in one way: numbers of samples, weights, and rules of the vote."""
    settings, rank, is_nested = [], ending.complexity_rank, isinstance(ending, Stopped) and ending.is_nested
    for number in numbers_to_try(num_samples, _NESTED_NUMBERS if is_nested else _JOINT_NUMBERS):
        settings.append(Setting(ending, number, complexity_rank=rank))
        if number > 1:
            settings += [Setting(ending, number, weight=each, complexity_rank=rank + 5) for each in weights]
    if num_samples > 1:
        rules: list[AllocationRule] = [LeaderChange()]
        if not is_nested:
            rules.append(AgreementDoubling())
        settings += [Setting(ending, num_samples, rule, complexity_rank=rank + 10) for rule in rules]
        settings += [Setting(ending, num_samples, LeaderChange(), each, complexity_rank=rank + 15) for each in weights]
    return settings


class RuleList(NamedTuple):
    """Settings of one rule, from the most careful to the boldest; a rule's earlier lists are plainer."""

    complexity_rank: int
    rules: Sequence[AllocationRule]


def rules_to_try(recording: Recording, votes: Sequence[LabelledVote]) -> dict[str, RuleList]:
    """Return the lists of every named rule, other packages' included, that reads only recorded columns."""
    lists: dict[str, RuleList] = {}
    columns = {"rewards": "rewards", "lengths": "tokens"}
    lacking = {name for name, column in columns.items() if column in recording.missing}
    for name in allocation_rules.names():
        kind = allocation_rules.resolve(name)
        if not (isinstance(kind, type) and issubclass(kind, AllocationRule)):
            continue
        for number, (title, settings) in enumerate(kind.search_space(votes).items()):
            rules = [kind(**args) for args in settings]
            if rules and not lacking & set().union(*(rule.inputs for rule in rules)):
                lists[title] = RuleList(10 * kind.complexity_rank + number, rules)
    return lists


def labelled_votes(recording: Recording) -> list[LabelledVote]:
    return [
        LabelledVote(
            each.id,
            each.classes.tolist(),
            each.correct.tolist(),
            each.tokens.tolist(),
            None if each.rewards is None else each.rewards.tolist(),
            None if each.logprobs is None else each.logprobs.tolist(),
        )
        for each in recording.questions
    ]
