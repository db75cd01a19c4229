"""One short or sure sample may be enough: counts alone cannot tell the first sample of an easy question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.vote.allocation.base import Votes
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.errors import ConfigError

SHORT_SHARES = (0.1, 0.25, 0.5, 0.75)  # of the recorded samples that count as short, in a trial
PROBABILITIES = (0.999, 0.99, 0.95, 0.9, 0.8)  # that a trial tries


@dataclass(frozen=True, kw_only=True)
class SureFirst(LeaderChange):
    """Stops after the first sample where it is short, or sure of its answer; else decides as `LeaderChange`.

    A model is more often right where it writes little, or where the answer that it is asked for is probable. A sample
    without an answer is never enough.

    Args:
        max_length: Most tokens of a short sample, at least 1; None reads no lengths.
        min_probability: Least probability of a sure sample's answer, in (0, 1]; every sample is then asked for its
            answer once more. With `max_length`, the sample must be short and sure.

    Raises:
        ConfigError: Neither is given, or a setting is out of range.

    Reference:
        Ours.
    """

    plainness = 2
    max_length: int | None = None
    min_probability: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length is None and self.min_probability is None:
            raise ConfigError("is missing, and so is min_probability: give one of them", "max_length")
        if self.max_length is not None:
            require.whole("max_length", self.max_length)
        if self.min_probability is not None:
            require.number("min_probability", self.min_probability, above=0, most=1)

    @property
    def looks_at(self) -> frozenset[str]:
        columns = {"lengths": self.max_length, "probabilities": self.min_probability}
        return frozenset({"counts", *(name for name, bound in columns.items() if bound is not None)})

    @classmethod
    def settings_to_try(cls, recorded: Sequence[LabelledVote] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        lists: dict[str, list[Mapping[str, Any]]] = {
            "one sure sample": [{"min_probability": least, "leap": 2.0} for least in PROBABILITIES]
        }
        if recorded:
            lengths = np.concatenate([np.asarray(each.lengths, dtype=float) for each in recorded])
            most = sorted({max(1, round(length)) for length in np.quantile(lengths, SHORT_SHARES).tolist()})
            lists["one short sample"] = [{"max_length": length, "leap": 2.0} for length in most]
        return lists

    def _num_more(self, votes: Votes) -> int:
        if not votes.classes:
            return 1
        if len(votes.classes) == 1 and votes.classes[0] != -1 and self._is_sure(votes):
            return 0
        first_leap = super()._num_more(Votes((), votes.max_samples))
        return first_leap - len(votes.classes) if len(votes.classes) < first_leap else super()._num_more(votes)

    def _is_sure(self, votes: Votes) -> bool:
        lengths, probabilities = votes.lengths, votes.probabilities
        if (self.max_length is not None and lengths is None) or (
            self.min_probability is not None and probabilities is None
        ):
            raise ValueError(
                f"the votes carry no {' or '.join(sorted(self.looks_at - {'counts'}))}; give them, or choose a rule "
                "that needs none, such as LeaderChange"
            )
        is_short = self.max_length is None or (lengths is not None and lengths[0] <= self.max_length)
        least = self.min_probability
        return is_short and (least is None or (probabilities is not None and probabilities[0] >= least))
