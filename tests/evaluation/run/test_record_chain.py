"""A recording is drawn from a stack, taken up where it was left, and read back as it was decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.evaluation.run.record_chain import recording_stack
from scaffolding_ext.evaluation.run.records import read_records
from scaffolding_ext.evaluation.run.run_folder import claimed
from scaffolding_ext.evaluation.run.session import Session
from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.stack.load import load_config

CHAIN = {"max_tokens": 160, "temperature": 0.7}


def stack(controller: dict[str, Any], num_questions: int = 2, epochs: int = 1) -> StackConfig:
    return StackConfig.model_validate(
        {
            "controller": controller,
            "workers": {"generation": {"type": "HuggingFaceWorker", "args": {"model": "tinylm/target"}}},
            "dataset": {"source": "tinylm:held_out", "num_samples": num_questions},
            "evaluation": {"epochs": epochs},
            "seed": 3,
        }
    ).for_run()


def recorded_in(config: StackConfig, folder: Path) -> None:
    with claimed(folder, resume=True) as goes_on:
        session = Session(config, folder)
        if goes_on:
            session.resume(is_mended=True)
        assert session.go(lambda text: None) is None
    assert session.tally.first_error is None


def native(**sampling: Any) -> dict[str, Any]:
    return {"type": "NativeGenerationController", "args": {"sampling_params": sampling}}


def test_chains_of_a_vote_are_recorded_with_their_looks(tmp_path: Path) -> None:
    vote = {
        "type": "MajorityVoteController",
        "args": {"default_sample_num": 8, "generation_controller": native(**CHAIN)},
    }
    recorded_in(recording_stack(stack(vote, epochs=2), probe_every=40), tmp_path / "store")
    recording = read_recording([tmp_path / "store"])
    assert (len(recording.questions), recording.num_samples) == (2, 2)
    assert recording.model == "tinylm/target"
    records = {(each.id, each.epoch): each for each in read_records(tmp_path / "store" / "samples.jsonl")}
    for question in recording.questions:
        assert question.probes is not None
        for number, chain in enumerate(question.probes):
            positions = [probe.prefix.num_tokens for probe in chain.probes]
            assert positions == [40 * (each + 1) for each in range(len(positions))]
            assert all(probe.confidence is not None for probe in chain.probes)
            record = records[question.id, number]
            asked = int(chain.num_answer_tokens.sum() + chain.num_forced_tokens.sum())
            assert question.tokens[number] == record.ledger["total"]["decoded"] - asked
            assert question.correct[number] == record.correct


def test_a_recording_goes_on_where_it_was_left(tmp_path: Path) -> None:
    store = tmp_path / "store"
    controller = native(**CHAIN)
    recorded_in(recording_stack(stack(controller), probe_every=0), store)
    (store / "samples.jsonl").write_text((store / "samples.jsonl").read_text().splitlines()[0] + "\n")
    first = (store / "samples.jsonl").read_text()
    recorded_in(recording_stack(stack(controller), probe_every=0), store)
    assert (store / "samples.jsonl").read_text().startswith(first)
    recording = read_recording([store])
    assert (len(recording.questions), recording.num_samples) == (2, 1)
    assert "probes" in recording.missing


def test_a_chain_that_stops_is_recorded_whole_without_its_rule() -> None:
    config = load_config("configs:dynasor_cot").for_run()
    probed = recording_stack(config, 16)
    assert probed.controller.type == "RecordChainController"
    assert probed.controller.args["spacing"] == 16
    assert "rule" not in probed.controller.args["generation_controller"]["args"]
    args = config.controller.args
    whole = recording_stack(config, 0).controller
    sampling = {**args["sampling_params"], "max_tokens": args["max_tokens"]}
    assert whole.model_dump() == {"type": "NativeGenerationController", "args": {"sampling_params": sampling}}


def test_branches_are_no_samples_to_record() -> None:
    with pytest.raises(
        ConfigError, match=r"controller\.type: is a KVShareBranchingController; samples are recorded of"
    ):
        recording_stack(load_config("configs:kv_share_branching").for_run(), 0)
