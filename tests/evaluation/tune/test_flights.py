"""Votes that roll are replayed as the controller plays them: the same answers, tokens and times, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks._lib.recorded_worker import Characters, RecordedChain, RecordedWorker
from scaffolding_ext import MajorityVoteController, ScaffoldingLlm
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.vote.allocation.agreement import AgreementDoubling
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.evaluation.tune.costs import EndedSamples
from scaffolding_ext.evaluation.tune.flights import fly, play_flight
from scaffolding_ext.evaluation.tune.orders import OrderedVotes, as_recorded

NUM_QUESTIONS, NUM_SAMPLES = 6, 10


def recorded() -> EndedSamples:
    rng = np.random.default_rng(5)
    shape = NUM_QUESTIONS, NUM_SAMPLES
    classes, tokens = rng.integers(0, 3, shape), rng.integers(20, 900, shape)
    costs: Any = {name: tokens.astype(float) for name in ("decoded", "critical")} | {"seconds": tokens / 50.0}
    return EndedSamples(classes, classes == 0, tokens, costs, {}, {})


@pytest.mark.parametrize("order", ["tokens", "index"])
@pytest.mark.parametrize("in_flight", [1, 3, 4, 16])
@pytest.mark.parametrize("rule", [None, LeaderChange(), AgreementDoubling()], ids=lambda rule: type(rule).__name__)
def test_a_replayed_flight_is_the_one_that_flies(rule: Any, in_flight: int, order: Any) -> None:
    """Positions are read each 16 tokens, so a sample may count so much later, and its successor begins then."""
    samples = recorded()
    votes = OrderedVotes(samples, as_recorded(NUM_QUESTIONS, NUM_SAMPLES))
    full_right = votes.right[:, -1].astype(float)
    played = play_flight(votes, rule, NUM_SAMPLES, full_right, in_flight, order)
    native = NativeGenerationController({"temperature": 0.7, "max_tokens": 2000})
    vote = MajorityVoteController(native, NUM_SAMPLES, allocation=rule, in_flight=in_flight, order=order)
    vote.prompting = Characters()  # type: ignore[assignment]
    worker = RecordedWorker()
    with ScaffoldingLlm(vote, {"generation": worker}, seed=1) as host:
        for number in range(NUM_QUESTIONS):
            rows = zip(samples.classes[number].tolist(), samples.tokens[number].tolist(), strict=True)
            worker.begin([RecordedChain(str(answer), length) for answer, length in rows])
            began = worker.clock.now
            result = host.generate(f"question {number}", timeout=60)
            assert (result.answer == "0") == played.right[number]
            late = worker.clock.now - began - played.costs["critical"][number]
            assert 0 <= late <= (0 if order == "index" else 16 * NUM_SAMPLES)
            decoded = result.program.ledger.total.decoded - played.costs["decoded"][number]
            assert abs(decoded) <= late * in_flight


def test_seconds_are_those_of_the_tokens() -> None:
    votes = OrderedVotes(recorded(), as_recorded(NUM_QUESTIONS, NUM_SAMPLES))
    played = play_flight(votes, LeaderChange(), NUM_SAMPLES, votes.right[:, -1].astype(float), 3)
    np.testing.assert_allclose(played.costs["seconds"], played.costs["critical"] / 50.0)


def test_of_one_place_samples_run_one_after_the_other() -> None:
    lengths = np.array([[5, 3, 9]])
    for order in ("tokens", "index"):
        flights = fly(lengths, 1, order)  # type: ignore[arg-type]
        assert flights.places.tolist() == [[0, 1, 2]]
        assert flights.counted.tolist() == [[5, 8, 17]]


def test_samples_ahead_are_bounded() -> None:
    lengths = np.array([[100, 1, 1, 1, 1, 1]])
    assert fly(lengths, 2, "index").begun.tolist() == [[0, 0, 1, 2, 100, 100]]
    assert fly(lengths, 2, "tokens").counted.tolist() == [[1, 2, 3, 4, 5, 100]]
