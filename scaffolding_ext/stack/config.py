"""What a stack file holds, as validated models. An error names the path of the key at fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from scaffolding_ext import plain_yaml
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.registry import unknown_name

S = TypeVar("S", bound=BaseModel)
_MISSING = {  # of a key that a stack file lacks; right on one line as well, as commands print errors
    "controller": """is missing; a stack file needs a controller beside its workers, such as:
controller: {type: NativeGenerationController}""",
    "workers": """is missing, as in upstream's own files; add the workers that the controllers ask for:
workers: {generation: {type: HuggingFaceWorker, args: {model: tinylm/target}}}""",
}


class _Section(BaseModel):
    """A part of a stack file in which a key that nobody knows is an error."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, value: Any) -> Any:
        for key in value if isinstance(value, Mapping) else ():
            if key not in cls.model_fields:
                message = unknown_name("key", str(key), tuple(cls.model_fields))
                raise PydanticCustomError("unknown_key", "{message}", {"message": message, "key": str(key)})
        return value


class ComponentConfig(_Section):
    """A controller, a worker, a rule or a policy."""

    type: str = Field(description="A registered name, or `package.module:Class`.")
    args: dict[str, Any] = Field(
        default_factory=dict,
        description="Constructor arguments. A `{type, args}` in them is a component too, `{$ref: name}` a live object.",
    )


class PromptConfig(_Section):
    """How a question becomes a prompt; see `Prompting`."""

    model: str | None = Field(
        default=None,
        description="Whose tokenizer renders the prompt; null takes the `model` of the generation, target or draft "
        "worker.",
    )
    family: str | None = Field(
        default=None,
        description="Name of the prompt family: how thinking is marked, probed and closed. Null finds it from the "
        "model's files; `scaffolding-ext check` says which it is, and why.",
    )
    system_prompt: str | None = Field(default=None, description="Text before the question.")
    chat_template: bool = Field(default=True, description="Whether the tokenizer's chat template is used.")
    prompt_suffix: str | None = Field(
        default=None,
        description="Text after every question, such as the request to put the answer into a `\\boxed{}`.",
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        default=None,
        description="Further variables of the chat template, such as `{enable_thinking: false}` or `{reasoning_effort: "
        "high}`; one that the template never reads is refused.",
    )
    assistant_prefix: str | None = Field(
        default=None,
        description="Text with which the assistant's turn begins, such as `<think>` and a line break, where the "
        "template has not written it.",
    )
    trust_remote_code: bool = Field(
        default=False, description="Whether Python code that the tokenizer brings may be run."
    )


class DatasetConfig(_Section):
    """What `eval` runs on; a plain string stands for its `source`."""

    source: str = Field(
        description="A JSONL file; `hf:NAME`, a dataset of Hugging Face; `reasoning_gym:TASK`; `tinylm:held_out`, for "
        "the embedded problems."
    )
    num_samples: int | None = Field(
        default=None, ge=1, description="How many problems are drawn, of a task or the embedded ones; null means 100."
    )
    seed: int = Field(default=0, description="Which problems are drawn; of `gpqa`, in which order options stand.")
    kind: str | None = Field(default=None, description="One kind of the embedded problems only.")
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="A file's own names of `prompt`, `target`, `id` and `kind`, for those that it calls otherwise.",
    )
    skip_bad_rows: bool = Field(
        default=False,
        description="Whether a file's unusable rows are left out with a warning, instead of refusing the file.",
    )
    format: str | None = Field(
        default=None,
        description="How a benchmark writes its rows: `math500`, `aime`, `amc`, `gsm8k`, `multiple_choice` (MMLU, "
        "MMLU-Pro, ARC) or `gpqa`; null takes usual names, or what a known dataset of Hugging Face has.",
    )
    subset: str | None = Field(default=None, description="Configuration of a dataset of Hugging Face.")
    split: str | None = Field(
        default=None, description="Split of a dataset of Hugging Face; null takes that of a known one, else `test`."
    )
    args: dict[str, Any] = Field(default_factory=dict, description="Configuration of a reasoning-gym task.")


class EvaluationConfig(_Section):
    """How `eval` runs the dataset; an option of the command takes precedence over the key of its name."""

    limit: int | str | None = Field(
        default=None, description="`N`, the first N samples, or `A-B`, those from the A-th to the B-th; null takes all."
    )
    epochs: int = Field(default=1, ge=1, description="How often each sample is run.")
    total_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Decoded tokens for all questions together; the controller is a vote, and further samples go to "
        "the questions where it is least settled.",
    )
    spending: Literal["certaindex", "even"] = Field(
        default="certaindex",
        description="Who gets them: `certaindex`, the least settled votes, or `even`, all questions in turn.",
    )
    units_implied: bool | None = Field(
        default=None,
        description="Whether questions name the unit, so that `5 cm` is right where 5 is asked; null takes what the "
        "worker `compare` says, else true for the format `gsm8k`.",
    )
    keep_samples: bool = Field(
        default=False, description="Whether the records of votes hold their samples, each with its text."
    )
    request_timeout: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="Seconds after which a request fails."
    )
    slo: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Seconds within which an answer counts as in time; null takes the stack's `deadline`.",
    )
    deadline_times: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(
        default_factory=dict,
        description="Factors on `deadline` and `slo` by kind of question, such as `{hard: 3}`; others have 1.",
    )
    arrival_rate: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Requests that arrive in a second, by chance (by the run's seed). Null keeps "
        "`max_parallel_requests` in flight.",
    )
    burst: float = Field(
        default=1.0,
        gt=0,
        allow_inf_nan=False,
        description="Coefficient of variation of the times between arrivals: 1 is a Poisson process; above 1 they come "
        "in bursts.",
    )
    max_queue: int = Field(
        default=256,
        ge=0,
        description="Most requests that wait at an `arrival_rate`, beside the running ones; further ones are refused.",
    )
    fail_on_error: float = Field(
        default=0.0, ge=0, le=1, description="Share of the samples that may fail; if more do, the exit code is 1."
    )
    engine: Literal["local", "ray"] = Field(
        default="local", description="`local`, one stack in this process, or `ray`, one in each actor of a Ray cluster."
    )
    num_actors: int | None = Field(default=None, ge=1, description="Actors of `ray`, which needs it.")
    gpus_per_actor: float | None = Field(
        default=None, ge=0, description="GPUs that Ray assigns to an actor; null shares those of the cluster evenly."
    )
    output_path: str | None = Field(
        default=None, description="Folder of the run; null writes nothing. A run's own `config.yaml` does not name it."
    )
    price: dict[Literal["decoded", "prefilled", "reused"], Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        default_factory=dict,
        description="Price of a million tokens that were `decoded`, `prefilled` or `reused`; empty shows no costs.",
    )

    @model_validator(mode="after")
    def _check_actors(self) -> EvaluationConfig:
        if (self.engine == "ray") != (self.num_actors is not None):
            raise PydanticCustomError(
                "actors", "engine ray needs num_actors, and no other engine takes it: give both, or neither"
            )
        return self

    @model_validator(mode="after")
    def _check_arrivals(self) -> EvaluationConfig:
        if self.arrival_rate is not None and (self.engine != "local" or self.total_tokens is not None):
            raise PydanticCustomError(
                "arrivals", "arrival_rate needs the engine local, and no total_tokens: leave one of them out"
            )
        if self.arrival_rate is None and self.burst != 1:
            raise PydanticCustomError("arrivals", "burst is given without arrival_rate: set it, or leave burst out")
        return self

    @model_validator(mode="after")
    def _check_budget(self) -> EvaluationConfig:
        if self.total_tokens is not None and self.epochs > 1:
            raise PydanticCustomError(
                "budget",
                "epochs and total_tokens are both given, and total_tokens decides how often each question is run: "
                "leave epochs out",
            )
        if self.total_tokens is None and self.spending != "certaindex":
            raise PydanticCustomError(
                "budget", "spending is given without total_tokens: set total_tokens, or leave spending out"
            )
        return self


class TunedConfig(_Section):
    """Where a tuned stack comes from, and what was found of it; `scaffolding-ext tune` writes it."""

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


class StackConfig(_Section):
    """A stack file."""

    controller: ComponentConfig = Field(description="The outermost controller.")
    workers: dict[str, ComponentConfig] = Field(
        min_length=1,
        description="Workers by tag (generation, draft, target, reward, compare, or a tag of the controllers' own).",
    )
    prompt: PromptConfig | None = Field(
        default=PromptConfig(), description="Prompting of the outermost controller; an explicit null turns it off."
    )
    seed: int | None = Field(default=None, description="Seed of the run.")
    max_parallel_requests: int = Field(default=64, ge=1, description="Requests that run at once.")
    scheduling: ComponentConfig | None = Field(
        default=None, description="The policy that says which requests are served first; null is whoever came first."
    )
    deadline: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Seconds within which an answer is wanted, for the policy of `scheduling`; a request may give its "
        "own. A late request goes on.",
    )
    opentelemetry: bool = Field(
        default=False,
        description="Whether requests become spans of OpenTelemetry, which its own variables send on; needs the extra "
        "`otel`.",
    )
    loops: bool | ComponentConfig | None = Field(
        default=None,
        description="Whether a chain that repeats itself is ended and asked for its answer: true, false, or `{type: "
        "loop, args: ...}`, the stopping rule. Null is true for thinking models behind `serve`, else false.",
    )
    dataset: DatasetConfig | None = Field(default=None, description="What `eval` runs on.")
    evaluation: EvaluationConfig = Field(default=EvaluationConfig(), description="How `eval` runs the dataset.")
    sampling: dict[str, Any] = Field(
        default_factory=dict,
        description="Defaults for the `sampling_params` of every innermost controller that takes them; its own values "
        "win.",
    )
    tuned: TunedConfig | None = Field(
        default=None,
        description="What `scaffolding-ext tune` made this stack from. A warning says if the stack now runs another "
        "model, or samples in another way.",
    )

    @model_validator(mode="after")
    def _check_deadlines(self) -> StackConfig:
        if self.evaluation.deadline_times and self.deadline is None and self.evaluation.slo is None:
            raise PydanticCustomError("deadline", "evaluation.deadline_times are multiples of deadline: set it, too")
        return self

    @field_validator("dataset", mode="before")
    @classmethod
    def _expand_source(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value

    def to_yaml(self) -> str:
        """The stack file that gives this stack again, overrides included."""
        return plain_yaml.dump(self.resolved())

    def resolved(self) -> dict[str, Any]:
        """What the stack file would hold with all overrides."""
        return self.model_dump(exclude_unset=True)

    def sampling_of_samples(self) -> dict[str, Any]:
        """Sampling fields of one sample: those of the innermost controller, and of the stack, which hold over them."""
        args: Any = self.controller.args
        while isinstance(args.get("generation_controller"), dict):
            args = args["generation_controller"].get("args") or {}
        return {**(args.get("sampling_params") or {}), **(self.sampling or {})}

    def for_run(self) -> StackConfig:
        """As it is kept with a run: dataset and evaluation with their defaults, without the folder, and with a seed."""
        dataset = None if self.dataset is None else DatasetConfig(**self.dataset.model_dump())
        evaluation = EvaluationConfig(**self.evaluation.model_dump(exclude={"output_path"}))
        seed = 0 if self.seed is None else self.seed  # a run that can be repeated
        return self.model_copy(update={"dataset": dataset, "evaluation": evaluation, "seed": seed})


def validated(section: type[S], value: Any, path: str = "") -> S:
    """The value as a section of a stack file that stands at `path`.

    Raises:
        ConfigError: A key or a value in it is wrong.
    """
    try:
        return section.model_validate(value)
    except ValidationError as error:
        first, *others = (_described(detail, path) for detail in error.errors())
        message = "; ".join([first[1], *(f"{key}: {message}" for key, message in others)])
        raise ConfigError(message, first[0]) from error


def _described(detail: Any, path: str) -> tuple[str, str]:
    """Dotted key and message of one of pydantic's errors."""
    context = detail.get("ctx", {})
    keys = [*([path] if path else []), *detail["loc"], *([context["key"]] if detail["type"] == "unknown_key" else [])]
    message = detail["msg"]
    if detail["type"] == "missing":
        message = _MISSING.get(".".join(map(str, keys)), "is missing, and has no default")
    if detail["type"] not in ("missing", "unknown_key"):
        message = f"{message[0].lower()}{message[1:]}, but it is {detail['input']!r}"
    return ".".join(map(str, keys)), message
