"""YAML 1.2 of plain data, as in stack files and calibrations; size and depth are checked before objects are built."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

from scaffolding_ext.documents import decoded, has_surrogate
from scaffolding_ext.errors import ConfigError

_MAX_BYTES = 2**20  # of a file
_MAX_VALUES = 100_000  # of a document; an alias counts as much as the value it stands for
_MAX_DEPTH = 64
_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq", "merge")
)


def read(path: str | os.PathLike[str]) -> Any:
    """The data of a file.

    Raises:
        OSError: The file cannot be read.
        ConfigError: As `parse`, or it is no UTF-8, or longer than a megabyte; it names the file.
    """
    name = os.fspath(path)
    with open(path, "rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{name} is longer than {_MAX_BYTES:,} bytes, too long for a file of settings")
    try:
        text = decoded(data)
    except ValueError as error:
        raise ConfigError(_joined(name, error)) from error
    return parse(text, name)


def parse(text: str, what: str) -> Any:
    """The data of one document.

    Args:
        text: The document.
        what: What it is, for errors.

    Raises:
        ConfigError: It is no YAML, a key stands twice, a value is no plain data, or the document is too large or
            too deep once its aliases are replaced by their values.
    """
    try:
        if has_surrogate(text):
            raise ValueError("holds bytes that are no text; write it in UTF-8")
        node = _guarded(_yaml().compose, text)
        if node is not None:
            _Bounds().check(node)
        return _guarded(_yaml().load, text)
    except ValueError as error:
        raise ConfigError(_joined(what, error)) from error


def dump(data: Any, *, short_lists_inline: bool = False) -> str:
    """A document that holds the data, its keys in their order; on request a list of plain values stands on one line."""
    yaml = _yaml()
    yaml.default_flow_style = None if short_lists_inline else False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # its stub knows None alone
    text = io.StringIO()
    yaml.dump(data, text)
    return text.getvalue()


def _yaml() -> YAML:
    """A reader and writer for one document."""
    return YAML(typ="safe", pure=True)


def _joined(what: str, error: ValueError) -> str:
    return f"{what}{' ' if str(error).startswith(('is ', 'holds ')) else ', '}{error}"


def _guarded(read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(text)
    except DuplicateKeyError as error:
        line = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        problem = str(error.problem).partition(" with value")[0]
        raise ValueError(f"{line}{problem}; keep one of the two") from error
    except RecursionError as error:
        raise ValueError(f"is nested deeper than {_MAX_DEPTH} levels") from error
    except (YAMLError, ValueError) as error:  # a ValueError: a number that Python does not read
        raise ValueError(f"is no valid YAML: {error}") from error


class _Bounds:
    """Bounds a YAML document, each alias counted as what it stands for, before anything is built of it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int] | None] = {}

    def check(self, node: Node, depth: int = 1) -> tuple[int, int]:
        """Values and levels under a node, itself included; ValueError where there are too many."""
        place = f"line {node.start_mark.line + 1}: "
        if id(node) not in self._known:
            self._known[id(node)] = None
            self._known[id(node)] = self._measured(node, depth, place)
        known = self._known[id(node)]
        if known is None:
            raise ValueError(f"{place}refers to itself; write out what it should hold")
        size, height = known
        if size > _MAX_VALUES:
            raise ValueError(f"{place}holds more than {_MAX_VALUES:,} values, its aliases (*name) counted; write less")
        if depth + height > _MAX_DEPTH:
            raise ValueError(f"{place}is nested deeper than {_MAX_DEPTH} levels")
        return known

    def _measured(self, node: Node, depth: int, place: str) -> tuple[int, int]:
        if depth > _MAX_DEPTH:
            raise ValueError(f"{place}is nested deeper than {_MAX_DEPTH} levels")
        tag = str(node.tag)
        if tag not in _TAGS:
            raise ValueError(
                f"{place}{tag.rpartition(':')[2].lstrip('!')!r} is no plain data; write text (in quotes), a number, "
                "true, false, null, a list or a mapping"
            )
        if isinstance(node, ScalarNode):
            if has_surrogate(node.value):
                raise ValueError(f"{place}half of a surrogate pair is no text")
            return 1, 1
        size = height = 0
        for part in itertools.chain.from_iterable(node.value) if isinstance(node, MappingNode) else node.value:
            inner_size, inner_height = self.check(part, depth + 1)
            size, height = size + inner_size, max(height, inner_height)
        return size + 1, height + 1
