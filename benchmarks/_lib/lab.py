"""The embedded models on engines of their own, asked by controllers or directly, and a store of what they said."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from benchmarks._lib.store import kept
from scaffolding_ext.evaluation.run.datasets import EMBEDDED, Example, load_dataset
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol import Controller, Task, Worker
from scaffolding_ext.request.results import ScaffoldingResult
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker
from scaffolding_ext.workers.openai.worker import OpenAIWorker

MODELS = {"draft": "tinylm/draft", "target": "tinylm/target"}
AT_ONCE = 8  # questions: with 16 chains each, as many rows as the engines have, so that no chain's KV is evicted
_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T", bound=Task)
_V = TypeVar("_V")


def draft_and_target(function: _F) -> _F:
    """Options of a study of two models: which they are, where they run, and the questions."""
    for option in (
        click.option("--dataset", default=EMBEDDED, show_default=True, help="Where the questions come from."),
        click.option(
            "--base_url", help="A server's address that ends in /v1, which has both models under these names."
        ),
        click.option("--draft", default=MODELS["draft"], show_default=True, help="The draft model, or its folder."),
        click.option("--model", default=MODELS["target"], show_default=True, help="The target model, or its folder."),
    ):
        function = option(function)
    return function


def questions_of(dataset: str, num_problems: int, seed: int) -> list[Example]:
    """The first questions of a file, or drawn embedded ones."""
    if dataset == EMBEDDED:
        return load_dataset(dataset, num_samples=num_problems, seed=seed)
    return load_dataset(dataset, limit=str(num_problems))


def told_apart(*names: str) -> str:
    """The suffix of a stored study's name if models or questions are others than the embedded ones; else nothing."""
    own = (MODELS["target"], MODELS["draft"], EMBEDDED)
    return "".join(f"_{Path(name).name}" for name in names) if names != own else ""


class Lab:
    """Engines by worker tag, the prompting of the last model, a seed, and a store; `with` frees the engines.

    Args:
        models: Name of each model.
        seed: Of what controllers answer.
        store: Folder of what was found before; None keeps nothing.
        base_url: A server that has the models; None runs them here.
        worker: Class of the engines.
        engine: Further arguments of the engines.
    """

    def __init__(
        self,
        models: Mapping[str, str] = MODELS,
        *,
        seed: int = 0,
        store: Path | None = None,
        base_url: str | None = None,
        worker: type[HuggingFaceWorker] = HuggingFaceWorker,
        **engine: Any,
    ) -> None:
        self.workers: dict[str, Worker] = {
            tag: worker(model, **engine) if base_url is None else OpenAIWorker(base_url, model, tokenizer=model)
            for tag, model in models.items()
        }
        self.prompting = Prompting.for_model(list(models.values())[-1])
        self.seed, self.store = seed, store

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: Any) -> None:
        for worker in self.workers.values():
            worker.shutdown()

    def block(self, seed: int, store: Path | None) -> Lab:
        """The same engines with another seed and store; who made the engines frees them."""
        other = copy.copy(self)
        other.seed, other.store = seed, store
        return other

    def stored(self, name: str, find: Callable[[], _V]) -> _V:
        """The result of `find`, as JSON gives it back; from the store if it was found before."""
        return kept(self.store, name, find)

    def answers(
        self,
        controller: Controller,
        prompts: Sequence[str],
        workers: Mapping[str, Worker] | None = None,
        *,
        seed: int | None = None,
        at_once: int = AT_ONCE,
    ) -> list[ScaffoldingResult]:
        """The answers of a controller to prompts, on the engines or on other workers."""
        controller.prompting = self.prompting  # type: ignore[attr-defined]
        seed = self.seed if seed is None else seed
        with ScaffoldingLlm(controller, dict(workers or self.workers), seed=seed, max_parallel_requests=at_once) as llm:
            results: list[ScaffoldingResult] = llm.generate(list(prompts))
            return results

    def ask(self, tag: str, tasks: Sequence[_T]) -> list[_T]:
        """Run tasks on an engine, all at once."""

        async def run_all() -> None:
            await asyncio.gather(*map(self.workers[tag].run_task, tasks))

        asyncio.run(run_all())
        return list(tasks)
