"""Stack files: YAML to validated models. An error names the path of the key at fault."""

from __future__ import annotations

import difflib
import importlib.resources
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError
from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import YAMLError

from scaffolding_ext.errors import ConfigError, UnknownNameError
from scaffolding_ext.registry import unknown_name

Source = str | os.PathLike[str] | Mapping[str, Any]
S = TypeVar("S", bound=BaseModel)
_PACKAGED = "configs:"


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
    """

    source: str
    num_samples: int | None = Field(default=None, ge=1)
    seed: int = 0
    kind: str | None = None


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
        text = io.StringIO()
        _yaml().dump(self.model_dump(exclude_unset=True), text)
        return text.getvalue()


def load_config(source: Source, overrides: Sequence[str] = ()) -> StackConfig:
    """Read and validate a stack.

    Args:
        source: Path of a YAML file, `configs:NAME` for one that ships with the package, or a dict of the same shape.
        overrides: `key.path=value` each, applied in order; the value is read as YAML.

    Raises:
        ConfigError: The file cannot be read, or a key or value in it is wrong; `key` holds the dotted path.
    """
    stack = _containers_copied(source) if isinstance(source, Mapping) else _read_yaml(source)
    for override in overrides:
        _override(stack, override)
    return validated(StackConfig, stack)


def packaged_stacks() -> dict[str, Path]:
    """The stack files that ship with the package, by the names that `configs:NAME` takes."""
    folder = Path(str(importlib.resources.files("scaffolding_ext.configs")))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


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


def _yaml() -> YAML:
    """YAML 1.2, plain data only; a reader and writer for one document."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # its stub knows None alone
    return yaml


def _parse_yaml(text: str, what: str) -> Any:
    try:
        return _yaml().load(text)
    except DuplicateKeyError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        problem = str(error.problem).partition(" with value")[0]
        raise ConfigError(f"{what}{line}: {problem}; keep one of the two") from error
    except YAMLError as error:
        raise ConfigError(f"{what} is no valid YAML: {error}") from error


def _read_yaml(source: str | os.PathLike[str]) -> dict[str, Any]:
    name = os.fspath(source)
    if name.startswith(_PACKAGED):
        path = _packaged(name.removeprefix(_PACKAGED))
    else:
        path = Path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read the stack file {name}: {error}"
        close = difflib.get_close_matches(path.stem, packaged_stacks(), n=1)
        hint = f" (did you mean {_PACKAGED}{close[0]}?)" if close and isinstance(error, FileNotFoundError) else ""
        raise ConfigError(message + hint) from error
    stack = _parse_yaml(text, name)
    if not isinstance(stack, dict):
        raise ConfigError(f"{name} holds no mapping; a stack file has the keys {', '.join(StackConfig.model_fields)}")
    return stack


def _packaged(name: str) -> Path:
    known = packaged_stacks()
    if name not in known:
        raise UnknownNameError(unknown_name("packaged stack", name, tuple(known)))
    return known[name]


def _containers_copied(value: Any) -> Any:
    """A copy whose dicts and lists are new; live objects in them stay the same."""
    if isinstance(value, Mapping):
        return {key: _containers_copied(item) for key, item in value.items()}
    return [_containers_copied(item) for item in value] if isinstance(value, list) else value


def _override(stack: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"the override {override!r} is not of the form key.path=value")
    node: Any = stack
    for depth, key in enumerate(keys[:-1]):
        at = ".".join(keys[: depth + 1])
        if isinstance(node, list):
            node = node[_index(node, key, at)]
        else:
            if node.get(key) is None:
                node[key] = {}
            node = node[key]
        if at == "dataset" and isinstance(node, str):
            node = stack["dataset"] = {"source": node}
        if not isinstance(node, (dict, list)):
            raise ConfigError(f"is {node!r}, so {path!r} cannot be set inside it", at)
    value = _parse_yaml(text, f"the value of {path}")
    if isinstance(node, list):
        node[_index(node, keys[-1], path)] = value
    else:
        node[keys[-1]] = value


def _index(items: list[Any], key: str, path: str) -> int:
    if not key.isdecimal() or int(key) >= len(items):
        raise ConfigError(f"{key!r} is no index of a list with {len(items)} entries", path)
    return int(key)


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
