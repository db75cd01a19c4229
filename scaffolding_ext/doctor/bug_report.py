"""Data for a bug report: versions and hardware of this machine, and a stack without its owner's texts.

Nothing names the user or the network. No other package is imported, so a broken torch does not hide its version. Of a
stack, only names of this package, numbers and models are shown; of any other text only its length, since it may be
secret.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scaffolding_ext import registry
from scaffolding_ext.registry import Registry
from scaffolding_ext.stack.config import StackConfig

DISTRIBUTION = "scaffolding-ext"
WORKSHOP = ("dev", "docs", "train")  # extras for working on the package
OTHERS = ("tensorrt-llm", "vllm", "sglang", "accelerate", "tokenizers", "safetensors", "triton")  # reported, too
SETTINGS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "HF_HUB_OFFLINE",
    "TOKENIZERS_PARALLELISM",
    "SCAFFOLDING_EXT_STANDINS",
)  # the only environment variables that are read
_HARMLESS = re.compile(r"[\w,.-]{1,20}")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")
_SMI = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")


def environment() -> dict[str, Any]:
    """Describe this environment as JSON data.

    Returns:
        `package` (version, C kernel built or not), `python`, `system`, `hardware` (CPU, cores, memory in GiB, GPUs),
        `packages` (versions of dependencies), `extras` (missing packages of each), `settings`.
    """
    needed = _requirements()
    names = {name for extra, name in needed if extra not in WORKSHOP} | set(OTHERS)
    packages = {name: _version(name) for name in sorted(names, key=str.lower)}
    extras: dict[str, list[str]] = {}
    for extra, name in needed:
        if extra and extra not in WORKSHOP:
            extras.setdefault(extra, []).extend([name] if packages[name] is None else [])
    return {
        "package": {"version": _version(DISTRIBUTION), "kernel": _has_kernel()},
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": _system(),
        "hardware": {"cpu": _cpu(), "cores": os.cpu_count(), "usable_cores": _usable_cores(), "gib": _memory()}
        | {"gpus": _gpus()},
        "packages": {name: version for name, version in packages.items() if version is not None},
        "extras": {extra: sorted(set(missing)) for extra, missing in sorted(extras.items())},
        "settings": {name: _setting(os.environ[name]) for name in SETTINGS if name in os.environ},
    }


def _requirements() -> list[tuple[str, str]]:
    """Extra (empty for none) and name of each requirement of the package."""
    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:  # running from the sources, not installed
        return []
    found = []
    for line in lines:
        name, extra = _NAME.match(line), _EXTRA.search(line)
        if name is not None:
            found.append((extra[1] if extra else "", name[0]))
    return found


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _has_kernel() -> bool:
    spec = importlib.util.find_spec("scaffolding_ext")  # a deeper name would import torch
    folders = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    return any(
        path.suffix in (".so", ".pyd")
        for folder in folders
        for path in (folder / "workers" / "huggingface").glob("_block_kernel*")
    )


def _system() -> str:
    libc = " ".join(platform.libc_ver()).strip()
    return " ".join(filter(None, (platform.system(), platform.release(), platform.machine(), libc)))


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _usable_cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _memory() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None


def _gpus() -> list[str]:
    """Name, memory and driver of each GPU that nvidia-smi lists."""
    if shutil.which(_SMI[0]) is None:
        return []
    try:
        told = subprocess.run(_SMI, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in told.stdout.splitlines() if line.strip()] if told.returncode == 0 else []


def _setting(value: str) -> str:
    return value if _HARMLESS.fullmatch(value) else "(set)"


_MODELS = ("model", "tokenizer")
_CHOICE = re.compile(
    "agreement|auto|bfloat16|best|bottom_10|certaindex|certainty|chat|chunk|compete|completions|conditional|confidence|"
    "conservative|controller|cpu|cuda|eager|entropy|even|float16|float32|last|late|leave|lowest_group|marginal|max|mean|"
    "mean_logprob|min|mps|newest|none|offline|online|paper|product|ray|sdpa|score|server|step|stream|systematic|tail|"
    "verdict|vote"
)  # argument values
_TYPE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_KEY = re.compile(r"[A-Za-z_$][\w-]{0,40}")
_MODEL = re.compile(r"[\w.-]{1,80}(/[\w.-]{1,80})?")
_SECRET_KEY = re.compile(r"key|token$|secret|passw|credential|auth|cookie|headers?$", re.IGNORECASE)
_SECRET = re.compile(r"\b((sk|pk|hf|gh[a-z]|glpat|xox[a-z]|nvapi)[-_][\w-]{8}|(AKIA|AIza|eyJ)\w{8}|Bearer )")


def shareable(config: StackConfig) -> dict[str, Any]:
    """A stack as plain data without texts, paths, addresses, secrets and defaults."""
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
    """A hub name unchanged; of a path, the last folder."""
    is_path = name.startswith(("/", "~", ".")) or name.count("/") > 1 or "\\" in name
    if is_path:
        name = re.split(r"[/\\]", name.rstrip("/\\"))[-1]
    return name if _MODEL.fullmatch(name) else None


def _address(url: str) -> str:
    """The scheme, and whether the server is on this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"(text of {len(url)} characters)"
    here = parts.hostname in ("localhost", "127.0.0.1", "::1")
    scheme = parts.scheme if parts.scheme in ("http", "https") else "other scheme"
    return f"({scheme}, {'this machine' if here else 'another machine'})"
