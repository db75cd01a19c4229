"""The embedded models on engines of their own, and a store of what they said."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks._lib.store import kept
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol import Controller
from scaffolding_ext.request.results import ScaffoldingResult
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

MODELS = {"draft": "tinylm/draft", "target": "tinylm/target"}
AT_ONCE = 8  # questions: with 16 chains each, as many rows as the engines have, so that no chain's KV is evicted
_V = TypeVar("_V")


class Lab:
    """Engines by worker tag, the prompting of the last model, a seed, and a store; `with` frees the engines.

    Args:
        models: Name of each model.
        seed: Of what controllers answer.
        store: Folder of what was found before; None keeps nothing.
        worker: Class of the engines.
        engine: Further arguments of the engines.
    """

    def __init__(
        self,
        models: Mapping[str, str] = MODELS,
        *,
        seed: int = 0,
        store: Path | None = None,
        worker: type[HuggingFaceWorker] = HuggingFaceWorker,
        **engine: Any,
    ) -> None:
        self.workers = {tag: worker(model, **engine) for tag, model in models.items()}
        self.prompting = Prompting.for_model(list(models.values())[-1])
        self.seed, self.store = seed, store

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: Any) -> None:
        for worker in self.workers.values():
            worker.shutdown()

    def stored(self, name: str, find: Callable[[], _V]) -> _V:
        """The result of `find`, as JSON gives it back; from the store if it was found before."""
        return kept(self.store, name, find)

    def answers(
        self,
        controller: Controller,
        prompts: Sequence[str],
        *,
        seed: int | None = None,
        at_once: int = AT_ONCE,
    ) -> list[ScaffoldingResult]:
        """The answers of a controller to prompts."""
        controller.prompting = self.prompting  # type: ignore[attr-defined]
        seed = self.seed if seed is None else seed
        with ScaffoldingLlm(controller, dict(self.workers), seed=seed, max_parallel_requests=at_once) as llm:
            results: list[ScaffoldingResult] = llm.generate(list(prompts))
            return results
