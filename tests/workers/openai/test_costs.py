"""A streamed token costs the client few calls more than one of a whole answer."""

import warnings

import pytest

pytest.importorskip("openai")

from benchmarks.engines import wire
from scaffolding_ext import ScaffoldingLlm

NUM_TOKENS, NUM_QUESTIONS = 400, 4
SYSTEMS = wire.systems(NUM_TOKENS)
STREAMED = [name for name, system in SYSTEMS.items() if name != system.beside]


def calls_a_token(name, count, every_token=False, in_worker=True):
    """Calls on the host's loop, and on the worker's, for each decoded token."""
    system, before = SYSTEMS[name], count.num
    worker = wire.worker(NUM_TOKENS, every_token)
    with warnings.catch_warnings(), ScaffoldingLlm(system.make(), {"generation": worker}, seed=1) as llm:
        warnings.simplefilter("ignore")
        llm.generate("warm up")
        with count.on_loop(llm.loop), count.on_loop(worker._connection.loop if in_worker else llm.loop):
            results = llm.generate([f"question {n}" for n in range(NUM_QUESTIONS)])
    return (count.num - before) / sum(result.program.ledger.total.decoded for result in results)


@pytest.mark.parametrize("name", STREAMED)
def test_a_stream_costs_at_most_five_times_whole_answers(name, call_count):
    assert calls_a_token(name, call_count) <= 5 * calls_a_token(SYSTEMS[name].beside, call_count)


@pytest.mark.parametrize("name", STREAMED)
def test_the_host_does_not_wake_for_each_token_of_a_server_that_sends_them_singly(name, call_count):
    in_host = calls_a_token(name, call_count, every_token=True, in_worker=False)
    assert in_host <= 5 * calls_a_token(SYSTEMS[name].beside, call_count)
