import asyncio

import pytest
from caching import CachingWorker

from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import TokenCounts, token_counts_of
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.testing.controller_contract import contract_reply
from scaffolding_ext.testing.worker_contract import WORKER_CHECKS


@pytest.mark.parametrize("check", WORKER_CHECKS)
def test_contract(check):
    check(lambda: CachingWorker(ScriptedWorker(contract_reply)))


def test_the_second_answer_costs_nothing():
    worker = CachingWorker(ScriptedWorker("four"))
    tasks = [GenerationTask(input_str="Two and two?", seed=1) for _ in range(2)]
    for task in tasks:
        asyncio.run(worker.run_task(task))
    assert [task.output_str for task in tasks] == ["four", "four"]
    assert [token_counts_of(task) for task in tasks] == [TokenCounts(4, 12, 0), TokenCounts(0, 0, 16)]
    assert len(worker.worker.tasks) == 1


def test_what_may_differ_is_asked_again():
    worker = CachingWorker(ScriptedWorker("four"))
    for seed, temperature in ((1, 0.7), (2, 0.7), (None, 0.7), (None, 0.7)):
        asyncio.run(worker.run_task(GenerationTask(input_str="Two?", seed=seed, temperature=temperature)))
    assert len(worker.worker.tasks) == 4
