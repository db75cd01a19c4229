"""The replay of a vote that rolls gives what the live host gives on a worker that plays the same samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scaffolding_ext import MajorityVoteController, ScaffoldingLlm
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.vote.allocation.agreement import AgreementDoubling
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.controllers.vote.allocation.value_of_vote import ValueOfVote
from scaffolding_ext.controllers.vote.draws import Order
from scaffolding_ext.evaluation.tune.costs import whole_samples
from scaffolding_ext.evaluation.tune.orders import OrderedVotes
from scaffolding_ext.evaluation.tune.rolling import ReplayedFlight
from tests.evaluation.tune.recorded import recording
from tests.recorded_worker import Characters, RecordedChain, RecordedWorker

NUM_SAMPLES, IN_FLIGHT, PACE = 12, 3, 16  # a stream is read so many tokens at a time


@pytest.mark.parametrize("order", ["tokens", "index"])
@pytest.mark.parametrize(
    "rule", [LeaderChange(), AgreementDoubling(), ValueOfVote(price=3.0)], ids=lambda rule: type(rule).__name__
)
def test_a_replayed_flight_is_the_live_one(rule: AllocationRule, order: Order) -> None:
    logged = recording(12, NUM_SAMPLES, ability=0.5, seed=3)
    votes = OrderedVotes(whole_samples(logged), np.broadcast_to(np.arange(NUM_SAMPLES), (1, 12, NUM_SAMPLES)))
    flight = ReplayedFlight(votes, NUM_SAMPLES, IN_FLIGHT, order)
    drawn = flight.sizes(rule)
    replayed = flight.play(drawn, votes.right[:, -1].astype(float))
    controller: Any = MajorityVoteController(
        NativeGenerationController({"temperature": 0.7, "max_tokens": 1_000}),
        NUM_SAMPLES,
        allocation=rule,
        in_flight=IN_FLIGHT,
        order=order,
    )
    controller.prompting = Characters()
    worker = RecordedWorker()
    with ScaffoldingLlm(controller, {"generation": worker}, seed=0) as host:
        for number, question in enumerate(logged.questions):
            pairs = zip(question.classes.tolist(), question.tokens.tolist(), strict=True)
            worker.begin([RecordedChain(str(answer), length) for answer, length in pairs])
            began = worker.clock.now
            result = host.generate(f"question {number}")
            (vote,) = (event for event in result.program.trace if event["event"] == "vote")
            assert vote["num_samples"] == drawn[number]
            assert float(result.answer == "0") == replayed.right[number]
            late = worker.clock.now - began - replayed.costs["critical"][number]
            spent = result.program.ledger.total.decoded - replayed.costs["decoded"][number]
            pace = PACE if order == "tokens" else 0
            assert 0 <= late <= pace * drawn[number]
            assert 0 <= spent <= pace * IN_FLIGHT
    assert np.ptp(drawn) > 0
