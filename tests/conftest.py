"""A host and a worker that the tests of the host, and of what it gives back, share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scaffolding_ext.controllers.native_generation import NativeGenerationController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import Controller, Worker
from scaffolding_ext.testing import ScriptedWorker


@pytest.fixture
def echo() -> Callable[..., ScriptedWorker]:
    """Makes a worker that answers with the prompt in capitals."""
    return lambda before=None: ScriptedWorker(lambda task: task.input_str.upper(), before=before)


@pytest.fixture
def failing_on() -> Callable[..., ScriptedWorker]:
    """Makes a worker that fails at one prompt, with an error of that type."""

    def make(text: str, error: type[Exception] = RuntimeError) -> ScriptedWorker:
        return ScriptedWorker(lambda task: error("out of luck") if task.input_str == text else task.input_str.upper())

    return make


@pytest.fixture
def host(echo: Callable[..., ScriptedWorker]) -> Callable[..., ScaffoldingLlm]:
    """Makes a host of one controller and one worker, plain generation on the echo by default."""

    def make(controller: Controller | None = None, worker: Worker | None = None, **options: Any) -> ScaffoldingLlm:
        return ScaffoldingLlm(controller or NativeGenerationController(), {"generation": worker or echo()}, **options)

    return make
