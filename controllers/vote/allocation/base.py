"""Interface for rules that decide how many more samples a vote draws."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from scaffolding_ext import require
from scaffolding_ext.controllers.rule import DecisionRule
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from scaffolding_ext.controllers.vote.sample import Sample


@dataclass(frozen=True)
class Votes:
    """A vote so far.

    Attributes:
        classes: Class of each sample's answer in the order drawn, shape [num_samples]; -1 for no answer.
        weights: Weight of each sample's vote, at least 0; None if all weigh 1.
        running_tokens: Tokens that samples in flight have written, on the flight's clock.
        samples: The samples, for the election; no rule reads them, because recorded votes have none.
    """

    classes: Sequence[int]
    max_samples: int
    rewards: Sequence[float] | None = None
    lengths: Sequence[int] | None = None
    weights: Sequence[float] | None = None
    most_weight: float = 1.0
    samples: Sequence[Sample] = ()
    running_tokens: int = 0

    @property
    def num_remaining(self) -> int:
        return self.max_samples - len(self.classes)


class AllocationRule(DecisionRule[Votes]):
    """Decides when a vote has seen enough. Rules are frozen dataclasses: equal settings make equal decisions.

    Callers ask `num_more`, draw that many samples, and ask again. A setting that is an object can be given as plain
    data.

    Attributes:
        is_fitted: True if `search_space` fits each setting to the recorded votes. `tune` then fits on some questions
            and plays on the others, so the lists must be equally long for any votes.
    """

    is_fitted: ClassVar[bool] = False

    @property
    def inputs(self) -> frozenset[str]:
        """Inputs of the rule: `"size"`, `"counts"` (per class), `"answers"` (in order), or columns of `Votes`."""
        return frozenset({"counts"})

    @classmethod
    def search_space(cls, recorded: Sequence[LabelledVote] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {}

    def refuses_weights(self, most_weight: float) -> str | None:
        """Return the reason that the rule cannot decide on weighted votes; None if it can."""
        return "counts every vote as 1"

    def check_weights(self, most_weight: float) -> None:
        reason = self.refuses_weights(most_weight)
        if reason is not None:
            raise ConfigError(
                f"{type(self).__name__} {reason}: set it to null to draw all samples, or to a rule that reads weights "
                "(LeaderChange, AgreementDoubling, Even)",
                "allocation",
            )

    def settings(self) -> dict[str, Any]:
        """Return the rule's arguments as plain data, for JSON and YAML; they construct an equal rule."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {field.name: _plain(getattr(self, field.name)) for field in fields}

    def num_more(self, votes: Votes) -> int:
        """Return the number of samples to draw at once, at most `num_remaining`; 0 stops the vote.

        Raises:
            RequestError: The rule answers with something else than a whole number.
        """
        if votes.num_remaining <= 0:
            return 0
        wanted = self._num_more(votes)
        try:
            return max(0, min(votes.num_remaining, index(wanted)))
        except TypeError:
            raise RequestError(f"{type(self).__name__} asks for {wanted!r} samples: give a whole number") from None

    @abstractmethod
    def _num_more(self, votes: Votes) -> int:
        """Return the number of samples wanted; `num_more` limits it to those that remain."""


class Rival(NamedTuple):
    """A class that does not lead: its votes, by weight, and True if it would win a tie against the leader."""

    num_votes: float
    wins_ties: bool


class Standing(NamedTuple):
    """Votes by class; `cost` is the tokens of a further vote, for rules that read lengths."""

    lead: float
    rivals: tuple[Rival, ...]
    num_samples: int
    num_remaining: int
    most_weight: float = 1.0
    cost: float = 0.0

    @property
    def runner_up(self) -> float:
        return self.rivals[0].num_votes if self.rivals else 0

    def after(self, num_agreeing: int) -> Standing:
        """Return the standing after further samples that all vote for the leader with the largest weight."""
        return self._replace(
            lead=self.lead + num_agreeing * self.most_weight,
            num_samples=self.num_samples + num_agreeing,
            num_remaining=self.num_remaining - num_agreeing,
        )


def standing_of(votes: Votes) -> Standing:
    """Count a vote; on a tie, the class that appeared first leads."""
    counts: dict[int, float]
    if votes.weights is None:
        counts = dict(Counter(votes.classes))  # in order of first appearance
    else:
        counts = {}
        for number, weight in zip(votes.classes, votes.weights, strict=True):
            counts[number] = counts.get(number, 0) + weight
    counts.pop(-1, None)
    lead, rivals, is_earlier = max(counts.values(), default=0), list[Rival](), True
    for count in counts.values():
        if is_earlier and count == lead:
            is_earlier = False
        else:
            rivals.append(Rival(count, is_earlier))
    return Standing(
        lead, tuple(sorted(rivals, reverse=True)), len(votes.classes), votes.num_remaining, votes.most_weight
    )


@dataclass(frozen=True, kw_only=True)
class SequentialRule(AllocationRule):
    """A rule that can stop after any sample.

    A *leap* is the smallest number of samples after which the rule could stop, if all of them voted for the leader. If
    certainty only grows with the leader's votes, a leap draws no sample that one-by-one sampling would save.

    Args:
        leap: 0 draws one by one, 1 in leaps; 2 doubles each leap but the first, which saves rounds and costs some
            samples.
        give_up: Stop once "no answer" is as certain as an answer must be.
    """

    leap: float = 0.0
    give_up: bool = False

    def __post_init__(self) -> None:
        require.number("leap", self.leap, least=0)

    @abstractmethod
    def is_certain(self, standing: Standing) -> bool:
        """Return True if the leader is certain enough to stop."""

    def standing(self, votes: Votes) -> Standing:
        """Count a vote as `is_certain` reads it."""
        return standing_of(votes)

    def _num_more(self, votes: Votes) -> int:
        standing = self.standing(votes)
        if self.give_up and all(number == -1 for number in votes.classes):
            standing = standing._replace(lead=standing.num_samples)
        if standing.lead and self.is_certain(standing):
            return 0
        if not self.leap:
            return 1
        counts = range(1, votes.num_remaining + 1)
        one_leap = 1 + bisect_left(counts, True, key=lambda count: self.is_certain(standing.after(count)))
        return one_leap if not votes.classes else math.ceil(one_leap * self.leap)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
