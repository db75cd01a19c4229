"""The default sampling of a model without a temperature, and the warning of reasoning models that run greedily."""

from __future__ import annotations

import asyncio
import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.tokenizers import model_folder
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import PROBE, note
from scaffolding_ext.workers.shared.sampling_defaults import GreedyThinkingWarning, GreedyWatch, SamplingDefaults

MODEL = "tinylm/draft"


def said(folder: Path, **fields: Any) -> SamplingDefaults:
    (folder / "generation_config.json").write_text(json.dumps(fields))
    return SamplingDefaults.of_model(str(folder))


def test_what_the_file_leaves_out_is_off(tmp_path: Path) -> None:
    assert SamplingDefaults.of_model(str(tmp_path)) == SamplingDefaults()
    assert said(tmp_path, eos_token_id=3) == SamplingDefaults()
    assert said(tmp_path, do_sample=False, temperature=0.6) == SamplingDefaults()
    assert said(tmp_path, do_sample=True) == SamplingDefaults(1.0)
    assert said(tmp_path, do_sample=True, temperature=0.6, top_p=0.95) == SamplingDefaults(0.6, 0.95)
    assert SamplingDefaults.of_model("nobody/knows-this-model") == SamplingDefaults()
    assert SamplingDefaults.of_model("/no/such/folder") == SamplingDefaults()


@pytest.mark.parametrize("text", ["no json", "[1]", '{"do_sample": true, "top_p": "high"}'])
def test_a_file_that_is_wrong_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(
        ConfigError, match=r"model: has a .*generation_config\.json whose sampling fields cannot be used"
    ):
        SamplingDefaults.of_model(str(tmp_path))


@pytest.mark.parametrize(
    ("fields", "by_itself", "with_defaults"),
    [
        ({}, (0.0, 1.0, 0), (0.6, 0.95, 20)),
        ({"temperature": 0.0}, (0.0, 1.0, 0), (0.0, 1.0, 0)),
        ({"temperature": 0.7}, (0.7, 1.0, 0), (0.7, 1.0, 0)),
        ({"top_p": 0.5}, (1.0, 0.5, 0), (0.6, 0.5, 20)),
        ({"top_k": 5}, (1.0, 1.0, 5), (0.6, 0.95, 5)),
    ],
)
def test_a_task_with_a_temperature_says_it_all(
    fields: dict[str, Any], by_itself: tuple[float, ...], with_defaults: tuple[float, ...]
) -> None:
    task = GenerationTask(**fields)
    assert SamplingDefaults().selection(task)[:3] == by_itself
    assert SamplingDefaults(0.6, 0.95, 20, 0.1).selection(task) == (
        *with_defaults,
        0.0 if task.temperature is not None else 0.1,
    )


def test_a_reasoning_model_that_decodes_chains_greedily_is_warned_of_once(saved_model: Callable[..., str]) -> None:
    watch = GreedyWatch(saved_model("qwen3"))
    probe = GenerationTask()
    note(probe, purpose=PROBE)
    watch.see(probe, 0.0)  # a probe may be greedy
    watch.see(GenerationTask(), 0.6)
    with pytest.warns(GreedyThinkingWarning, match="is a reasoning model, and its chains are decoded greedily"):
        watch.see(GenerationTask(), 0.0)
    watch.see(GenerationTask(), 0.0)


def test_other_models_are_not_warned_of(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for model in (None, MODEL, model_folder(MODEL), str(tmp_path), "nobody/knows-this-model", "not a name"):
            GreedyWatch(model).see(GenerationTask(), 0.0)


def test_the_transformers_worker_takes_the_models_own_sampling(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

    folder = shutil.copytree(model_folder(MODEL), tmp_path / "model")
    said(folder, do_sample=True, temperature=3.0, top_k=40, eos_token_id=3)

    def ids(model: str, **fields: Any) -> list[int]:
        task = GenerationTask(input_tokens=[5, 6, 7], max_tokens=24, seed=4, ignore_eos=True, **fields)
        with HuggingFaceWorker(model) as worker:
            asyncio.run(worker.run_task(task))
        return task.output_tokens or []

    assert ids(str(folder)) == ids(MODEL, temperature=3.0, top_k=40) != ids(MODEL)


@pytest.mark.parametrize(
    ("template", "thinks"),
    [
        ("qwen3", True),
        ("gpt_oss", True),
        ("magistral", True),
        ("qwen3_instruct_2507", False),
        ("llama3_instruct", False),
    ],
)
def test_the_chat_template_says_whether_a_model_thinks(
    template: str, thinks: bool, saved_model: Callable[..., str]
) -> None:
    """The vocabulary of all of them has `</think>`, as that of Qwen3-Instruct-2507 does."""
    watch = GreedyWatch(saved_model(template))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        watch.see(GenerationTask(), 0.0)
    assert [warning.category for warning in caught] == [GreedyThinkingWarning] * thinks
