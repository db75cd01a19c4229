"""What of a stack may be shown to strangers: names that this package knows, numbers, and models; no text of its owner.

What is shown is on a list. Everything else is told by its length, since a text may hold a secret wherever it stands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from scaffolding_ext import registry
from scaffolding_ext.registry import Registry
from scaffolding_ext.stack.config import StackConfig

_MODELS = ("model", "tokenizer")
_CHOICE = re.compile(
    "agreement|auto|bfloat16|best|bottom_10|certaindex|certainty|chat|chunk|compete|completions|conditional|confidence|"
    "conservative|controller|cpu|cuda|eager|entropy|even|float16|float32|last|late|leave|lowest_group|marginal|max|mean|"
    "mean_logprob|min|mps|newest|none|offline|online|paper|product|ray|sdpa|score|server|step|stream|systematic|tail|"
    "verdict|vote"
)  # values of arguments
_TYPE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_KEY = re.compile(r"[A-Za-z_$][\w-]{0,40}")
_MODEL = re.compile(r"[\w.-]{1,80}(/[\w.-]{1,80})?")
_SECRET_KEY = re.compile(r"key|token$|secret|passw|credential|auth|cookie|headers?$", re.IGNORECASE)
_SECRET = re.compile(r"\b((sk|pk|hf|gh[a-z]|glpat|xox[a-z]|nvapi)[-_][\w-]{8}|(AKIA|AIza|eyJ)\w{8}|Bearer )")


def shareable(config: StackConfig) -> dict[str, Any]:
    """A stack as plain data without texts, paths, addresses and secrets; what is at its default is left out."""
    shown = _shown(config.model_dump(mode="json", exclude_defaults=True), "", _known_names())
    return dict(shown)


def _known_names() -> frozenset[str]:
    tables = [table for table in vars(registry).values() if isinstance(table, Registry)]
    return frozenset(name for table in tables for name in table.names())


def _shown(value: Any, key: str, known: frozenset[str]) -> Any:
    if isinstance(value, Mapping):
        return {_key(str(name)): _item(inner, str(name), known) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shown(inner, key, known) for inner in value]
    return _text(value, key, known) if isinstance(value, str) else value


def _item(value: Any, key: str, known: frozenset[str]) -> Any:
    return "(hidden)" if _SECRET_KEY.search(key) and not key.endswith("_env") else _shown(value, key, known)


def _key(name: str) -> str:
    return name if _KEY.fullmatch(name) and not _SECRET.search(name) else f"(name of {len(name)} characters)"


def _text(text: str, key: str, known: frozenset[str]) -> str:
    if text in known or _CHOICE.fullmatch(text):
        return text
    hidden = f"(text of {len(text)} characters)"
    if _SECRET.search(text):
        return hidden
    if key == "type":
        return text if _TYPE.fullmatch(text) else hidden
    if "://" in text:
        return _address(text)
    return (_model(text) if key in _MODELS else None) or hidden


def _model(name: str) -> str | None:
    """A hub's name as it is; of a path, the last folder."""
    is_path = name.startswith(("/", "~", ".")) or name.count("/") > 1 or "\\" in name
    if is_path:
        name = re.split(r"[/\\]", name.rstrip("/\\"))[-1]
    return name if _MODEL.fullmatch(name) else None


def _address(url: str) -> str:
    """Whether a server is on this machine, and no more."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"(text of {len(url)} characters)"
    here = parts.hostname in ("localhost", "127.0.0.1", "::1")
    scheme = parts.scheme if parts.scheme in ("http", "https") else "other scheme"
    return f"({scheme}, {'this machine' if here else 'another machine'})"
