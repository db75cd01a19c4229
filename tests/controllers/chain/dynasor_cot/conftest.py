"""Requests of Dynasor-CoT to a worker that was told what to write."""

import itertools

import pytest

from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.chain.probing import ProbeSchedule
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.protocol.meta import PROBE, purpose_of
from scaffolding_ext.testing import ScriptedWorker

FAMILY = family_named("tinylm")
PROMPT = "Question: "
MODES = {
    "stream": {"mode": "stream"},
    "chunk": {"mode": "chunk"},
    "chunk_in_turn": {"mode": "chunk", "overlap": False},
}


@pytest.fixture(params=MODES)
def mode(request):
    """Has a test run in every mode, where it does not name its own."""
    return request.param


@pytest.fixture(scope="session")
def script():
    """Makes what a worker answers: the rest of the chain, or the next of the probes' responses (then empty boxes)."""

    def make(chain, probes, prompt=PROMPT):
        responses = itertools.chain(probes, itertools.repeat("}"))

        def respond(task):
            if purpose_of(task) == PROBE:
                return next(responses)
            return chain[len(task.input_str) - len(prompt) :]

        return respond

    return make


@pytest.fixture(scope="session")
def ask(script):
    """Runs one request; returns its result and its worker."""

    def run(controller, chain, probes, worker_type=ScriptedWorker, **options):
        worker = worker_type(script(chain, probes), **options)
        with ScaffoldingLlm(controller, {"generation": worker}) as llm:
            return llm.generate(PROMPT), worker

    return run


@pytest.fixture(scope="session")
def dynasor():
    """Makes a controller that probes every ten tokens, by default."""

    def make(mode="chunk_in_turn", **arguments):
        defaults = {"max_tokens": 1000, "schedule": ProbeSchedule(10), "family": "tinylm"}
        rule = {} if arguments.keys() & {"rule", "certainty_threshold", "effort"} else {"rule": "consecutive"}
        return DynasorCoTController(**(defaults | rule | arguments | MODES[mode]))

    return make


@pytest.fixture(scope="session")
def positions(events):
    """Finds where a request was probed."""
    return lambda result: [event["position"] for event in events(result, "probe")]


@pytest.fixture(scope="session")
def closed():
    """Makes the text of a chain that ends with an answer that it was asked for."""
    return lambda chain, answer: chain + FAMILY.close + answer + FAMILY.answer_end
