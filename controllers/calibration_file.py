"""What the files of calibrations have in common: a kind, a version, and plain data."""

from __future__ import annotations

import os
from typing import Any

from scaffolding_ext import plain_yaml
from scaffolding_ext.documents import write_text
from scaffolding_ext.errors import ConfigError


class CalibrationWarning(UserWarning):
    """A calibration is used for something that it was not made for."""


def write_calibration(path: str | os.PathLike[str], kind: str, version: int, **fields: Any) -> None:
    """Write a calibration's YAML file.

    Raises:
        OutputError: It cannot be written.
    """
    document = {"kind": kind, "version": version, **fields}
    write_text(path, plain_yaml.dump(document, short_lists_inline=True))


def read_calibration(path: str | os.PathLike[str], kinds: dict[str, int]) -> dict[str, Any]:
    """The fields of a calibration's file, its kind among them.

    Args:
        path: The file.
        kinds: The kinds that it may be of, and the version of each.

    Raises:
        ConfigError: The file cannot be read, or is of another kind or version; it names the file.
    """
    name = os.fspath(path)
    try:
        document = plain_yaml.read(path)
    except OSError as error:
        raise ConfigError(f"cannot read the calibration: {error}", name) from error
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind not in kinds:
        known, commands = " or ".join(map(repr, kinds)), " or ".join(f"calibrate {each}" for each in kinds)
        raise ConfigError(f"is no calibration of kind {known}; make one: scaffolding-ext {commands}", name)
    if document.get("version") != kinds[kind]:
        raise ConfigError(
            f"is of version {document.get('version')!r}; this release reads {kinds[kind]}: make it anew", name
        )
    return dict(document)
