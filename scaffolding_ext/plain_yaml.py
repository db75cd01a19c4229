"""YAML 1.2 with plain data, for stack files and calibrations."""

from __future__ import annotations

import io
import os
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import YAMLError

from scaffolding_ext.documents import decoded, has_surrogate
from scaffolding_ext.errors import ConfigError

_MAX_BYTES = 2**20  # size limit of a file


def read(path: str | os.PathLike[str]) -> Any:
    """Read the data of a file.

    Raises:
        OSError: The file cannot be read.
        ConfigError: As for `parse`, or the file is not UTF-8 or too long; names the file.
    """
    name = os.fspath(path)
    with open(path, "rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{name} is longer than {_MAX_BYTES:,} bytes, too long for a settings file")
    try:
        text = decoded(data)
    except ValueError as error:
        raise ConfigError(_joined(name, error)) from error
    return parse(text, name)


def parse(text: str, what: str) -> Any:
    """Parse one document.

    Args:
        text: The document.
        what: Its name in errors.

    Raises:
        ConfigError: It is not YAML, a key appears twice, or it is not plain data.
    """
    try:
        if has_surrogate(text):
            raise ValueError("holds bytes that are not text; write it in UTF-8")
        return _loaded(text)
    except ValueError as error:
        raise ConfigError(_joined(what, error)) from error


def dump(data: Any, *, short_lists_inline: bool = False) -> str:
    """Dump data to a document with keys in their order; optionally with lists of plain values on one line."""
    yaml = _yaml()
    yaml.default_flow_style = None if short_lists_inline else False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # its stub only knows None
    text = io.StringIO()
    yaml.dump(data, text)
    return text.getvalue()


def _yaml() -> YAML:
    """A reader and writer for one document."""
    return YAML(typ="safe", pure=True)


def _joined(what: str, error: ValueError) -> str:
    return f"{what}{' ' if str(error).startswith(('is ', 'holds ')) else ', '}{error}"


def _whole(value: Any) -> Any:
    """Join the pairs of escapes with which JSON, a part of YAML, writes a character beyond the first plane."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    if isinstance(value, list):
        return list(map(_whole, value))
    return {_whole(key): _whole(each) for key, each in value.items()} if isinstance(value, dict) else value


def _loaded(text: str) -> Any:
    try:
        data = _yaml().load(text)
        return _whole(data) if "\\u" in text else data
    except UnicodeDecodeError as error:
        raise ValueError("holds half of a surrogate pair, which is not text") from error
    except DuplicateKeyError as error:
        line = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        problem = str(error.problem).partition(" with value")[0]
        raise ValueError(f"{line}{problem}; keep one of the two") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    except (YAMLError, ValueError) as error:  # ValueError: a number that Python cannot read
        raise ValueError(f"is not valid YAML: {error}") from error
