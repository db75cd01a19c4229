"""The section `tuned` of a stack file: what `tune` found."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from scaffolding_ext.stack.config import Section, StackConfig


class TunedConfig(Section):
    """The origin and the figures of a tuned stack; `scaffolding-ext tune` writes them.

    Attributes:
        setting: The choice, in words.
        model: The model whose samples it was chosen on; None for several.
        data: SHA-256 of the log.
        dataset: The dataset, if a stack drew the samples.
        samples_drawn: Number of the log's questions that drew 0, 1, 2 and more samples under the vote's rule. `eval`
            warns if its votes draw others.
        cost_share: The cost, as a share of that of all samples.
        points: Percentage points above the vote of all samples with their 95 % interval, on questions that did not
            choose.
        max_loss: The promised loss: the share of questions that stopping may make wrong. Audits hold against it.
    """

    setting: str
    model: str | None = None
    sampling: dict[str, Any] | None = None
    data: str
    tasks: list[str] = Field(default_factory=list)
    dataset: str | None = None
    num_questions: int
    num_samples: int
    measure: Literal["accuracy", "agreement"]
    samples_drawn: list[int] | None = None
    cost: str
    cost_share: float
    points: list[float]
    promise: str | None = None
    max_loss: float | None = Field(default=None, gt=0, lt=1)
    date: str
    version: str

    def differences(self, stack: StackConfig) -> list[str]:
        """Sentences on what the stack runs otherwise than the samples that it was tuned on."""
        worker = stack.workers.get("generation")
        again = "tune it on samples of its own: scaffolding-ext tune"
        model = None if worker is None else worker.args.get("model")
        found = []
        if None not in (self.model, model) and self.model != model:
            found.append(f"the stack was tuned on samples of {self.model!r} and runs {model!r}; {again}")
        sampling = stack.sampling_of_samples()
        for name, value in (self.sampling or {}).items():
            if name in sampling and sampling[name] != value:
                found.append(
                    f"the stack was tuned on samples with {name} {value!r} and samples with {sampling[name]!r}; {again}"
                )
        if self.dataset is not None and stack.dataset is not None and self.dataset != stack.dataset.source:
            found.append(
                f"the stack was tuned on {self.dataset!r} and its dataset is {stack.dataset.source!r}; {again}"
            )
        return found
