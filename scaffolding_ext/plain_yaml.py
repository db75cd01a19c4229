"""YAML 1.2 of plain data, as stack files and calibrations hold it."""

from __future__ import annotations

import io
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import YAMLError

from scaffolding_ext.errors import ConfigError


def parse(text: str, what: str) -> Any:
    """The data of one document.

    Args:
        text: The document.
        what: What it is, for errors.

    Raises:
        ConfigError: It is no YAML, or has a key twice.
    """
    try:
        return _yaml().load(text)
    except DuplicateKeyError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        problem = str(error.problem).partition(" with value")[0]
        raise ConfigError(f"{what}{line}: {problem}; keep one of the two") from error
    except YAMLError as error:
        raise ConfigError(f"{what} is no valid YAML: {error}") from error


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
