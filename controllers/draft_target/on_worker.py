"""Run any controller on the worker of another tag."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.needs import Needs, joined
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import Controller, ControllerGenerator, Task, Worker
from scaffolding_ext.protocol.relay import relay
from scaffolding_ext.protocol.worker import WorkerTag, declared, tag_name, worker_for, worker_key


class OnWorker(BaseController):
    """Redirects a controller's tasks for the worker `generation` to the worker of another tag."""

    def __init__(self, controller: Controller, tag: WorkerTag) -> None:
        super().__init__()
        self.controller = controller
        self.tag = tag
        self.needs = Needs(tags=(tag,))

    def clone(self) -> OnWorker:
        return OnWorker(self.controller.clone(), self.tag)

    def needs_by_tag(self) -> dict[str, Needs]:
        found = super().needs_by_tag()
        inside = found.pop(WorkerTag.GENERATION.value, Needs())
        return {**found, self.tag.value: joined([found[self.tag.value], inside])}

    def check_roles(self, workers: Mapping[Any, Any]) -> None:
        """Refuse a stack without the worker of the tag, or without others that the controller needs."""
        super().check_roles(self._as_seen_inside(workers))

    def bind(self, workers: Mapping[Any, Worker]) -> None:
        """Bind the controller to the worker of the tag as its `generation`."""
        super().bind(self._as_seen_inside(workers))

    def _as_seen_inside(self, workers: Mapping[Any, Any]) -> dict[Any, Any]:
        key = worker_key(workers, self.tag)
        if key is None:  # about to be refused, naming the workers that exist
            return dict(workers)
        others = {other: worker for other, worker in workers.items() if tag_name(other) != WorkerTag.GENERATION.value}
        return {**others, WorkerTag.GENERATION: workers[key]}

    def process(self, tasks: list[Any], **kwargs: Any) -> ControllerGenerator:
        return on_worker(self.controller.process(tasks, **kwargs), self.tag)


def on_their_workers(draft: Controller | None, target: Controller | None) -> tuple[OnWorker, OnWorker]:
    """Put draft and target on their workers; by default they generate plainly."""
    draft = draft or NativeGenerationController({"temperature": 0.7})
    target = target or NativeGenerationController({"temperature": 0.7})
    return OnWorker(draft, WorkerTag.DRAFT), OnWorker(target, WorkerTag.TARGET)


def shares_tokens(workers: Mapping[Any, Worker], shares_prompt: bool) -> bool:
    """Return True if draft and target have the same tokenizer, so that they can exchange token ids.

    Raises:
        ConfigError: Their chat templates differ, and `shares_prompt` is not set.
    """
    draft, target = (declared(worker_for(workers, tag)) for tag in (WorkerTag.DRAFT, WorkerTag.TARGET))
    templates = {draft.chat_template, target.chat_template}
    if not shares_prompt and None not in templates and len(templates) > 1:
        raise ConfigError(
            "the models of draft and target have different chat templates, but both read the prompt that "
            "one of them renders: use models of one family, or set shares_prompt if this does no harm",
            "workers.draft",
        )
    return draft.tokenizer_fingerprint is not None and draft.tokenizer_fingerprint == target.tokenizer_fingerprint


def on_worker(generator: Iterable[Any], tag: WorkerTag) -> ControllerGenerator:
    """Pass a controller's work through, branches included, redirecting tasks for `generation` to another tag."""

    def send(tasks: Iterable[Task]) -> None:
        for task in tasks:
            if tag_name(task.worker_tag) == WorkerTag.GENERATION.value:
                task.worker_tag = tag

    return relay(generator, before=send)
