"""The page on stack files, from the models and the registries: `python -m scaffolding_ext.stack.reference`."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, get_type_hints

from pydantic import BaseModel

from scaffolding_ext import registry
from scaffolding_ext.documents import packaged_recipes, packaged_stacks
from scaffolding_ext.prompts.sampling_params import SAMPLING_FIELDS
from scaffolding_ext.registry import Factory, Registry
from scaffolding_ext.signature import Signature
from scaffolding_ext.stack.config import StackConfig

_HEAD = """# Stack files

`make pages` writes this page from the code. A stack file is YAML 1.2. It names a controller and its workers, each a
`type` and its `args`, and says how they are run. Every key and every argument is checked before a model is loaded, and
an error names the path of its key.
`scaffolding-ext run` and `eval` take a file, or one that ships with the package: {packaged}.
For models that people run ([the recipes](models.md)): {recipes}.
"""
_ARGUMENT = re.compile(r"^    \*{0,2}(\w+): (.*(?:\n     +.*)*)", re.MULTILINE)


def reference() -> str:
    """The page, in Markdown."""
    packaged = ", ".join(f"`configs:{name}`" for name in packaged_stacks())
    recipes = ", ".join(f"`configs:{name}`" for name in packaged_recipes())
    parts = [_HEAD.format(packaged=packaged, recipes=recipes), "## Keys\n", _table("key", _keys(StackConfig))]
    parts += [
        f"Names in `sampling` and `sampling_params`: {', '.join(f'`{name}`' for name in sorted(SAMPLING_FIELDS))}.\n"
    ]
    for known in vars(registry).values():
        if isinstance(known, Registry):
            kinds = re.sub("ys$", "ies", f"{known.kind.capitalize()}s")
            parts += [f"## {kinds}\n", *_components(known)]
    return "\n".join(parts)


class _TableRow(NamedTuple):
    """A key or an argument: its name, type and default as the page has them, and what is said of it."""

    name: str
    kind: str
    default: str
    text: str


def _keys(section: type[BaseModel], path: str = "") -> Iterator[_TableRow]:
    plain = get_type_hints(section)  # without the bounds of values, which stand in the descriptions
    for name, field in section.model_fields.items():
        parts = [field.annotation, *getattr(field.annotation, "__args__", ())]
        inner = next((part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)), None)
        is_table = getattr(field.annotation, "__origin__", None) is dict and inner is not None
        own = f"{path}{name}.TAG" if is_table else f"{path}{name}"
        default = "needed" if field.is_required() else _shown(field.get_default(call_default_factory=True))
        yield _TableRow(own, _type_name(plain[name]) if inner is None else "section", default, field.description or "")
        if inner is not None:
            yield from _keys(inner, f"{own}.")


def _components(known: Registry) -> Iterator[str]:
    for name in known.names():
        factory = known.resolve(name)
        if not factory.__module__.startswith("scaffolding_ext."):  # of another package, which is not everywhere
            continue
        yield f"### {name}\n"
        yield (inspect.getdoc(factory) or "").partition("\n\n")[0].replace("\n", " ") + "\n"
        rows = list(_arguments(factory))
        yield _table("argument", rows) if rows else "It takes no arguments.\n"


def _arguments(factory: Factory) -> Iterator[_TableRow]:
    told = _told(factory)
    for name, parameter in Signature.of(factory).parameters.items():
        default = "needed" if parameter.default is inspect.Parameter.empty else _shown(parameter.default)
        yield _TableRow(name, _type_name(parameter.annotation), default, told.get(name, ""))


def _told(factory: Factory) -> dict[str, str]:
    """What the docstrings of a class and its bases say of its arguments."""
    told: dict[str, str] = {}
    for kind in inspect.getmro(factory) if isinstance(factory, type) else (factory,):
        for section in ("Args", "Attributes"):  # of a class whose arguments are its attributes, the latter
            text = inspect.cleandoc(kind.__doc__ or "").partition(f"\n{section}:\n")[2].partition("\n\n")[0]
            for name, words in _ARGUMENT.findall(text):
                told.setdefault(name, " ".join(words.split()))
    return told


def _type_name(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation).replace("typing.", "")


def _shown(default: Any) -> str:
    """A default as a stack file would write it; what none can write by its name."""
    if isinstance(default, BaseModel):
        return ""
    try:
        return f"`{json.dumps(default)}`"
    except TypeError:
        return f"`{getattr(default, '__name__', default)}`"


def _table(first: str, rows: Iterable[_TableRow]) -> str:
    lines = [f"| {first} | type | default | what it is |", "| --- | --- | --- | --- |"]
    for row in rows:
        cells = (f"`{row.name}`", f"`{row.kind}`" if row.kind else "", row.default, row.text)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
