"""TensorRT-LLM as `tests/fake_upstream` has it, for tests of the worker over it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import scaffolding_ext.protocol  # (its stand-ins are taken before the fake can be imported)

FAKE_UPSTREAM = Path(__file__).parent.parent / "fake_upstream"


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]


@pytest.fixture
def tensorrt_llm(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The fake of one release, by indirect parametrisation (`1.2.1` by default), importable while the test runs."""
    pytest.importorskip("torch")
    monkeypatch.setenv("FAKE_UPSTREAM_RELEASE", getattr(request, "param", "1.2.1"))
    monkeypatch.setattr(sys, "path", [str(FAKE_UPSTREAM), *sys.path])
    importlib.invalidate_caches()
    _forget()
    yield scaffolding_ext.protocol.import_tensorrt_llm()
    _forget()
