"""Chains that a model writes for its own training: sampled once, of the training split, and labelled by the grammar."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.prompts.prompting import load_tokenizer, model_folder
from scaffolding_ext.tinylm import own_chains as module
from scaffolding_ext.tinylm.chains import read_chain
from scaffolding_ext.tinylm.data import OwnChain
from scaffolding_ext.tinylm.grammar import sample_problem, split_of
from scaffolding_ext.tinylm.own_chains import own_chains

torch = pytest.importorskip("torch")

MODEL = "tinylm/draft"
NUM_CHAINS = 6


@pytest.fixture(scope="module")
def model() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_folder(MODEL))


def few(patch: pytest.MonkeyPatch) -> None:
    """A few chains, in two batches."""
    patch.setattr(module, "NUM_CHAINS", NUM_CHAINS)
    patch.setattr(module, "_BATCH_SIZE", 4)


@pytest.fixture(autouse=True)
def few_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    few(monkeypatch)


@pytest.fixture(scope="module")
def file(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the shipped draft has written, at full length."""
    file = tmp_path_factory.mktemp("own") / "own_chains.json"
    with pytest.MonkeyPatch.context() as patch:
        few(patch)
        own_chains(model, load_tokenizer(MODEL), 0, file)
    return file


def read(file: Path, seed: int = 0) -> list[OwnChain]:
    """From the file alone: there is no model to sample from."""
    return own_chains(None, None, seed, file)  # type: ignore[arg-type]


def test_chains_are_read_from_the_file_where_there_is_one(file: Path) -> None:
    texts = json.loads(file.read_text())
    assert len(texts) == NUM_CHAINS
    chains = read(file)
    assert len(chains) >= NUM_CHAINS // 2
    assert {"".join(segment.text for segment in chain.segments) for chain in chains} <= set(texts)
    assert not list(file.parent.glob("*.tmp"))


def test_they_are_about_problems_of_the_training_split_and_labelled(file: Path) -> None:
    for problem, segments in read(file):
        assert split_of(problem.question) == "train"
        assert segments == read_chain(problem, "".join(segment.text for segment in segments))
        assert segments[-1].belief is not None
        labels = [segment.is_right for segment in segments if segment.is_right is not None]
        assert len(labels) >= problem.num_steps


def test_most_steps_of_a_trained_model_are_right(file: Path) -> None:
    labels = [segment.is_right for chain in read(file) for segment in chain.segments if segment.is_right is not None]
    assert labels.count(True) > len(labels) / 2


def test_a_chain_that_is_not_closed_in_time_is_left_out(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CHAIN_LEN", 12)
    assert own_chains(model, load_tokenizer(MODEL), 0, tmp_path / "own.json") == []
    assert json.loads((tmp_path / "own.json").read_text()) == [None] * NUM_CHAINS


def test_sampling_depends_on_its_seed_and_leaves_the_global_generator_alone(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_tokenizer(MODEL)
    problems = [sample_problem(random.Random(seed), "train") for seed in range(5)]
    monkeypatch.setattr(module, "MAX_CHAIN_LEN", 30)
    monkeypatch.setattr(module, "THINK_CLOSE", "Ċ")  # a newline: the first line will do
    before = torch.random.get_rng_state()
    texts = [module.sample_thinking(model, tokenizer, problems, seed) for seed in (1, 1)]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert texts[0] == texts[1]
    assert all(text and text[0].isupper() for text in texts[0])  # an opening, such as "Let me work through this."
