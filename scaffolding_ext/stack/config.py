"""Validated models of a stack file; errors name the path of the wrong key."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from scaffolding_ext import plain_yaml
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.registry import unknown_name

S = TypeVar("S", bound=BaseModel)
_MISSING = {  # by missing key; also readable on one line, as commands print errors
    "controller": """is missing; a stack file needs a controller beside its workers, such as:
controller: {type: NativeGenerationController}""",
    "workers": """is missing, as in upstream's own files; add the workers that the controllers ask for:
workers: {generation: {type: HuggingFaceWorker, args: {model: tinylm/target}}}""",
}


class Section(BaseModel):
    """A part of a stack file; unknown keys are errors."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, value: Any) -> Any:
        for key in value if isinstance(value, Mapping) else ():
            if key not in cls.model_fields:
                message = unknown_name("key", str(key), tuple(cls.model_fields))
                raise PydanticCustomError("unknown_key", "{message}", {"message": message, "key": str(key)})
        return value


class ComponentConfig(Section):
    """A controller, a worker, a rule or a policy."""

    type: str = Field(description="A registered name, or `package.module:Class`.")
    args: dict[str, Any] = Field(
        default_factory=dict,
        description="Constructor arguments. A `{type, args}` in them is a component too, `{$ref: name}` a live object.",
    )


class PromptConfig(Section):
    """Prompting of a question; see `Prompting`."""

    model: str | None = Field(
        default=None,
        description="Model whose tokenizer renders the prompt; null takes the `model` of the generation, target or "
        "draft worker.",
    )
    family: str | None = Field(
        default=None,
        description="Name of the prompt family, which marks, probes and closes thinking. Null finds it from the "
        "model's files; `scaffolding-ext check` shows it with the reason.",
    )
    system_prompt: str | None = Field(default=None, description="Text before the question.")
    chat_template: bool = Field(default=True, description="Use the tokenizer's chat template.")
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
        description="Beginning of the assistant's turn, such as `<think>` and a line break, if the template does not "
        "write it.",
    )
    trust_remote_code: bool = Field(default=False, description="Allow Python code that comes with the tokenizer.")


class DatasetConfig(Section):
    """Dataset of `eval`; a plain string stands for its `source`."""

    source: str = Field(
        description="A JSONL or CSV file; `hf:NAME`, a dataset of Hugging Face; `reasoning_gym:TASK`; "
        "`tinylm:held_out`, for the embedded problems."
    )
    num_samples: int | None = Field(
        default=None, ge=1, description="Problems drawn from a task or the embedded ones; null means 100."
    )
    seed: int = Field(default=0, description="Seed of the drawn problems, and of the order of `gpqa`'s options.")
    kind: str | None = Field(default=None, description="One kind of the embedded problems only.")
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="A file's names of `prompt`, `context`, `target`, `id` and `kind`, if they differ.",
    )
    skip_bad_rows: bool = Field(
        default=False,
        description="Skip a file's unusable rows with a warning, instead of refusing the file.",
    )
    format: str | None = Field(
        default=None,
        description="Row format of a benchmark: `math500`, `aime`, `amc`, `gsm8k`, `multiple_choice` (MMLU, MMLU-Pro, "
        "ARC) or `gpqa`; null takes the usual names, or the format of a known Hugging Face dataset.",
    )
    subset: str | None = Field(default=None, description="Configuration of a Hugging Face dataset.")
    split: str | None = Field(
        default=None, description="Split of a Hugging Face dataset; null takes that of a known one, else `test`."
    )
    args: dict[str, Any] = Field(default_factory=dict, description="Configuration of a reasoning-gym task.")


READERS = {  # of sections read by evaluation, loaded only when a stack has them
    "evaluation": "scaffolding_ext.evaluation.stack_sections:EvaluationConfig",
    "tuned": "scaffolding_ext.evaluation.stack_sections:TunedConfig",
}


def section_reader(name: str) -> Any:
    """Return the model that validates a section read by another package."""
    module, _, model = READERS[name].partition(":")
    return getattr(importlib.import_module(module), model)


class StackConfig(Section):
    """A stack file."""

    controller: ComponentConfig = Field(description="The outermost controller.")
    workers: dict[str, ComponentConfig] = Field(
        min_length=1,
        description="Workers by tag (generation, draft, target, reward, compare, or a tag that a controller defines).",
    )
    prompt: PromptConfig | None = Field(
        default=PromptConfig(), description="Prompting of the outermost controller; an explicit null turns it off."
    )
    seed: int | None = Field(default=None, description="Seed of the run.")
    max_parallel_requests: int = Field(default=64, ge=1, description="Requests that run at once.")
    scheduling: ComponentConfig | None = Field(
        default=None, description="Policy that orders requests; null serves them in order of arrival."
    )
    deadline: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Seconds within which an answer is wanted, for the policy of `scheduling`; a request may set "
        "another. A late request continues.",
    )
    opentelemetry: bool = Field(
        default=False,
        description="Export requests as OpenTelemetry spans, as its environment variables say; needs the extra `otel`.",
    )
    loops: bool | dict[str, Any] | None = Field(
        default=None,
        description="End a chain that repeats itself and ask for its answer: true, false, or a mapping such as "
        "`{repeats: 4}` (arguments of `Loops`). Null is true for thinking models behind `serve`, else false.",
    )
    audit: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the requests, drawn by their seeds, that run again behind their answer with nothing to "
        "stop them; the two answers are compared. Needs a seed.",
    )
    dataset: DatasetConfig | None = Field(default=None, description="Dataset of `eval`.")
    evaluation: Any = Field(default_factory=lambda: section_reader("evaluation")(), description="Settings of `eval`.")
    sampling: dict[str, Any] = Field(
        default_factory=dict,
        description="Defaults for the `sampling_params` of every innermost controller that takes them; values set "
        "there win.",
    )
    tuned: Any = Field(
        default=None,
        description="Origin of a stack made by `scaffolding-ext tune`. A warning is given if the stack now runs "
        "another model or samples differently.",
    )

    @field_validator(*READERS, mode="before")
    @classmethod
    def _read_by_its_owner(cls, value: Any, info: ValidationInfo) -> Any:
        assert info.field_name is not None
        model = section_reader(info.field_name)
        if isinstance(value, model) or (value is None and info.field_name == "tuned"):
            return value
        try:
            return model.model_validate(value)
        except ValidationError as error:
            key, message = _described(error.errors()[0], "")
            raise PydanticCustomError("section", "{message}", {"message": message, "key": key}) from error

    @field_validator("dataset", mode="before")
    @classmethod
    def _expand_source(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value

    def to_yaml(self) -> str:
        return plain_yaml.dump(self.resolved())

    def resolved(self) -> dict[str, Any]:
        """Return the stack file's data, overrides included."""
        return self.model_dump(exclude_unset=True)

    def sampling_of_samples(self) -> dict[str, Any]:
        """Return the sampling fields of one sample: the stack's, overridden by the innermost controller's."""
        args: Any = self.controller.args
        while isinstance(args.get("generation_controller"), dict):
            args = args["generation_controller"].get("args") or {}
        return {**(self.sampling or {}), **(args.get("sampling_params") or {})}

    def for_run(self) -> StackConfig:
        """Return the config to keep with a run: all defaults of dataset and evaluation, no folder, and a seed."""
        dataset = None if self.dataset is None else DatasetConfig(**self.dataset.model_dump())
        evaluation = type(self.evaluation)(**self.evaluation.model_dump(exclude={"output_path"}))
        seed = 0 if self.seed is None else self.seed  # makes the run repeatable
        return self.model_copy(update={"dataset": dataset, "evaluation": evaluation, "seed": seed})


def validated(section: type[S], value: Any, path: str = "") -> S:
    """Validate a value as a section of a stack file at `path`.

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
    context = detail.get("ctx", {})
    keys = [*([path] if path else []), *detail["loc"], *([context["key"]] if context.get("key") else [])]
    message = detail["msg"]
    if detail["type"] == "missing":
        message = _MISSING.get(".".join(map(str, keys)), "is missing, and has no default")
    if detail["type"] not in ("missing", "unknown_key", "section"):
        message = f"{message[0].lower()}{message[1:]}, but it is {detail['input']!r}"
    return ".".join(map(str, keys)), message
