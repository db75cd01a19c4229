"""What calibrations have in common: a file with a kind, a version and plain data; one model; and drift."""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from scaffolding_ext import plain_yaml, require
from scaffolding_ext.documents import decoded, located, write_text
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.stats.drift import drift_between

M = TypeVar("M", bound=BaseModel)


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


def read_json_calibration(path: str | os.PathLike[str], model: type[M], what: str, command: str) -> M:
    """A calibration out of its JSON file; `configs:NAME` is one that ships with the package.

    Args:
        path: The file.
        model: What it holds; its `version` is the one that this release reads.
        what: The calibration, such as `"plan of budgets"`.
        command: The subcommand of `scaffolding-ext` that makes one.

    Raises:
        ConfigError: The file cannot be read, or holds something else or another version; it names the file.
    """
    name, how = os.fspath(path), f"make one: scaffolding-ext {command}"
    try:
        return model.model_validate_json(decoded(located(path).read_bytes()))
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{part}: " for part in first["loc"])
        version = model.model_fields["version"].default
        raise ConfigError(f"{name} is no {what} of version {version} ({where}{first['msg']}); {how}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {name}: {error}; {how}") from error


def check_model(what: str, made_for: str | None, model: str | None, command: str, stacklevel: int = 3) -> None:
    """Warn where a calibration is used with another model than its own; a model without a name is not compared.

    Args:
        what: The calibration, such as `"chain policy"`.
        made_for: Name of the model that it was made for.
        model: Name of the model that it is used with.
        command: The subcommand of `scaffolding-ext` that makes one.
        stacklevel: As `warnings.warn` counts: 2 blames the caller of this function.
    """
    if None not in (made_for, model) and made_for != model:
        warnings.warn(
            f"the {what} was made for {made_for!r} and is used with {model!r}; make one for {model!r}: "
            f"scaffolding-ext {command}",
            CalibrationWarning,
            stacklevel=stacklevel,
        )


class RecentRequests:
    """The last requests under a policy, tested against the requests of its calibration.

    All requests of a stack share one of these: its clones share their rule.

    Args:
        calibrated: A value of each request of the calibration.
        window: Requests that a test looks back on, at least 2; no test before that many have ended.

    Raises:
        ConfigError: The window is below 2.
    """

    def __init__(self, calibrated: Sequence[float], window: int) -> None:
        self._calibrated = calibrated
        self._recent: deque[float] = deque(maxlen=require.whole("window", window, least=2))

    def observe(self, value: float) -> Mapping[str, float] | None:
        """Note the value of a request that ended.

        Returns:
            Distance, p-value and whether to calibrate again (see `Drift`); None while too few requests ended.
        """
        self._recent.append(value)
        if len(self._recent) < (self._recent.maxlen or 0):
            return None
        return drift_between(self._calibrated, list(self._recent))._asdict()
