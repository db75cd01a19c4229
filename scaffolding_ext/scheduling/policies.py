"""The policies: who is served first among the programs that wait."""

from __future__ import annotations

from collections import Counter

from scaffolding_ext import require
from scaffolding_ext.request.progress import Progress
from scaffolding_ext.scheduling.base import AgeingPolicy, Policy


class Fifo(Policy):
    """Serves requests in the order in which they come, as an engine does by itself.

    A program that sends requests in rounds queues up anew for each round. Nobody starves.
    """

    def priority(self, progress: Progress) -> float:
        return 0.0


class Gang(Policy):
    """Serves the requests of the oldest program first, so that the requests of each program run together.

    A program ends with its last request: programs that are served by turns all end late. Nobody starves.

    Reference:
        Fu et al., "Efficiently Scaling LLM Reasoning with Certaindex" (Dynasor), on gang scheduling.
    """

    def priority(self, progress: Progress) -> float:
        return float(progress.number)


class LeastAttained(AgeingPolicy):
    """Serves the program with the fewest decoded tokens first: short programs end soon, and nothing is estimated.

    Reference:
        Nuyens and Wierman, "The Foreground-Background Queue: a Survey"; here between requests, since a running request
        is not interrupted.
    """

    def num_tokens(self, progress: Progress) -> float:
        return progress.num_tokens


class ShortestRemaining(AgeingPolicy):
    """Serves the program with the fewest expected further tokens first; nearly certain programs lead.

    The estimate of a program's remaining tokens has three factors: the steps that may still come, the share of them
    that its certaindex does not save (1 - certaindex), and the mean tokens of its steps. The mean is that of the
    program's own steps, shrunk to the mean of its kind: the kind's mean, over programs that have ended, counts as one
    step more.

    Reference:
        Fu et al., "Efficiently Scaling LLM Reasoning with Certaindex" (Dynasor): the remaining knob times the mean
        tokens of the program's own iterations.

    Deviation:
        In the paper the certaindex chooses the knob; here it shrinks what is left of the knob that the controller has.
        The paper does not say what stands for the mean before the first iteration has ended; here it is the kind's.
    """

    def __init__(self, phi: float = 0.05) -> None:
        super().__init__(phi)
        self._tokens: Counter[str] = Counter()  # of programs that have ended, by kind
        self._steps: Counter[str] = Counter()

    def num_tokens(self, progress: Progress) -> float:
        steps = progress.steps
        num_tokens, num_steps = float(progress.num_tokens), steps.num_done
        if self._steps[steps.kind]:
            num_tokens += self._tokens[steps.kind] / self._steps[steps.kind]
            num_steps += 1
        of_a_step = num_tokens / num_steps if num_steps else 1.0
        return steps.num_left * (1 - steps.certaindex) * of_a_step

    def learn(self, progress: Progress) -> None:
        if progress.num_tokens:
            self._tokens[progress.steps.kind] += progress.num_tokens
            self._steps[progress.steps.kind] += max(1, progress.steps.num_done)


class EarliestDeadline(Policy):
    """Serves the program with the earliest deadline first (`generate_async(deadline=...)`).

    Nobody starves, since programs that come later have later deadlines.

    Args:
        within: Seconds after its arrival at which a program without a deadline is due.

    Raises:
        ConfigError: It is not above 0.
    """

    def __init__(self, within: float = 60.0) -> None:
        self.within = require.number("within", within, above=0)

    def priority(self, progress: Progress) -> float:
        return progress.arrived + self.within if progress.deadline is None else progress.deadline
