"""Read a stack from a file, a packaged one or a dict, with overrides from the command line."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scaffolding_ext import plain_yaml
from scaffolding_ext.documents import PACKAGED, packaged_recipes, packaged_stacks
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.registry import unknown_name
from scaffolding_ext.stack.config import StackConfig, validated


class TunedStackWarning(UserWarning):
    """A tuned stack runs with another model, dataset or sampling than it was tuned on."""


Source = str | os.PathLike[str] | Mapping[str, Any]


def load_config(source: Source, overrides: Sequence[str] = ()) -> StackConfig:
    """Read and validate a stack.

    Args:
        source: Path of a YAML file, `configs:NAME` for a packaged one, or a dict of the same structure.
        overrides: `key.path=value` each, applied in order; the value is read as YAML; a text keeps its outer blanks.

    Raises:
        ConfigError: The file cannot be read, or a key or value in it is wrong; `key` holds the dotted path.
    """
    try:
        stack = _containers_copied(source) if isinstance(source, Mapping) else _read(source)
    except RecursionError as error:
        raise ConfigError("the mapping holds itself, or is nested too deeply") from error
    for override in overrides:
        _override(stack, override)
    config = validated(StackConfig, stack)
    for difference in [] if config.tuned is None else config.tuned.differences(config):
        warnings.warn(difference, TunedStackWarning, stacklevel=2)
    return config


def _read(source: str | os.PathLike[str]) -> dict[str, Any]:
    name = os.fspath(source)
    if name.startswith(PACKAGED):
        path = _packaged(name.removeprefix(PACKAGED))
    else:
        path = Path(name)
    try:
        stack = plain_yaml.read(path)
    except OSError as error:
        message = f"cannot read the stack file {name}: {error}"
        close = difflib.get_close_matches(path.stem, packaged_stacks(), n=1)
        hint = f" (did you mean {PACKAGED}{close[0]}?)" if close and isinstance(error, FileNotFoundError) else ""
        raise ConfigError(message + hint) from error
    if not isinstance(stack, dict):
        raise ConfigError(f"{name} is not a mapping; a stack file has the keys {', '.join(StackConfig.model_fields)}")
    return stack


def _packaged(name: str) -> Path:
    known = packaged_stacks() | packaged_recipes()
    recipe = f"models/{name}"
    if name not in known and recipe in known:
        raise ConfigError(f"unknown packaged stack {name!r} (did you mean {PACKAGED}{recipe}?)")
    if name not in known:
        raise ConfigError(unknown_name("packaged stack", name, tuple(known)))
    return known[name]


def _containers_copied(value: Any) -> Any:
    """Copy with new dicts and lists; live objects in them stay the same."""
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
    value = plain_yaml.parse(text, f"the value of {path}")
    if value == text.strip() and path == path.rstrip():  # a text without quotes, from which YAML takes outer blanks
        value = text
    if isinstance(node, list):
        node[_index(node, keys[-1], path)] = value
    else:
        node[keys[-1]] = value


def _index(items: list[Any], key: str, path: str) -> int:
    if not key.isdecimal() or int(key) >= len(items):
        raise ConfigError(f"{key!r} is not an index of a list with {len(items)} entries", path)
    return int(key)
