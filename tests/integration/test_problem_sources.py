"""Datasets that other libraries load: reasoning-gym and Hugging Face's, where they are installed."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.run.datasets import Example, load_dataset

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]


def test_tasks_of_reasoning_gym_are_drawn_by_seed_and_verified_by_themselves() -> None:
    pytest.importorskip("reasoning_gym")
    samples = load_dataset("reasoning_gym:chain_sum", num_samples=5, seed=1)
    assert [sample.id for sample in samples] == [f"chain_sum-1-{i}" for i in range(5)]
    again, other = (load_dataset("reasoning_gym:chain_sum", num_samples=5, seed=seed) for seed in (1, 2))
    assert [sample.prompt for sample in samples] == [sample.prompt for sample in again]
    assert [sample.prompt for sample in samples] != [sample.prompt for sample in other]
    for sample in pickle.loads(pickle.dumps(samples)):  # as they travel to other processes
        assert sample.verify(sample.target).correct
        assert not sample.verify("no number").correct


def test_a_verifier_takes_what_no_comparison_with_the_target_would() -> None:
    pytest.importorskip("reasoning_gym")
    (sample,) = load_dataset("reasoning_gym:countdown", num_samples=1, args={"min_numbers": 2, "max_numbers": 2})
    assert sample.verify is not None
    turned = " + ".join(reversed(sample.target.split(" + "))) if " + " in sample.target else f"({sample.target})"
    assert turned != sample.target
    assert sample.verify(turned).correct


@pytest.mark.parametrize(("task", "args"), [("no_such_task", {}), ("chain_sum", {"no_such_key": 1})])
def test_a_task_or_key_that_reasoning_gym_does_not_know_is_refused(task: str, args: dict[str, int]) -> None:
    pytest.importorskip("reasoning_gym")
    with pytest.raises(DatasetError, match=rf"cannot draw problems of reasoning_gym:{task}: .*no_such"):
        load_dataset(f"reasoning_gym:{task}", args=args)


def test_a_folder_is_read_as_hugging_face_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    rows = [{"question": "1+1?", "answer": "so\n#### 2"}, {"question": "2+1?", "answer": "so\n#### 3"}]
    folder = tmp_path / "lessons"
    folder.mkdir()
    (folder / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    samples = load_dataset(f"hf:{folder}", format="gsm8k")
    assert samples == [
        Example(id, text, to, answers_anyhow=True) for id, text, to in (("1", "1+1?", "2"), ("2", "2+1?", "3"))
    ]
    with pytest.raises(DatasetError, match=r"row 1, field 'answer': 'so.*; it must be a number; row 2, field 'answer'"):
        load_dataset(f"hf:{folder}", format="amc")
    with pytest.raises(DatasetError, match=r"cannot load the dataset .*lessons from Hugging Face: ValueError"):
        load_dataset(f"hf:{folder}", split="validation")


def test_a_dataset_that_cannot_be_reached_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        DatasetError, match=r"cannot load the dataset nobody/nothing from Hugging Face.*name a JSONL fi"
    ):
        load_dataset("hf:nobody/nothing")
