"""One token budget for all votes of an evaluation: the samples that it buys, and the resulting votes.

The samples are the run's records; a sample's index in its vote is its epoch. Further samples go to the least settled
votes, in rounds, each decided on all samples of the earlier rounds. So the order does not depend on timing, and a
resumed run spends as an uninterrupted one would.

Reference: Fu et al., "Efficiently Scaling LLM Reasoning with Certaindex", arXiv 2412.20993, section 3.3 and D.2.1:
    certain programs give their compute up to uncertain ones.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from scaffolding_ext import require
from scaffolding_ext.answers import group
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.certaindex import entropy_certaindex
from scaffolding_ext.controllers.needs import Needs
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.controllers.vote.voting import elect, end_reason
from scaffolding_ext.controllers.vote.weights import UniformWeight
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.evaluation.run.records import Record
from scaffolding_ext.evaluation.run.runner import EvaluationJob
from scaffolding_ext.evaluation.run.sections import shares_of
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask
from scaffolding_ext.request.figures import Ratio, added

_KEY = "evaluation.total_tokens"
Claim = Callable[[Votes], tuple[float, float]]  # the vote with the lowest claim gets a sample first
ROUND_SHARE = 1 / 8  # of the questions get a sample in a round: enough for a busy engine, few enough to choose


class Round(NamedTuple):
    """Samples that may be drawn in parallel.

    Attributes:
        questions: Indices of the questions that get one further sample each, in the order of their claim.
        is_last: True if the budget ends with them, or nothing is left to draw.
    """

    questions: list[int]
    is_last: bool


def unsettledness(votes: Votes) -> tuple[float, float]:
    """Sort key: the lowest certaindex first; on a tie, the shortest samples so far."""
    return entropy_certaindex(votes.classes), mean_length(votes)


def next_round(
    questions: Sequence[Votes], total_tokens: float, claim: Claim = unsettledness, rule: AllocationRule | None = None
) -> Round:
    """Choose the questions that get a further sample.

    Every question gets one sample first. A sample's expected length is the mean length of its question's samples so
    far. The round and the spending end before the first sample that the remaining budget is not expected to cover.
    Running samples are not cut, so the last round may use more or less than was left, by at most the samples of one
    round.

    Args:
        rule: Votes that the rule calls settled get no more samples; None draws up to each vote's maximum.

    Raises:
        ConfigError: The budget does not cover one sample per question, judging by the samples so far.
    """
    size = math.ceil(ROUND_SHARE * len(questions))
    left = total_tokens - sum(sum(votes.lengths or ()) for votes in questions)
    unasked = [index for index, votes in enumerate(questions) if not votes.classes]
    if unasked:
        num_asked = len(questions) - len(unasked)
        needed = len(unasked) * (total_tokens - left) / num_asked if num_asked else len(unasked)
        if needed > left:
            raise ConfigError(
                f"is {total_tokens:,}; one sample for each of {len(questions)} questions takes about "
                f"{total_tokens - left + needed:,.0f}: give more tokens, or fewer questions",
                "total_tokens",
            )
        return Round(unasked[:size], False)
    is_open = [votes.num_remaining > 0 and (rule is None or rule.num_more(votes) > 0) for votes in questions]
    ranked = sorted((i for i in range(len(questions)) if is_open[i]), key=lambda i: (*claim(questions[i]), i))[:size]
    for place, index in enumerate(ranked):
        left -= mean_length(questions[index])
        if left < 0:
            return Round(ranked[:place], True)
    return Round(ranked, not ranked)


def mean_length(votes: Votes) -> float:
    return sum(votes.lengths) / len(votes.lengths) if votes.lengths else 0.0


class SampleOfVote(BaseController):
    """Draws one sample of a vote, as the vote would; `only_sample` of a request is its index."""

    needs = Needs(tags=())

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self.vote = vote = _checked(controller)
        self.prompting, self.loops, self.needs = vote.prompting, vote.loops, vote.needs
        self.capabilities = vote.capabilities

    def run(self, task: GenerationTask, only_sample: int = 0, **asked: Any) -> ControllerGenerator:
        return self.vote.sampler(task, **asked).only(only_sample)


class VoteBudget:
    """Spends a budget of decoded tokens on the votes of a dataset.

    Args:
        controller: The stack's vote, with its maximum samples, and the rule for settled votes.

    Raises:
        ConfigError: The controller is not a vote, or needs more than answers; or the budget has less than one token per
            question.
    """

    def __init__(
        self,
        controller: Controller,
        questions: Sequence[Example],
        total_tokens: int,
        *,
        units_implied: bool = False,
    ) -> None:
        vote = _checked(controller)
        if total_tokens < len(questions):
            message = f"is {total_tokens:,} for {len(questions):,} questions; give each at least one answer"
            raise ConfigError(message, _KEY)
        self.max_samples = vote.default_sample_num
        self._rule = vote.allocation
        self._questions = questions
        self._total_tokens = total_tokens
        self._units_implied = units_implied
        self._drawn: dict[str, dict[int, Record]] = {question.id: {} for question in questions}

    def add(self, record: Record) -> None:
        self._drawn[record.id][record.epoch] = dataclasses.replace(record, trace=[])

    def rounds(self) -> Iterator[Iterator[EvaluationJob]]:
        """Yield the samples to draw, round by round; add all samples of a round before requesting the next.

        Raises:
            ConfigError: The budget does not cover one sample per question, or would not buy the samples added at the
                start.
        """
        votes = [self._votes_of(question, 0) for question in self._questions]
        is_last = False
        while not is_last:
            with require.under("evaluation"):
                chosen, is_last = next_round(votes, self._total_tokens, rule=self._rule)
            sizes = {index: len(votes[index].classes) for index in chosen}
            jobs = [EvaluationJob(self._questions[index], size) for index, size in sizes.items()]
            missing = [job for job in jobs if job.epoch not in self._drawn[job.sample.id]]
            num_bought = sum(len(each.classes) for each in votes) + len(jobs) - len(missing)
            if (missing or is_last) and num_bought < sum(map(len, self._drawn.values())):
                raise ConfigError(
                    f"is {self._total_tokens:,}, which buys other answers than the run in the folder has. A continued "
                    "run may have more tokens, not fewer, with the same questions; otherwise name another "
                    "--output_path",
                    _KEY,
                )
            if missing:
                yield iter(missing)
            for index, size in sizes.items():
                votes[index] = self._votes_of(self._questions[index], size + 1)

    def votes(self) -> list[Record]:
        """Return a record for each question with samples: its vote, with the tokens of all of them."""
        return [_vote_of(samples, self._classes(samples)) for samples in self._samples()]

    def figures(self) -> dict[str, int]:
        """Return tokens to spend, tokens spent, and samples bought."""
        samples = [sample for own in self._samples() for sample in own]
        spent = sum(map(_decoded, samples))
        return {"total_tokens": self._total_tokens, "spent_tokens": spent, "num_samples": len(samples)}

    def _samples(self) -> list[list[Record]]:
        return [[drawn[index] for index in sorted(drawn)] for drawn in self._drawn.values() if drawn]

    def _classes(self, samples: Sequence[Record]) -> list[int]:
        return group([sample.answer for sample in samples], units_implied=self._units_implied)

    def _votes_of(self, question: Example, num_samples: int) -> Votes:
        samples = [self._drawn[question.id][index] for index in range(num_samples)]
        classes = self._classes(samples)
        return Votes(classes, self.max_samples, lengths=[_decoded(sample) for sample in samples])


def _checked(controller: Controller) -> MajorityVoteController:
    if not isinstance(controller, MajorityVoteController):
        raise ConfigError(
            f"needs a vote to give answers to, but the controller is a {type(controller).__name__}: use a "
            "stack whose outermost controller is a MajorityVoteController, such as configs:majority_vote",
            _KEY,
        )
    if controller.default_sample_num < 2:
        raise ConfigError(
            "is 1; with evaluation.total_tokens it must be at least 2", "controller.args.default_sample_num"
        )
    if not isinstance(controller.weight, UniformWeight):
        raise ConfigError(
            "must be uniform with evaluation.total_tokens, which compares only answers", "controller.args.weight"
        )
    if controller.allocation is not None and "rewards" in controller.allocation.inputs:
        raise ConfigError(
            "reads rewards, and evaluation.total_tokens has none: give a rule that reads answers",
            "controller.args.allocation",
        )
    return controller


def _vote_of(samples: Sequence[Record], classes: list[int]) -> Record:
    """Return the vote of a question: the first sample with the winning answer, with the cost of all samples."""
    election = elect(classes)
    ended = [sample for sample in samples if sample.error is None]
    elected = samples[election.first] if election.winner >= 0 else (ended or samples)[0]
    reason = end_reason(election, "vote", elected.exit_reason)
    event = {
        "event": "vote",
        "branch": [],
        "seconds": 0.0,
        "num_samples": len(samples),
        "num_answers": sum(number != -1 for number in classes),
        "num_rounds": len(samples),
        "answers": [sample.answer for sample in samples],
        "classes": classes,
        "winner": election.winner,
        "num_decoded": [_decoded(sample) for sample in samples],
    }
    return dataclasses.replace(
        elected,
        epoch=0,
        exit_reason=None if elected.error else reason,
        ledger=_summed([sample.ledger for sample in samples]),
        seconds={"total": round(math.fsum(sample.seconds["total"] for sample in samples), 6)},
        trace=[event],
        figures=_figures_of(samples, classes, reason),
    )


def _figures_of(samples: Sequence[Record], classes: Sequence[int], reason: str) -> dict[str, dict[str, Any]]:
    """Return the figures of a vote, and those that its samples published."""
    own = {"samples": len(samples), "stop_reason": {reason: 1}}
    figures: dict[str, dict[str, Any]] = {
        MajorityVoteController.__name__: own | shares_of([sample.correct for sample in samples], list(classes))
    }
    for sample in samples:
        for section, named in (sample.figures or {}).items():
            kept = figures.setdefault(section, {})
            for name, value in named.items():
                new = Ratio(*value) if isinstance(value, (list, tuple)) else value
                kept[name] = added(kept.get(name), new, name)
    return figures


def _decoded(record: Record) -> int:
    decoded: int = record.ledger["total"]["decoded"]
    return decoded


def _summed(ledgers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    total: Counter[str] = Counter()
    by_purpose: dict[str, Counter[str]] = {}
    for ledger in ledgers:
        total.update(ledger["total"])
        for purpose, counts in ledger["by_purpose"].items():
            by_purpose.setdefault(purpose, Counter()).update(counts)
    num_unknown = sum(ledger.get("num_unknown_reuse_tasks", 0) for ledger in ledgers)
    return {
        "total": dict(total),
        "by_purpose": {purpose: dict(counts) for purpose, counts in by_purpose.items()},
        "num_unmetered_tasks": sum(ledger["num_unmetered_tasks"] for ledger in ledgers),
        **({"num_unknown_reuse_tasks": num_unknown} if num_unknown else {}),
    }
