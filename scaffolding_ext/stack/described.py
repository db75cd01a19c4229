"""Texts of `scaffolding-ext stacks NAME`: packaged stack files, keys of stack files, and types with their arguments."""

from __future__ import annotations

import difflib
import inspect
import json
import re
import textwrap
from collections.abc import Iterator

from pydantic import BaseModel

from scaffolding_ext import registry
from scaffolding_ext.documents import packaged_recipes, packaged_stacks
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.registry import Factory, Registry
from scaffolding_ext.stack.config import DatasetConfig, PromptConfig, StackConfig, section_reader

KEYS = "keys"


def kinds() -> dict[str, Registry]:
    """Return the registry of each kind of part, by the kind's plural."""
    found = (known for known in vars(registry).values() if isinstance(known, Registry))
    return {re.sub("ys$", "ies", f"{known.kind}s"): known for known in found}


def description(name: str) -> str:
    """Return what is called by a name: a packaged stack, a type, a kind of types, or the keys of a stack file.

    Raises:
        ConfigError: There is nothing of this name, or `module:Class` cannot be imported.
    """
    files, plurals = packaged_stacks() | packaged_recipes(), kinds()
    if (path := files.get(name.removeprefix("configs:"))) is not None:
        return path.read_text(encoding="utf-8").rstrip("\n")
    if known := plurals.get(name.replace("_", " ").lower()):
        return "\n".join(f"{each}\n    {summary(known.resolve(each))}" for each in known.names())
    below = {key: text for key, text in keys() if name == KEYS or re.match(rf"{re.escape(name)}(?:[.=]|$)", key)}
    found = [f"{key}\n{textwrap.indent(textwrap.fill(text, 96), '    ')}" for key, text in below.items()]
    found += [_type(name, known.kind, known.resolve(name)) for known in plurals.values() if name in known.names()]
    if ":" in name and not name.startswith("configs:"):
        found.append(_type(name, "a type of your own", registry.import_target(name)))
    if not found:
        names = {each for known in plurals.values() for each in known.names()} | files.keys() | plurals.keys()
        close = difflib.get_close_matches(name, names) or [KEYS, *plurals]
        raise ConfigError(f"there is no stack, type, kind or key {name!r}; there are: {', '.join(close)}")
    return "\n".join(found)


def keys() -> Iterator[tuple[str, str]]:
    """Yield the keys of a stack file, each with its default if it has a plain one, and their descriptions."""
    yield from _keys_of(StackConfig)
    for name, section in (("prompt", PromptConfig), ("dataset", DatasetConfig)):
        yield from _keys_of(section, f"{name}.")
    yield from _keys_of(section_reader("evaluation"), "evaluation.")


def _keys_of(section: type[BaseModel], path: str = "") -> Iterator[tuple[str, str]]:
    for name, field in section.model_fields.items():
        default = field.get_default(call_default_factory=True)
        is_plain = isinstance(default, str | int | float | dict)
        yield f"{path}{name}" + (f"={json.dumps(default)}" if is_plain else ""), field.description or ""


def _type(name: str, kind: str, factory: Factory) -> str:
    arguments = [f"    {each}" for each in inspect.signature(factory).parameters.values()]
    return "\n".join([f"{name}: {kind}", *arguments, "", inspect.getdoc(factory) or "", ""])


def summary(factory: Factory) -> str:
    """Return the first paragraph of a factory's docstring."""
    return (inspect.getdoc(factory) or "").partition("\n\n")[0].replace("\n", " ")
