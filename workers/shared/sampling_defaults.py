"""Sampling of a model without a set temperature: from its `generation_config.json`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import scaffolding_ext
from scaffolding_ext import require
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.prompts.model_files import chosen_family, local_file
from scaffolding_ext.prompts.tokenizers import has_tokenizer, load_tokenizer, model_folder
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import Purpose, purpose_of
from scaffolding_ext.workers.shared.task_reading import integer, number

_PACKAGE = Path(scaffolding_ext.__file__).parent


class GreedyThinkingWarning(UserWarning):
    """A reasoning model decodes chains greedily, which makes such models repeat themselves."""


class Selection(NamedTuple):
    """Sampling parameters of the next token: temperature 0 is greedy; top-p 1, top-k 0 and min-p 0 are off."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0


class SamplingDefaults(NamedTuple):
    """Sampling recommended by a model's authors; None if not given or greedy.

    Missing fields are off. (transformers itself would use its default `top_k` of 50.)
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None

    @classmethod
    def of_model(cls, folder: str) -> SamplingDefaults:
        """Read them from a model's folder or the hub's local cache.

        Raises:
            ConfigError: The file is not JSON, or a value in it is not a number.
        """
        path = local_file(folder, "generation_config.json")
        if path is None:
            return cls()
        try:
            return cls.of_config(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, AttributeError) as error:
            raise ConfigError(
                f"has a {path} whose sampling fields cannot be used ({error}): correct the file", "model"
            ) from error

    @classmethod
    def of_config(cls, said: Mapping[str, Any]) -> SamplingDefaults:
        """Read them from the fields of a generation config.

        Raises:
            ConfigError: A number is none.
        """
        if not said.get("do_sample"):  # greedy, as in transformers
            return cls()
        temperature = require.number("temperature", said.get("temperature") or 1.0, least=0)
        top_p, top_k, min_p = said.get("top_p"), said.get("top_k"), said.get("min_p")
        return cls(
            temperature,
            None if top_p is None else require.number("top_p", top_p, above=0, most=1),
            None if top_k is None else require.whole("top_k", top_k, least=0),
            None if min_p is None else require.number("min_p", min_p, least=0, most=1),
        )

    def selection(self, task: GenerationTask) -> Selection:
        """Sampling parameters of a task.

        A task with a temperature decides everything. Otherwise its top-p and top-k apply, and the model's values fill
        the rest. If nothing is set, decoding is greedy.
        """
        given = Selection(
            number("temperature", task.temperature, 0.0, least=0),
            number("top_p", task.top_p, 1.0, above=0, most=1),
            integer("top_k", task.top_k, 0, 0),
        )
        if task.temperature is not None:
            return given
        if self.temperature is None:
            return given._replace(temperature=0.0 if task.top_p is None and task.top_k is None else 1.0)
        return Selection(
            self.temperature,
            given.top_p if task.top_p is not None or self.top_p is None else self.top_p,
            given.top_k if task.top_k is not None or self.top_k is None else self.top_k,
            self.min_p or 0.0,
        )


class GreedyWatch:
    """Warns once if a reasoning model decodes a chain greedily.

    The embedded models are exempt: their greedy chains end, and are right as often as sampled ones.
    """

    def __init__(self, model: str | None) -> None:
        self._model = model

    def see(self, task: GenerationTask, temperature: float | None) -> None:
        if self._model is None or temperature != 0 or purpose_of(task).written is not Purpose.CHAIN:
            return
        model, self._model = self._model, None
        if _thinks(model):
            warnings.warn(
                f"{model} is a reasoning model, and its chains are decoded greedily: such models repeat themselves "
                "then. Set a temperature, such as sampling_params: {temperature: 0.6, top_p: 0.95}",
                GreedyThinkingWarning,
                stacklevel=2,
            )


def _thinks(model: str) -> bool:
    """True if the family of a model whose tokenizer is here thinks; embedded models do not count."""
    folder = model_folder(model)
    if _PACKAGE in Path(folder).parents or not has_tokenizer(model):
        return False
    return family_named(chosen_family(folder, load_tokenizer(model)).name).thinks
