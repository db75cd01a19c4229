"""Runs any controller on the worker of another tag."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.capabilities import Requests, joined
from scaffolding_ext.protocol import Controller, ControllerGenerator, Task, Worker
from scaffolding_ext.protocol.relay import relay
from scaffolding_ext.protocol.worker import WorkerTag, tag_name, worker_key


class OnWorker(BaseController):
    """Sends what a controller asks of the worker `generation` to the worker of another tag."""

    def __init__(self, controller: Controller, tag: WorkerTag) -> None:
        super().__init__()
        self.controller = controller
        self.tag = tag
        self.required_tags = (tag,)

    def clone(self) -> OnWorker:
        return OnWorker(self.controller.clone(), self.tag)

    def requests(self) -> dict[str, Requests]:
        inside = WorkerTag.GENERATION.value
        sent = super().requests().items()
        return joined({self.tag.value if name == inside else name: requests} for name, requests in sent)

    def check_roles(self, workers: Mapping[Any, Any]) -> None:
        """Refuse a stack without the worker of the tag, and without the others that the controller needs."""
        super().check_roles(self._as_seen_inside(workers))

    def bind(self, workers: Mapping[Any, Worker]) -> None:
        """Tell the controller what the worker of the tag can do, as its `generation`."""
        super().bind(self._as_seen_inside(workers))

    def _as_seen_inside(self, workers: Mapping[Any, Any]) -> dict[Any, Any]:
        """The workers with that of the tag as `generation`."""
        key = worker_key(workers, self.tag)
        if key is None:  # it is about to be refused, with the workers that are there
            return dict(workers)
        others = {other: worker for other, worker in workers.items() if tag_name(other) != WorkerTag.GENERATION.value}
        return {**others, WorkerTag.GENERATION: workers[key]}

    def process(self, tasks: list[Any], **kwargs: Any) -> ControllerGenerator:
        return on_worker(self.controller.process(tasks, **kwargs), self.tag)


def on_worker(generator: Iterable[Any], tag: WorkerTag) -> ControllerGenerator:
    """Pass a controller's work through, tasks for `generation` going to another tag; branches included."""

    def send(tasks: Iterable[Task]) -> None:
        for task in tasks:
            if tag_name(task.worker_tag) == WorkerTag.GENERATION.value:
                task.worker_tag = tag

    return relay(generator, before=send)
