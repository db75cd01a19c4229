"""Programs as they ran: which requests they sent side by side, and what was known of them then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.evaluation.traffic.programs import Program, RequestRound, fixed_program, vote_steps


class RecordedProgram(NamedTuple):
    """One program.

    Attributes:
        rounds: In order.
        deadline: Seconds from its arrival; None where there is none.
    """

    rounds: tuple[RequestRound, ...]
    deadline: float | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of all its requests."""
        return sum(sum(each.num_tokens) for each in self.rounds)

    @property
    def work(self) -> Program:
        """The program, to be served again."""
        return fixed_program(*self.rounds)


def recorded_vote(trace: Iterable[Mapping[str, Any]], max_samples: int) -> RecordedProgram:
    """A vote, from the trace of its request: a request stands for each sample.

    Args:
        trace: With the vote's own events, `allocate` for each round and `vote`.
        max_samples: The most that it could draw.

    Raises:
        ValueError: There was no vote.
    """
    events = list(trace)
    votes = [event for event in events if event["event"] == "vote"]
    if not votes:
        raise ValueError("the trace has no event 'vote'; give that of a MajorityVoteController's request")
    vote = min(votes, key=lambda event: len(event["branch"]))  # the outermost
    rounds: list[RequestRound] = []
    classes: list[int] = []
    for event in events:
        if event["event"] == "allocate" and event["branch"] == vote["branch"]:
            num_tokens = vote["num_decoded"][len(classes) : event["num_samples"]]
            rounds.append(_round(num_tokens, classes, max_samples))
            classes = event["classes"]
    return RecordedProgram(tuple(rounds))


def replayed_vote(rule: AllocationRule, classes: Sequence[int], lengths: Sequence[int]) -> RecordedProgram:
    """A vote over samples that were drawn before, in their order, as a rule would have drawn them.

    Args:
        rule: Says how many come next.
        classes: Class of each sample's answer, shape [num_samples]; -1 where there is none.
        lengths: Tokens of each sample, shape [num_samples].
    """
    rounds: list[RequestRound] = []
    first = 0
    while num_more := max(rule.num_more(Votes(classes[:first], len(classes), lengths=lengths[:first])), not first):
        rounds.append(_round(lengths[first : first + num_more], classes[:first], len(classes)))
        first += num_more
    return RecordedProgram(tuple(rounds))


def _round(num_tokens: Sequence[int], classes: Sequence[int], max_samples: int) -> RequestRound:
    """A round of a vote that knows these classes."""
    return RequestRound(tuple(num_tokens), vote_steps(classes, max_samples))
