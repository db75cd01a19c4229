"""Fronts over scripted stacks, on real sockets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import Controller
from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.server import FrontThread
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.stack.build import build_stack
from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.testing import ScriptedWorker

Reply = Callable[[Any], Any]


class Served:
    """A running front with one stack, `model`, and what a test looks at in it."""

    def __init__(
        self,
        front: Front,
        stack: ServedStack,
        thread: FrontThread,
        worker: ScriptedWorker,
        until_end: contextlib.ExitStack,
    ) -> None:
        self.front, self.stack, self.thread, self.worker = front, stack, thread, worker
        self.url = thread.url
        self._until_end = until_end

    def client(self, **options: Any) -> openai.OpenAI:
        """A client, which is closed at the end of the test: else the garbage collector warns of it in any later one."""
        client = openai.OpenAI(base_url=f"{self.url}/v1", **({"api_key": "none", "max_retries": 0} | options))
        self._until_end.callback(client.close)
        return client

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's series that have these labels."""
        total = 0.0
        for line in self.front.metrics.page().decode().splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name and all(f'{key}="{each}"' in series for key, each in labels.items()):
                total += float(value)
        return total


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Serves a scripted worker under a controller; several times, where a test wants it."""
    with contextlib.ExitStack() as stack:

        def start(
            reply: Reply | str = "It is \\boxed{4}.",
            controller: Controller | None = None,
            *,
            limits: Limits | None = None,
            before: Any = None,
            model_worker: Any = None,
            stack_file: dict[str, Any] | None = None,
            host: dict[str, Any] | None = None,
            **options: Any,
        ) -> Served:
            worker = model_worker or ScriptedWorker(reply, before=before)
            config = None if stack_file is None else StackConfig.model_validate(stack_file)
            if config is None:
                llm = ScaffoldingLlm(controller or NativeGenerationController(), {"generation": worker}, **(host or {}))
            else:
                llm = build_stack(config)
            limits = limits or Limits()
            served = ServedStack("model", llm, limits, config=config)
            front = Front([served], limits, **options)
            running = stack.enter_context(FrontThread(front))
            return Served(front, served, running, worker, stack)

        yield start
