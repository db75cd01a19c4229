"""One sample of a vote, and what is published of several."""

from __future__ import annotations

from collections.abc import Sequence

from scaffolding_ext.errors import NoOutputError
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.relay import Visit
from scaffolding_ext.protocol.task_results import sampled_logprobs
from scaffolding_ext.request.figures import Answers, KeptSample
from scaffolding_ext.request.parts import Part
from scaffolding_ext.request.program import current_program


class Sample(Part):
    """One run of a sub-controller.

    Attributes:
        index: Number among the samples of its prompt; its seed derives from it.
        answer: The sub-controller's extracted answer, once it has ended; extracted here if that controller is foreign.
        reward: Score of a reward controller, if there is one.
        seconds: Duration, if the caller keeps samples.
    """

    def __init__(self, index: int, task: GenerationTask, look: Visit | None = None) -> None:
        super().__init__(look)
        self.index = index
        self.task = task
        self.answer: str | None = None
        self.reward: float | None = None
        self.seconds: float | None = None

    @property
    def num_decoded(self) -> int:
        """Decoded tokens, probes included, without those that were discarded."""
        return self.ledger.num_kept


def published_answers(samples: Sequence[Sample], classes: Sequence[int] | None = None) -> Answers:
    """Return the samples' answers for an evaluation, with the samples themselves if the caller keeps them."""
    program, answers = current_program(), [sample.answer for sample in samples]
    if program is None or not program.caller.keeps_samples:
        return Answers(answers, classes)
    kept = [
        KeptSample(
            sample.answer,
            sample.num_decoded,
            sample.seconds,
            _mean_logprob(sample),
            sample.task.output_str or "",
            sample.reward,
        )
        for sample in samples
    ]
    return Answers(answers, classes, kept)


def _mean_logprob(sample: Sample) -> float | None:
    try:
        logprobs = sampled_logprobs(sample.task.output_tokens, sample.task.logprobs or [])
    except NoOutputError:
        return None
    return sum(logprobs) / len(logprobs) if logprobs else None
