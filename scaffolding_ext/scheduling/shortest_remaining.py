"""Shortest remaining first, by certaindex."""

from __future__ import annotations

from collections import Counter

from scaffolding_ext.request.progress import Progress
from scaffolding_ext.scheduling.base import AgeingPolicy


class ShortestRemaining(AgeingPolicy):
    """Serves the program first that is expected to end with the fewest further tokens; the nearly certain come first.

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
