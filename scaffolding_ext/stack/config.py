"""What a stack file holds, as validated models. An error names the path of the key at fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from scaffolding_ext import plain_yaml
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.registry import unknown_name

S = TypeVar("S", bound=BaseModel)
_WORKERS = """
workers:
  generation:
    type: HuggingFaceWorker
    args: {model: tinylm/target}"""


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
    """A controller or worker.

    Attributes:
        type: A registered name, or `package.module:Class`.
        args: Constructor arguments. A dict `{type, args}` in them is a component too, `{"$ref": name}` a live object.
    """

    type: str
    args: dict[str, Any] = Field(default_factory=dict)


class PromptConfig(_Section):
    """How a question becomes a prompt; see `Prompting`.

    Attributes:
        model: Whose tokenizer renders the prompt; None takes the `model` of the generation, target or draft worker.
        family: Name of the prompt family; None guesses it from the model's name.
        system_prompt: Goes before the question.
        chat_template: Whether the tokenizer's chat template is used.
    """

    model: str | None = None
    family: str | None = None
    system_prompt: str | None = None
    chat_template: bool = True


class DatasetConfig(_Section):
    """What `eval` runs on; a plain string stands for its `source`.

    Attributes:
        source: A JSONL file, or `tinylm:held_out` for the embedded problems.
        num_samples: How many embedded problems are drawn; None means 100.
        seed: Which embedded problems are drawn.
        kind: One kind of the embedded problems only.
        columns: A file's own names of `prompt`, `target`, `id` and `kind`, for those that it calls otherwise.
        skip_bad_rows: Whether a file's unusable rows are left out with a warning, instead of refusing the file.
    """

    source: str
    num_samples: int | None = Field(default=None, ge=1)
    seed: int = 0
    kind: str | None = None
    columns: dict[str, str] = Field(default_factory=dict)
    skip_bad_rows: bool = False


class StackConfig(_Section):
    """A stack file.

    Attributes:
        controller: The outermost controller.
        workers: Workers by tag (generation, draft, target, reward, compare, or a tag of the controllers' own).
        prompt: Prompting of the outermost controller; an explicit null turns it off.
        seed: Seed of the run.
        max_parallel_requests: Requests that run at once.
        dataset: What `eval` runs on.
        sampling: Defaults for the `sampling_params` of every innermost controller that takes them; its own values win.
    """

    controller: ComponentConfig
    workers: dict[str, ComponentConfig] = Field(min_length=1)
    prompt: PromptConfig | None = PromptConfig()
    seed: int | None = None
    max_parallel_requests: int = Field(default=64, ge=1)
    dataset: DatasetConfig | None = None
    sampling: dict[str, Any] = Field(default_factory=dict)

    @field_validator("dataset", mode="before")
    @classmethod
    def _expand_source(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value

    def to_yaml(self) -> str:
        """The stack file that gives this stack again, overrides included."""
        return plain_yaml.dump(self.model_dump(exclude_unset=True))


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
    if detail["type"] == "missing" and keys == ["workers"]:
        message = f"is missing, as in upstream's own files; add the workers that the controllers ask for:\n{_WORKERS}"
    if detail["type"] not in ("missing", "unknown_key"):
        message = f"{message[0].lower()}{message[1:]}, but it is {detail['input']!r}"
    return ".".join(map(str, keys)), message
