"""Files: strict readers for text and JSON from outside, and a writer that writes completely or not at all.

Bad input raises a `ValueError` that says where and why; callers prepend the file's name.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.resources
import json
import math
import os
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scaffolding_ext.errors import OutputError

PACKAGED = "configs:"  # prefix of packaged files
UTF16 = (b"\xff\xfe", b"\xfe\xff")  # byte order marks
_SURROGATE = re.compile("[\ud800-\udfff]")


def decoded(data: bytes, first_line: int = 1) -> str:
    """Decode UTF-8, without a byte order mark.

    Raises:
        ValueError: The encoding is another; the message names the line.
    """
    if data.startswith(UTF16):
        raise ValueError("is UTF-16; save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        raise ValueError(
            f"line {line}: the byte 0x{data[error.start]:02x} is not UTF-8 (perhaps Latin-1); save it as UTF-8"
        ) from error


def located(path: str | os.PathLike[str]) -> Path:
    """Path of a file; `configs:NAME` is in the package's folder of configs."""
    name = os.fspath(path)
    if not name.startswith(PACKAGED):
        return Path(name)
    return Path(str(importlib.resources.files("scaffolding_ext.configs"))) / name.removeprefix(PACKAGED)


def fingerprint(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file, as `sha256:` and 64 hexadecimal digits."""
    return "sha256:" + hashlib.sha256(Path(path).read_bytes()).hexdigest()


def packaged_stacks() -> dict[str, Path]:
    """The packaged stack files, by the names that `configs:NAME` takes."""
    return {path.stem: path for path in sorted(located(PACKAGED).glob("*.yaml"))}


def packaged_recipes() -> dict[str, Path]:
    """The packaged stack files for popular models, by the names that `configs:models/NAME` takes."""
    return {f"models/{path.stem}": path for path in sorted((located(PACKAGED) / "models").glob("*.yaml"))}


def has_surrogate(text: str) -> bool:
    """True if a text holds half of a surrogate pair, which no file, tokenizer or terminal accepts."""
    return _SURROGATE.search(text) is not None


def as_json(value: Any) -> Any:
    """Convert for `json.dumps(default=...)`: numpy numbers and arrays, and sets, to JSON; all else to text."""
    for method in ("tolist", "item"):
        if hasattr(value, method):
            return getattr(value, method)()
    return sorted(value, key=str) if isinstance(value, set | frozenset) else str(value)


def json_text(value: Any, **options: Any) -> str:
    """Serialize as JSON that every reader accepts: non-finite numbers become null; see `as_json`."""
    try:
        return json.dumps(value, default=as_json, allow_nan=False, **options)
    except ValueError:
        return json.dumps(plain(json.loads(json.dumps(value, default=as_json))), **options)


def parse_json(text: str, *, keeps_infinity: bool = False) -> Any:
    """Parse a JSON text; a NaN, which pandas writes for what is missing, is null.

    Args:
        keeps_infinity: Leave infinite numbers to the caller, for fields in which they have a meaning.

    Raises:
        ValueError: It is not JSON, an object repeats a key, a number is infinite, or it is nested too deeply.
    """
    number = float if keeps_infinity else _finite
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=lambda name: None if name == "NaN" else number(name),
            parse_float=number,
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"invalid JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("invalid JSON: it is nested too deeply") from error


def plain(value: Any) -> Any:
    """Convert to JSON values: named tuples and dataclasses become objects, non-finite numbers null."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    elif dataclasses.is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_text(path: str | os.PathLike[str], text: str | Iterable[str]) -> None:
    """Write a text file, given whole or in parts, replacing an old one only when complete. A link's target is written.

    Raises:
        OutputError: It cannot be written; an old file is unchanged.
    """
    target = os.path.realpath(path)
    is_special = os.path.exists(target) and not os.path.isfile(target)  # a device or a pipe
    partial = target if is_special else os.path.join(os.path.dirname(target), f".{uuid.uuid4().hex}.part")
    try:
        try:
            with open(partial, "w", encoding="utf-8") as file:
                file.writelines([text] if isinstance(text, str) else text)
            if not is_special:
                os.replace(partial, target)
        except OSError:
            if not is_special and os.path.exists(partial):
                os.unlink(partial)
            raise
    except OSError as error:
        raise OutputError(f"cannot write {os.fspath(path)}: {error.strerror}") from error


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text} is not finite; write null for what is not known")
    return value


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} appears twice; keep one of the two")
    return found
