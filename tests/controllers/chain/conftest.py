"""Chains that are driven by hand, on a prompt of three tokens."""

import asyncio
import contextvars

import pytest

from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.request.program import enter_program
from scaffolding_ext.testing import ScriptedWorker

PROMPT_IDS = [7, 8, 9]


@pytest.fixture(scope="session")
def prompt():
    """Makes the task that a chain answers."""
    return lambda **fields: GenerationTask(**({"input_str": "Q: ", "input_tokens": PROMPT_IDS} | fields))


@pytest.fixture(scope="session")
def serve():
    """Has a worker run tasks."""

    def run(worker, tasks):
        for task in tasks:
            asyncio.run(worker.run_task(task))

    return run


@pytest.fixture(scope="session")
def run(serve):
    """Has a worker run what a controller's generator yields."""

    def drive(worker, work):
        for tasks in work:
            serve(worker, tasks)

    return drive


@pytest.fixture(scope="session")
def grow(run):
    """Grows a chain to each of the positions."""

    def to(chain, worker, *positions):
        for position in positions:
            run(worker, chain.grow(position))

    return to


@pytest.fixture(scope="session")
def rest_of():
    """Makes a worker that continues a chain from where a task stands."""
    return lambda chain: ScriptedWorker(lambda task: chain[len(task.input_tokens) - len(PROMPT_IDS) :])


@pytest.fixture(scope="session")
def inside():
    """Calls a function inside a program."""

    def call(program, function, *args):
        def entered():
            enter_program(program)
            return function(*args)

        return contextvars.copy_context().run(entered)

    return call
