"""Chains that are decoded an interval at a time, by the controller that AutoTTS's search found."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from scaffolding_ext.controllers.vote.allocation.adaptive_consistency import beta_probability
from scaffolding_ext.controllers.vote.voting import vote

INTERVAL = 500  # tokens


class Chain(NamedTuple):
    """A recorded chain.

    Attributes:
        answer: Class of its answer; chains without one have a class too.
        probes: Class of the answer asked for after each interval.
    """

    answer: int
    num_tokens: int
    probes: tuple[int, ...] = ()


class Played(NamedTuple):
    """A controller's result on one question.

    Attributes:
        path: Tokens on the longest path: what is decoded at once counts as its longest piece.
    """

    answer: int
    num_tokens: int
    path: int


class Branch:
    """A chain that is decoded an interval at a time.

    Attributes:
        answer: The answer asked for after the last interval; in the end, the chain's own.
        against: Rounds in a row in which it disagreed with the majority.
    """

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self.num_steps = self.num_tokens = self.against = 0
        self.answer = -1
        self.is_finished = self.is_dropped = False

    @property
    def is_active(self) -> bool:
        return not (self.is_finished or self.is_dropped)

    def step(self) -> int:
        """Decode an interval, or the rest of the chain; return the number of tokens."""
        probes = self._chain.probes
        if self.num_steps < len(probes):
            self.answer, num_tokens = probes[self.num_steps], INTERVAL
        else:
            self.answer, self.is_finished = self._chain.answer, True
            num_tokens = max(0, self._chain.num_tokens - self.num_tokens)
        self.num_steps += 1
        self.num_tokens += num_tokens
        return num_tokens


def confidence_momentum(chains: Sequence[Chain], *, beta: float = 0.5) -> Played:
    """Stop when a moving average of the vote's confidence is high and does not fall; open chains while it stands still.

    A chain that agrees with the finished ones advances faster, one that keeps disagreeing is dropped. New chains write
    their first interval beside the next round.

    Args:
        beta: Sets every threshold; 0 spends least, 1 most.

    Reference: Zheng et al., AutoTTS (arXiv:2605.08083), Confidence Momentum Controller.
    """
    most = min(len(chains), round(4 + 60 * beta))
    warm_up, patience = max(2, round(2 + 8 * beta)), max(3, round(3 + 9 * beta))
    inertia = 1 - round(0.7 - 0.4 * beta, 4)
    threshold, slack = round(0.85 + 0.12 * beta, 4), round(0.04 - 0.03 * beta, 4)
    burst, widen = max(1, round(1 + 2 * beta)), max(1, round(1 + 3 * beta))
    branches, finished = [Branch(chain) for chain in chains[: max(2, round(2 + 6 * beta))]], list[int]()
    opened, path, average = branches, 0, 0.0
    history: deque[float] = deque(maxlen=max(2, round(2 + 6 * beta)))
    for round_number in range(500):
        pieces = [_advance(branch, 1, finished) for branch in opened]
        leader, confidence = _pool(finished)
        average = inertia * average + (1 - inertia) * confidence
        history.append(average)
        is_warm = round_number >= warm_up and bool(finished)
        if is_warm:
            for branch in branches:
                if branch.is_active:
                    branch.against = branch.against + 1 if branch.answer != leader else 0
            lost = sorted((b for b in branches if b.is_active and b.against >= patience), key=lambda b: -b.against)
            for branch in lost[: max(0, sum(b.is_active for b in branches) - 2)]:
                branch.is_dropped = True
        active = sorted((b for b in branches if b.is_active), key=lambda b: -b.num_steps)
        pieces += [_advance(b, burst if is_warm and b.answer == leader else 1, finished) for b in active]
        path += max(pieces, default=0)
        leader, confidence = _pool(finished)
        average = history[-1] = inertia * average + (1 - inertia) * confidence
        trend = history[-1] - history[0]
        is_sure = average >= threshold
        if is_sure and round_number >= warm_up and len(finished) >= max(2, round(2 + 3 * beta)) and trend >= -slack:
            break
        if not any(branch.is_active for branch in branches):
            break
        opened = []
        if round_number >= max(1, warm_up // 2) and not is_sure and trend <= slack:
            opened = [Branch(chain) for chain in chains[len(branches) : min(most, len(branches) + widen)]]
            branches = branches + opened
    answer = vote(finished or [branch.answer for branch in branches if not branch.is_dropped])
    return Played(answer, sum(branch.num_tokens for branch in branches), path)


def _advance(branch: Branch, num_steps: int, finished: list[int]) -> int:
    num_tokens = 0
    for _ in range(num_steps):
        if branch.is_active:
            num_tokens += branch.step()
            if branch.is_finished:
                finished.append(branch.answer)
    return num_tokens


def _pool(finished: Sequence[int]) -> tuple[int, float]:
    """Return the leader of the finished chains, and the probability that it beats the second."""
    counts = sorted((finished.count(answer) for answer in set(finished)), reverse=True)
    if not counts:
        return -1, 0.0
    return vote(finished), beta_probability(counts[0], counts[1] if len(counts) > 1 else 0)
