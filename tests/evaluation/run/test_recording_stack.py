"""A recording is drawn from a stack, taken up where it was left, and read back as it was decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.evaluation.run.recording_stack import draw, recording_stack
from scaffolding_ext.evaluation.run.records import read_records
from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.stack.load import load_config

CHAIN = {"max_tokens": 160, "temperature": 0.7}


def stack(controller: dict[str, Any], num_questions: int = 2) -> StackConfig:
    return StackConfig.model_validate(
        {
            "controller": controller,
            "workers": {"generation": {"type": "HuggingFaceWorker", "args": {"model": "tinylm/target"}}},
            "dataset": {"source": "tinylm:held_out", "num_samples": num_questions},
            "seed": 3,
        }
    ).for_run()


def native(**sampling: Any) -> dict[str, Any]:
    return {"type": "NativeGenerationController", "args": {"sampling_params": sampling}}


def test_chains_of_a_vote_are_recorded_with_their_looks(tmp_path: Path) -> None:
    vote = {
        "type": "MajorityVoteController",
        "args": {"default_sample_num": 8, "generation_controller": native(**CHAIN)},
    }
    config = recording_stack(stack(vote), num_samples=2, look_every=40)
    drawn = draw(config, tmp_path / "store", lambda text: None)
    assert drawn == (None, None)
    recording = read_recording([tmp_path / "store"])
    assert (len(recording.questions), recording.num_samples) == (2, 2)
    assert recording.model == "tinylm/target"
    records = {(each.id, each.epoch): each for each in read_records(tmp_path / "store" / "samples.jsonl")}
    for question in recording.questions:
        assert question.looks is not None
        for number, looks in enumerate(question.looks):
            positions = [probe.prefix.num_tokens for probe in looks.probes]
            assert positions == [40 * (each + 1) for each in range(len(positions))]
            assert all(probe.confidence is not None for probe in looks.probes)
            record = records[question.id, number]
            asked = int(looks.num_answer_tokens.sum() + looks.num_forced_tokens.sum())
            assert question.tokens[number] == record.ledger["total"]["decoded"] - asked
            assert question.correct[number] == record.correct


def test_a_recording_goes_on_where_it_was_left(tmp_path: Path) -> None:
    store = tmp_path / "store"
    controller = native(**CHAIN)
    draw(recording_stack(stack(controller), num_samples=1), store, lambda text: None)
    (store / "samples.jsonl").write_text((store / "samples.jsonl").read_text().splitlines()[0] + "\n")
    first = (store / "samples.jsonl").read_text()
    draw(recording_stack(stack(controller), num_samples=1), store, lambda text: None)
    assert (store / "samples.jsonl").read_text().startswith(first)
    recording = read_recording([store])
    assert (len(recording.questions), recording.num_samples) == (2, 1)
    assert "looks" in recording.missing


def test_a_chain_is_looked_at_twice_as_often_as_its_own_rule_looks() -> None:
    found = recording_stack(load_config("configs:dynasor_cot").for_run(), num_samples=4)
    assert found.controller.type == "RecordChainController"
    assert found.controller.args["spacing"] == load_config("configs:dynasor_cot").controller.args["chunk_size"] // 2
    assert "rule" not in found.controller.args["generation_controller"]["args"]
    assert found.evaluation.epochs == 4


def test_branches_are_no_samples_to_record() -> None:
    with pytest.raises(
        ConfigError, match=r"controller\.type: is a KVShareBranchingController; samples are recorded of"
    ):
        recording_stack(load_config("configs:kv_share_branching").for_run())
