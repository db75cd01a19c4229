"""Writes docs/stack_files.md from the models and the registries (`make pages`)."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, get_type_hints

from pydantic import BaseModel

from scaffolding_ext import registry
from scaffolding_ext.documents import packaged_stacks
from scaffolding_ext.prompts.sampling_params import SAMPLING_FIELDS
from scaffolding_ext.registry import Factory, Registry
from scaffolding_ext.signature import Signature
from scaffolding_ext.stack.config import READERS, ComponentConfig, StackConfig, section_reader

_HEAD = """# Stack files

`make pages` writes this page from the code. A stack file is YAML 1.2. It names a controller and its workers, and says
how they run. Every key and argument is checked before a model is loaded; an error names the key.

**A component** (a controller, a worker, a rule, ...) is a `type`, a name of this page or `package.module:Class`, and
its `args`, which may hold components, too. A rule, scorer or other small part without arguments may be a name alone.
`{{$ref: NAME}}` is a live object that Python gives.

**Arguments.** `name=8192` has a default; `name: int=null` can be left out; `name: int` is needed. "Parts of several"
are arguments that several types of a group take.

`scaffolding-ext run` and `eval` take a file, or one that ships with the package: {packaged}, or
[a recipe for a model](models.md).
"""
_UNION = re.compile(r" \| (?![^\[]*\])")  # outside brackets
_ARGUMENT = re.compile(r"^    \*{0,2}(\w+): (.*(?:\n     +.*)*)", re.MULTILINE)


def reference() -> str:
    packaged = ", ".join(f"`configs:{name}`" for name in packaged_stacks())
    parts = [_HEAD.format(packaged=packaged), "## Keys\n", _listed(_keys(StackConfig))]
    parts += [
        f"Names in `sampling` and `sampling_params`: {', '.join(f'`{name}`' for name in sorted(SAMPLING_FIELDS))}.\n"
    ]
    for known in vars(registry).values():
        if isinstance(known, Registry):
            kinds = re.sub("ys$", "ies", f"{known.kind.capitalize()}s")
            parts += [f"## {kinds}\n", *_components(known)]
    return "\n".join(parts)


class _Argument(NamedTuple):
    """A key or an argument, with its type or its default, and what is said of it."""

    written: str
    text: str


def _keys(section: type[BaseModel], path: str = "") -> Iterator[_Argument]:
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
            yield _Argument(_written(own, given, plain[name], field.description or ""), field.description or "")
            continue
        is_component = issubclass(inner, ComponentConfig)
        ending = "" if field.is_required() else "=null" if given is None else "={}"
        yield _Argument(f"{own}: {'component' if is_component else 'section'}{ending}", field.description or "")
        if not is_component and own != "tuned":  # a command writes that one
            yield from _keys(inner, f"{own}.")


def _components(known: Registry) -> Iterator[str]:
    own = [known.resolve(name) for name in known.names()]
    # those of another package are not everywhere
    rows = {kind: list(_arguments(kind)) for kind in own if kind.__module__.startswith("scaffolding_ext.")}
    times = Counter(row for kind in rows for row in rows[kind])
    if common := [row for row in times if times[row] > 1]:
        yield "### Parts of several\n"
        yield _listed(common)
    for name, kind in zip(known.names(), own, strict=True):
        if kind not in rows:
            continue
        yield f"### {name}\n"
        yield (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ") + "\n"
        if single := [row for row in rows[kind] if row not in common]:
            yield _listed(single)
        if shared := [f"`{re.split('[:=]', row.written)[0]}`" for row in rows[kind] if row in common]:
            yield f"{'Also' if single else 'Takes'} {', '.join(shared)}.\n"


def _arguments(factory: Factory) -> Iterator[_Argument]:
    told = _told(factory)
    for name, parameter in Signature.of(factory).parameters.items():
        text = told.get(name, "")
        yield _Argument(_written(name, parameter.default, parameter.annotation, text), text)


def _told(factory: Factory) -> dict[str, str]:
    """What the docstrings of a class and its bases say of its arguments."""
    told: dict[str, str] = {}
    for kind in inspect.getmro(factory) if isinstance(factory, type) else (factory,):
        for section in ("Args", "Attributes"):  # of a class whose arguments are its attributes, the latter
            text = inspect.cleandoc(kind.__doc__ or "").partition(f"\n{section}:\n")[2].partition("\n\n")[0]
            for name, words in _ARGUMENT.findall(text):
                told.setdefault(name, " ".join(words.split()))
    return told


def _written(name: str, default: Any, annotation: Any, text: str) -> str:
    """The name with its default as a stack file would write it; where there is none, with its type."""
    if default not in (None, inspect.Parameter.empty):
        try:
            return f"{name}={json.dumps(default)}"
        except TypeError:
            return f"{name}={getattr(default, '__name__', default)}"
    kind = "" if annotation is inspect.Parameter.empty else annotation
    kind = kind if isinstance(kind, str) else inspect.formatannotation(kind).replace("typing.", "")
    kind = re.sub(r"Callable\[\[.*?\], .*?\]+", "function", kind).replace("dict[str, Any]", "dict")
    # null is said by the default, and every component may be a mapping
    parts = [
        part for part in _UNION.split(kind) if part not in ("None", "Mapping[str, Any]", "os.PathLike[str]", "Path")
    ]
    if kind.startswith("Literal") and all(value in text for value in re.findall(r"'(\w+)'", kind)):
        parts = []  # the text has the values
    typed = f"{name}: {'/'.join(parts)}" if parts else name
    return typed if default is inspect.Parameter.empty else f"{typed}=null"


def _listed(arguments: Iterable[_Argument]) -> str:
    return "".join(f"- `{argument.written}`: {argument.text}\n" for argument in arguments)


if __name__ == "__main__":
    sys.stdout.write(reference())
