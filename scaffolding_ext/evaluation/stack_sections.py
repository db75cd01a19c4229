"""Sections of a stack file for evaluation: `evaluation` configures `eval`, `tuned` holds the result of `tune`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from scaffolding_ext.stack.config import Section, StackConfig


class EvaluationConfig(Section):
    """Settings of `eval`; an option of the command takes precedence over the key of its name."""

    limit: int | str | None = Field(
        default=None, description="`N`, the first N questions, or `A-B`, questions A to B; null takes all."
    )
    epochs: int = Field(default=1, ge=1, description="Times that each question is asked.")
    total_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Total decoded tokens for all questions of a vote; further answers go to the least settled "
        "questions.",
    )
    until: str | None = Field(
        default=None,
        description="End the run when its result is known at 95 %: `±2`, the accuracy to within 2 points, or `vs RUN`, "
        "better, worse, or within a margin (`vs RUN ±1`; 2 points if none is given). Questions are asked in random "
        "order, by the run's seed.",
    )
    units_implied: bool | None = Field(
        default=None,
        description="Questions name the unit, so that `5 cm` is right if the target is 5; null takes the setting of "
        "the worker `compare`, else true for the format `gsm8k`.",
    )
    keep_samples: bool = Field(
        default=False, description="Keep the answers of votes in their records, each with its text."
    )
    num_logprobs: int = Field(
        default=20,
        ge=0,
        description="Log-probabilities per token of chains that `--probe_every` records; 0 if the worker reports none.",
    )
    request_timeout: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="Seconds after which a request fails."
    )
    fail_on_error: float = Field(
        default=0.0, ge=0, le=1, description="Share of requests that may fail; if more do, the exit code is 1."
    )
    outage_seconds: float = Field(
        default=600.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds to wait for a server that is down; then the run stops, to be resumed. 0 records its "
        "requests as failed.",
    )
    num_actors: int | None = Field(
        default=None, ge=1, description="Actors of a Ray cluster, each with its own stack; null runs in this process."
    )
    gpus_per_actor: float | None = Field(
        default=None, ge=0, description="GPUs that Ray assigns to an actor; null divides those of the cluster evenly."
    )
    output_path: str | None = Field(
        default=None, description="Folder of the run; null writes nothing. A run's own `config.yaml` does not name it."
    )
    price: dict[Literal["decoded", "prefilled", "reused"], Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        default_factory=dict,
        description="Price of a million tokens that were `decoded`, `prefilled` or `reused`; empty shows no costs.",
    )

    @model_validator(mode="after")
    def _check_budget(self) -> EvaluationConfig:
        if self.until is not None and self.total_tokens is not None:
            raise PydanticCustomError("until", "until takes no total_tokens: leave one of them out")
        if self.total_tokens is not None and self.epochs > 1:
            raise PydanticCustomError(
                "budget",
                "epochs and total_tokens are both given, but total_tokens decides how often each question is run: "
                "leave epochs out",
            )
        return self


class TunedConfig(Section):
    """Origin and figures of a tuned stack; `scaffolding-ext tune` writes them.

    Attributes:
        setting: The choice, in words.
        model: The model whose samples it was chosen on; None for several.
        data: SHA-256 of the log.
        dataset: The dataset, if a stack drew the samples.
        cost_share: The cost, as a share of that of all samples.
        points: Percentage points above the vote of all samples with their 95 % interval, on questions that had no part
            in the choice.
        max_loss: The promised loss: the share of questions that stopping may make wrong. Audits check it.
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
    cost: str
    cost_share: float
    points: list[float]
    promise: str | None = None
    max_loss: float | None = Field(default=None, gt=0, lt=1)
    date: str
    version: str

    def differences(self, stack: StackConfig) -> list[str]:
        """Describe differences between the stack and the samples that it was tuned on."""
        worker = stack.workers.get("generation")
        again = "tune it on its own samples: scaffolding-ext tune"
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
