"""Calibration files: YAML with a kind, a version and an origin. Each algorithm adds its fields."""

from __future__ import annotations

import os
import warnings
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import scaffolding_ext
from scaffolding_ext import plain_yaml
from scaffolding_ext.documents import decoded, located, write_text
from scaffolding_ext.errors import ConfigError

F = TypeVar("F", bound="CalibrationFile")


class CalibrationWarning(UserWarning):
    """A calibration is used for something that it was not made for."""


class CalibrationFile(BaseModel):
    """Base of all calibration files. A subclass sets `kind` and `command`, and adds fields.

    Attributes:
        kind: Identifies the file's owner, such as `"chain_policy"`.
        model: Name of the model that it was made for; None if unknown.
        data: Name of the data that it was made from: a file, or a data set.
        fingerprint: SHA-256 of that data, as `sha256:` and 64 hexadecimal digits.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    command: ClassVar[str]

    kind: str
    version: Literal[1] = 1
    package_version: str = Field(default_factory=lambda: scaffolding_ext.__version__)
    model: str | None = None
    data: str | None = None
    fingerprint: str | None = None
    date: str | None = None

    @classmethod
    def load(cls: type[F], path: str | os.PathLike[str]) -> F:
        """Read a file; `configs:NAME` is a packaged one."""
        name, how = os.fspath(path), f"make one: scaffolding-ext {cls.command}"
        try:
            return cls.model_validate(read_document(path))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            problem = f"{where}: {first['msg']}" if where else first["msg"]
            version = cls.model_fields["version"].default
            raise ConfigError(f"{name} is no {cls._what()} file of version {version} ({problem}); {how}") from error
        except OSError as error:
            raise ConfigError(f"cannot read {name}: {error.strerror}; {how}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        write_text(path, plain_yaml.dump(self.model_dump(mode="json"), short_lists_inline=True))

    def check_model(self, model: str | None, stacklevel: int = 3) -> None:
        """Warn if the file is used with a model other than its own; unnamed models are not compared."""
        if None not in (self.model, model) and self.model != model:
            warnings.warn(
                f"the {self._what()} was made for {self.model!r} and is used with {model!r}; make one for {model!r}: "
                f"scaffolding-ext {self.command}",
                CalibrationWarning,
                stacklevel=stacklevel,
            )

    @classmethod
    def _what(cls) -> str:
        return str(cls.model_fields["kind"].default).replace("_", " ")


def read_document(path: str | os.PathLike[str]) -> Any:
    name = os.fspath(path)
    try:
        text = decoded(located(path).read_bytes())
    except ValueError as error:
        raise ConfigError(f"{name} {error}") from error
    return plain_yaml.parse(text, name)
