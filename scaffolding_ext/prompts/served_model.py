"""The model that reads a stack's prompts, and the prompting that its controller gets from it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol import Worker
from scaffolding_ext.protocol.worker import WorkerTag, declared, worker_for, workers_within

_log = logging.getLogger(__name__)


class ServedModel(NamedTuple):
    """The model that reads the user's prompts in a stack.

    Attributes:
        worker: The generation worker, else the target, else the draft.
        model: A name for `Prompting.for_model`; None if the worker has no model or does not declare one.
    """

    worker: Worker
    model: str | None
    is_known: bool

    def text_prompting(self, **options: Any) -> Prompting:
        """Prompting of a worker without a model whose tokenizer could be loaded; ConfigError if an option needs one."""
        chat = bool(options.pop("chat_template", True)) and declared_inside(self.worker, "takes_messages")
        options.pop("trust_remote_code", None)
        return Prompting(chat=chat, **options, separates_thinking=declared_inside(self.worker, "separates_thinking"))


def served_model(workers: Mapping[Any, Worker]) -> ServedModel | None:
    """The model that the user's prompts go to; None if no worker generates.

    Raises:
        ConfigError: The worker holds workers of several models and does not declare the one for its prompts.
    """
    tags = (WorkerTag.GENERATION, WorkerTag.TARGET, WorkerTag.DRAFT)
    worker = next((found for tag in tags if (found := worker_for(workers, tag)) is not None), None)
    if worker is None:
        return None
    models = _models_in(worker, set())
    if len(models) > 1:
        raise ConfigError(
            f"{type(worker).__name__} holds workers of several models ({', '.join(sorted(map(str, models)))}); "
            "set its attribute `model` to the one that reads its prompts"
        )
    return ServedModel(worker, next(iter(models), None), bool(models))


def declared_inside(worker: Worker, attribute: str) -> bool:
    """Return True if the worker, or one inside it, declares the attribute as true."""
    return any(getattr(declared(each), attribute) for each in workers_within([worker]))


def _models_in(worker: Worker, seen: set[int]) -> set[str | None]:
    if hasattr(worker, "model"):
        return {worker.model}
    seen.add(id(worker))
    inner = [value for value in vars(worker).values() if isinstance(value, Worker) and id(value) not in seen]
    return set().union(*(_models_in(value, seen) for value in inner))


def take_prompting(controller: Any, workers: Mapping[Any, Worker]) -> None:
    """Set the prompting of a stack's outermost controller from its model, unless `prompting` is set (even to None).

    If prompts go to a model unchanged, this is reported once: as a warning if it was chosen, in the log if a worker
    does not declare its model.

    Raises:
        ConfigError: The worker holds several models, or the declared one has no usable prompting.
    """
    if not hasattr(controller, "prompting") or controller.prompting is not None:
        return  # a foreign controller renders its prompts itself
    served = served_model(workers)
    if served is None:
        return
    if served.is_known and served.model is None:
        if declared(served.worker).separates_thinking and "prompting" not in vars(controller):
            controller.prompting = served.text_prompting()
        return
    name = type(served.worker).__name__
    if served.model is None:
        _log.warning(
            "%s does not declare its model, so prompts reach it unchanged, without a chat template: set its attribute "
            "`model` (None if it has none), or controller.prompting = Prompting.for_model(NAME)",
            name,
        )
    elif "prompting" in vars(controller):
        warnings.warn(
            f"controller.prompting is None, so prompts reach {served.model!r} unchanged, without its chat template",
            stacklevel=3,
        )
    else:
        try:
            said = declared(served.worker)
            controller.prompting = Prompting.for_model(
                served.model, trust_remote_code=said.trust_remote_code, tokenizer=said.tokenizer
            )
        except ConfigError as error:
            alias = (
                "; for a server's alias, set the worker's `endpoint: chat`, so that the server renders prompts, or "
                "`tokenizer` to the model's folder or hub name"
            )
            raise ConfigError(
                f"{name} serves {served.model!r}, but {error.message}"
                f"{alias if hasattr(served.worker, 'takes_messages') else ''}; or set controller.prompting (in a stack "
                "file `prompt`) to None to send prompts unchanged",
                "prompt",
            ) from error
