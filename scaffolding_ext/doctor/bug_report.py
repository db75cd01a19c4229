"""Data for a bug report: versions and hardware of this machine.

Nothing names the user or the network. No other package is imported, so a broken torch does not hide its version.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

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
