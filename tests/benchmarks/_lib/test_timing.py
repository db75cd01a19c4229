"""What the timing of draft/target systems computes, on schedules and runs made by hand."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from benchmarks._lib import latency, roofline, timing
from scaffolding_ext.controllers.draft_target.baselines import Coin
from scaffolding_ext.controllers.draft_target.conformal_draft_target import ConformalDraftTargetController
from scaffolding_ext.evaluation.preflight.schedule import Latency, ScheduledChunk
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.testing import ScriptedWorker

pytest.importorskip("torch")


def test_a_worker_with_a_latency_answers_as_its_worker_and_says_what_was_set() -> None:
    inner = ScriptedWorker("four")
    inner.tokenizer_fingerprint = "fingerprint"  # type: ignore[attr-defined]
    worker = latency.SetLatency(inner, Latency(0.0, 0.001))
    task = GenerationTask(input_str="ab", max_tokens=4)
    asyncio.run(worker.run_task(task))
    assert (task.output_str, worker.tokenizer_fingerprint) == ("four", "fingerprint")
    assert worker.set_s == pytest.approx(0.002)
    assert worker.late_s >= 0


def test_the_fit_finds_what_a_step_and_a_token_cost() -> None:
    shapes = np.random.default_rng(0).integers(1, 200, (30, 3)).tolist()
    runs = [(steps, decoded, read, 3e-3 * steps + 2e-4 * decoded + 5e-5 * read) for steps, decoded, read in shapes]
    found = roofline.fit(runs)
    assert found[:3] == pytest.approx((3e-3, 2e-4, 5e-5))
    assert found.error == pytest.approx(0.0, abs=1e-9)
    assert found.compute_share(10, 100, 200) == pytest.approx(0.5)
    assert found.seconds(10, 100, 200) == pytest.approx(0.06)
    falling = [(steps, decoded, read, 3e-3 * steps + 2e-4 * decoded - 1e-6 * read) for steps, decoded, read in shapes]
    assert roofline.fit(falling).read_s == 0


def test_a_rule_in_step_decides_the_same() -> None:
    def target(task: Any) -> Any:
        return [-1.0] * len(task.continuation_str or "") if isinstance(task, ScoreTask) else "T" * 9

    def decided(rule: Any) -> list[Any]:
        made = ConformalDraftTargetController(rule=rule, draft_tokens=4, target_tokens=6, num_chains=5, max_turns=3)
        workers = {"draft": ScriptedWorker("d" * 9), "target": ScriptedWorker(target)}
        with ScaffoldingLlm(made, workers, seed=0) as llm:
            trace = llm.generate("question", sample_id="sample").program.trace
        chunks = [e for e in trace if e["event"] in ("accept", "take_over")]
        return sorted((e["chain"], e["turn"], e["event"], e["score"], e["num_target_tokens"]) for e in chunks)

    coin = Coin(0.5, scores=True)
    in_step = timing.InStep(coin)
    assert decided(coin) == decided(in_step)
    assert {event for _, _, event, *_ in decided(coin)} == {"accept", "take_over"}
    assert {score for *_, score, _ in decided(coin)} == {1.0}  # scored, though the coin does not look
    assert (coin.in_step(2), in_step.in_step(2)) == (False, True)


def test_what_was_timed_comes_back_from_the_store() -> None:
    chunk, busy = ScheduledChunk(0, 0, 4, 6, 0.5), timing.Busy(0.5, 3, 2, 1)
    timed = timing.Timed([1.0], [chunk], 1.5, [0.0], {"draft": busy}, 4, 90)
    assert timing.Timed.from_json(json.loads(json.dumps(timed))) == timed
