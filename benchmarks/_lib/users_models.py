"""The user's own models behind TensorRT-LLM, transformers or a server: what `--model` and `--base_url` stand for."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from benchmarks._lib.runs import Run, timed_run
from scaffolding_ext import HuggingFaceWorker, OpenAIWorker, ScaffoldingLlm, TRTLLMWorker
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.prompts.served_model import take_prompting
from scaffolding_ext.protocol import Controller, Worker

T = TypeVar("T")


def chosen_models(function: Callable[..., T]) -> Callable[..., T]:
    """Options of a command: which models, and where they run."""
    for option in (
        click.option("--base_url", help="A server's address that ends in /v1; --model then names a model of it."),
        click.option("--tokenizer", help="Folder or name of the server's tokenizer.  [default: --model]"),
        click.option("--model", default="tinylm/target", show_default=True, help="A checkpoint."),
    ):
        function = option(function)
    return function


def worker_of(model: str, base_url: str | None = None, tokenizer: str | None = None, **arguments: Any) -> Worker:
    """A worker: of the server at `base_url`, else of TensorRT-LLM where it is installed, else of transformers.

    Args:
        model: A checkpoint, or the server's name of it.
        base_url: The server's address.
        tokenizer: The server's tokenizer.
        arguments: Of `TRTLLMWorker`.
    """
    if base_url is not None:
        return OpenAIWorker(base_url, model, tokenizer=tokenizer or model)
    if importlib.util.find_spec("tensorrt_llm") is not None:
        return TRTLLMWorker(model, self_test=False, **arguments)
    reuse = arguments.get("enable_block_reuse", True)
    return HuggingFaceWorker(model, enable_block_reuse=reuse, **({"device": "cuda"} if _has_gpu() else {}))


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def run_controller(
    controller: Controller, workers: Mapping[str, Worker], samples: Sequence[Example], *, seed: int, at_once: int
) -> Run:
    """Answer the questions on workers that stay loaded."""
    take_prompting(controller, workers)
    with ScaffoldingLlm(controller, dict(workers), seed=seed, max_parallel_requests=at_once) as llm:
        return timed_run(llm, samples)
