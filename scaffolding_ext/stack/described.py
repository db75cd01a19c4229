"""Describes stack files in words: their keys, the types of each kind, and the arguments of a type."""

from __future__ import annotations

import difflib
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_type_hints

from pydantic import BaseModel

from scaffolding_ext import registry
from scaffolding_ext.documents import packaged_recipes, packaged_stacks
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.sampling_params import SAMPLING_FIELDS
from scaffolding_ext.registry import Factory, Registry
from scaffolding_ext.signature import Signature
from scaffolding_ext.stack.config import READERS, ComponentConfig, StackConfig, section_reader

KEYS = "keys"
_COLUMNS = 100
_UNION = re.compile(r" \| (?![^\[]*\])")  # outside brackets
_ARGUMENT = re.compile(r"^    \*{0,2}(\w+): (.*(?:\n     +.*)*)", re.MULTILINE)


class Described(NamedTuple):
    """A key or an argument: its name with its type or default, as a stack file would write it, and its meaning."""

    written: str
    text: str


def kinds() -> dict[str, Registry]:
    """Return the registry of each kind of part, by the kind's plural."""
    found = (known for known in vars(registry).values() if isinstance(known, Registry))
    return {_plural(known.kind): known for known in found}


def _plural(kind: str) -> str:
    noun, of, rest = kind.partition(" of ")
    return re.sub("ys$", "ies", f"{noun}s") + of + rest


def description(name: str) -> str:
    """Return what is called by a name: a packaged stack, a type, a kind of types, or the keys of a stack file.

    Raises:
        ConfigError: There is nothing of this name.
    """
    files = packaged_stacks() | packaged_recipes()
    if (path := files.get(name.removeprefix("configs:"))) is not None:
        return path.read_text(encoding="utf-8").rstrip("\n")
    plurals = kinds()
    plural = name.replace("_", " ").lower()
    if plural in plurals:
        return "\n".join(f"{each}\n    {summary(plurals[plural].resolve(each))}" for each in plurals[plural].names())
    every = list(keys(StackConfig))
    if name == KEYS:
        return f"{_listed(every)}\n\nNames in `sampling` and `sampling_params`: {', '.join(sorted(SAMPLING_FIELDS))}"
    below = [each for each in every if re.match(rf"{re.escape(name)}[.:=]", each.written)]
    types = [_type(known, name) for known in plurals.values() if name in known.names()]
    if not below and not types:
        every_name = {each for known in plurals.values() for each in known.names()} | files.keys() | plurals.keys()
        close = difflib.get_close_matches(name, every_name) or [KEYS, *plurals]
        raise ConfigError(f"there is no stack, type, kind or key {name!r}; there are: {', '.join(close)}")
    return "\n\n".join([*([_listed(below)] if below else []), *types])


def _type(known: Registry, name: str) -> str:
    factory = known.resolve(name)
    return f"{name}: {known.kind}\n{_wrapped(summary(factory), '')}\n\n{_listed(arguments(factory)) or 'no arguments'}"


def _listed(rows: Sequence[Described]) -> str:
    return "\n".join(f"{row.written}\n{_wrapped(row.text, '    ')}" for row in rows)


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(text, _COLUMNS, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def summary(factory: Factory) -> str:
    """Return the first paragraph of a factory's docstring."""
    return (inspect.getdoc(factory) or "").partition("\n\n")[0].replace("\n", " ")


def keys(section: type[BaseModel], path: str = "") -> Iterator[Described]:
    """Yield the keys of a section of a stack file and of the sections in it."""
    plain = get_type_hints(section)  # without the bounds of values, which stand in the descriptions
    for name, field in section.model_fields.items():
        parts = [field.annotation, *getattr(field.annotation, "__args__", ())]
        inner = next((part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)), None)
        if section is StackConfig and name in READERS:
            inner = section_reader(name)
        is_table = getattr(field.annotation, "__origin__", None) is dict and inner is not None
        own = f"{path}{name}.TAG" if is_table else f"{path}{name}"
        given = inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)
        if inner is None:
            yield Described(_written(own, given, plain[name], field.description or ""), field.description or "")
            continue
        is_component = issubclass(inner, ComponentConfig)
        ending = "" if field.is_required() else "=null" if given is None else "={}"
        yield Described(f"{own}: {'component' if is_component else 'section'}{ending}", field.description or "")
        if not is_component and own != "tuned":  # a command writes that one
            yield from keys(inner, f"{own}.")


def arguments(factory: Factory) -> list[Described]:
    """Return the arguments of a type."""
    told = _told(factory)
    return [
        Described(_written(name, parameter.default, parameter.annotation, told.get(name, "")), told.get(name, ""))
        for name, parameter in Signature.of(factory).parameters.items()
    ]


def _told(factory: Factory) -> Mapping[str, str]:
    """Return what the docstrings of a class and its bases say of its arguments."""
    told: dict[str, str] = {}
    for kind in inspect.getmro(factory) if isinstance(factory, type) else (factory,):
        for section in ("Args", "Attributes"):  # of a class whose arguments are its attributes, the latter
            text = inspect.cleandoc(kind.__doc__ or "").partition(f"\n{section}:\n")[2].partition("\n\n")[0]
            for name, words in _ARGUMENT.findall(text):
                told.setdefault(name, " ".join(words.split()))
    return told


def _written(name: str, default: Any, annotation: Any, text: str) -> str:
    """Return the name with its default as a stack file would write it, or with its type if there is none."""
    if default not in (None, inspect.Parameter.empty):
        try:
            return f"{name}={json.dumps(default)}"
        except TypeError:
            return f"{name}={getattr(default, '__name__', default)}"
    kind = "" if annotation is inspect.Parameter.empty else annotation
    kind = kind if isinstance(kind, str) else inspect.formatannotation(kind).replace("typing.", "")
    kind = re.sub(r"Callable\[\[.*?\], .*?\]+", "function", kind).replace("dict[str, Any]", "dict")
    # null is said by the default, and every component may be a mapping
    left_out = ("None", "Mapping[str, Any]", "os.PathLike[str]", "Path")
    parts = [part for part in _UNION.split(kind) if part not in left_out]
    if kind.startswith("Literal") and all(value in text for value in re.findall(r"'(\w+)'", kind)):
        parts = []  # the text has the values
    typed = f"{name}: {'/'.join(parts)}" if parts else name
    return typed if default is inspect.Parameter.empty else f"{typed}=null"
