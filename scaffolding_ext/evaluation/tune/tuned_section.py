"""The section `tuned` of a stack file: what `tune` found."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from scaffolding_ext.stack.config import Section, StackConfig


class TunedConfig(Section):
    """The origin and the figures of a tuned stack; `scaffolding-ext tune` writes them."""

    setting: str = Field(description="What was chosen, in words.")
    model: str | None = Field(default=None, description="Whose samples it was chosen on; null for several models.")
    sampling: dict[str, Any] | None = Field(default=None, description="How they were sampled, where that is known.")
    data: str = Field(description="SHA-256 of the log.")
    tasks: list[str] = Field(default_factory=list, description="Benchmarks in the log.")
    dataset: str | None = Field(default=None, description="The dataset, where a stack drew the samples.")
    num_questions: int = Field(description="Questions in the log.")
    num_samples: int = Field(description="Samples of each question.")
    measure: Literal["accuracy", "agreement"] = Field(
        description="Whether answers were held against gold answers, or against the vote of all samples."
    )
    samples_drawn: list[int] | None = Field(
        default=None,
        description="How many of the log's questions drew 0, 1, 2 and more samples under the vote's rule. `eval` warns "
        "where its votes draw others.",
    )
    cost: str = Field(description="The cost that was to be small.")
    cost_share: float = Field(description="The cost, as a share of that of all samples.")
    points: list[float] = Field(
        description="Percentage points above the vote of all samples, and their 95 % interval, on questions that did "
        "not choose."
    )
    promise: str | None = Field(default=None, description="What is promised of further questions; null: nothing.")
    max_loss: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="The promised loss: the share of questions that stopping may make wrong. Audits hold against it.",
    )
    date: str = Field(description="Day of the choice, ISO 8601.")
    version: str = Field(description="Version of this package that chose.")

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
