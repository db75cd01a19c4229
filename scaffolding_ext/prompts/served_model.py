"""Whose model reads a stack's prompts, and the prompting that a controller gets from it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.prompting import Prompting, TextPrompting
from scaffolding_ext.protocol import Worker
from scaffolding_ext.protocol.worker import WorkerTag, declared, worker_for

_log = logging.getLogger(__name__)


class ServedModel(NamedTuple):
    """Whose model reads the user's prompts in a stack.

    Attributes:
        worker: The generation worker, or else the target, or the draft.
        model: A name that `Prompting.for_model` takes; None where the worker has no model, or does not say.
    """

    worker: Worker
    model: str | None
    is_known: bool

    def text_prompting(self, **options: Any) -> TextPrompting:
        """The prompting of a worker that has no model whose tokenizer could be loaded.
        Raises:
            ConfigError: An option needs a tokenizer.
        """
        chat = _takes_messages(self.worker, set())
        for key in ("chat_template_kwargs", "assistant_prefix"):
            if options.pop(key, None) is not None:
                raise ConfigError(
                    "needs the chat template of the model's tokenizer: name the model by prompt.model", key
                )
        chat = chat and options.pop("chat_template", True)
        options.pop("trust_remote_code", None)
        return TextPrompting(chat, **options)


def served_model(workers: Mapping[Any, Worker]) -> ServedModel | None:
    """The model that the user's prompts go to; None where no worker generates.

    Raises:
        ConfigError: The worker holds workers of several models and does not say which of them its prompts are for.
    """
    tags = (WorkerTag.GENERATION, WorkerTag.TARGET, WorkerTag.DRAFT)
    worker = next((found for tag in tags if (found := worker_for(workers, tag)) is not None), None)
    if worker is None:
        return None
    models = _models_in(worker, set())
    if len(models) > 1:
        raise ConfigError(
            f"{type(worker).__name__} holds workers of several models ({', '.join(sorted(map(str, models)))}); "
            "give it an attribute `model` with the one that its prompts are for"
        )
    return ServedModel(worker, next(iter(models), None), bool(models))


def _takes_messages(worker: Worker, seen: set[int]) -> bool:
    """Whether the worker, or one inside it, sends prompts as messages."""
    seen.add(id(worker))
    inner = [value for value in vars(worker).values() if isinstance(value, Worker) and id(value) not in seen]
    return declared(worker).takes_messages or any(_takes_messages(value, seen) for value in inner)


def _models_in(worker: Worker, seen: set[int]) -> set[str | None]:
    if hasattr(worker, "model"):
        return {worker.model}
    seen.add(id(worker))
    inner = [value for value in vars(worker).values() if isinstance(value, Worker) and id(value) not in seen]
    return set().union(*(_models_in(value, seen) for value in inner))


def take_prompting(controller: Any, workers: Mapping[Any, Worker]) -> None:
    """Give a stack's outermost controller the prompting of its model, unless somebody set `prompting` (None counts).

    Where prompts go to a model as they are, it says so once: by a warning where that was chosen, in the log where a
    worker does not say which model it serves.

    Raises:
        ConfigError: The worker holds several models, or no prompting can be had for the one that it names.
    """
    if not hasattr(controller, "prompting") or controller.prompting is not None:
        return  # a foreign controller writes its prompts itself
    served = served_model(workers)
    if served is None or (served.is_known and served.model is None):
        return
    name = type(served.worker).__name__
    if served.model is None:
        _log.warning(
            "%s does not say which model it serves, so prompts go to it as they are, without a chat template: give it "
            "an attribute `model` (None if it has none), or set controller.prompting = Prompting.for_model(NAME)",
            name,
        )
    elif "prompting" in vars(controller):
        warnings.warn(
            f"controller.prompting is None, so prompts go to {served.model!r} as they are, without its chat template",
            stacklevel=3,
        )
    else:
        try:
            trusts = declared(served.worker).trust_remote_code
            controller.prompting = Prompting.for_model(served.model, trust_remote_code=trusts)
        except ConfigError as error:
            raise ConfigError(
                f"{name} serves {served.model!r}, but {error.message}; or set controller.prompting (in a stack file "
                "`prompt`) by yourself, to None to send prompts as they are",
                "prompt",
            ) from error
