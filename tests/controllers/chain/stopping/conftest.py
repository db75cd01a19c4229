"""Looks that are made by hand, and requests to a worker that was told what to write and how sure it is."""

import itertools
import math

import pytest

from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.controllers.chain.probing import ProbeSchedule
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol.meta import PROBE, purpose_of
from scaffolding_ext.protocol.task_results import TokenLogprob
from scaffolding_ext.testing import ScriptedWorker

CHAIN = "".join(f"thought {number:02d}. " for number in range(20))
MODES = {"stream": {}, "chunk": {"mode": "chunk"}, "chunk_in_turn": {"mode": "chunk", "overlap": False}}


@pytest.fixture(params=MODES)
def mode(request):
    """Has a test run in every mode."""
    return MODES[request.param]


@pytest.fixture(scope="session")
def looks():
    """Makes looks ten tokens apart: of entropies, of answers with the probability of each of their two tokens, ..."""

    def make(answers=(), chosen=()):
        classes = {}
        made = []
        for index, (answer, probability) in enumerate(answers):
            number = -1 if answer is None else classes.setdefault(answer, len(classes))
            logprobs = (math.log(probability),) * 2
            made.append(Probe(Prefix(10 * index + 10, "", None), answer, number, False, "r", answer_logprobs=logprobs))
        steps = [{token: TokenLogprob(math.log(p)), 99: TokenLogprob(-0.01)} for token, p in enumerate(chosen)]
        return [
            *made,
            *(Probe(Prefix(num, "", list(range(num)), steps[:num])) for num in range(1, len(steps) + 1)),
        ]

    return make


@pytest.fixture(scope="session")
def ask():
    """Runs one request; returns its result and its worker. It is looked at every ten tokens.

    Args:
        rule: The rule.
        answers: What the chain answers when it is asked, in turn; the last one again and again.
        sure: Gets a task and returns the probabilities, by token, of each of its new tokens.
    """

    def run(rule, answers=("4}",), sure=lambda task: {0: 1.0}, worker_type=ScriptedWorker, chain=CHAIN, **arguments):
        given = itertools.chain(answers, itertools.repeat(answers[-1]))

        def respond(task):
            return next(given) if purpose_of(task) == PROBE else chain[len(task.input_str) - 2 :]

        def logprobs(task, index):
            found = {token: math.log(p) for token, p in sure(task).items()}
            return {task.output_tokens[index] if token == 0 else token: value for token, value in found.items()}

        worker = worker_type(respond, logprobs=logprobs)
        schedule = {} if "schedule" in arguments else {"schedule": ProbeSchedule(10)}
        controller = DynasorCoTController(rule=rule, family="tinylm", **schedule, **arguments)
        with ScaffoldingLlm(controller, {"generation": worker}) as llm:
            return llm.generate("Q:"), worker

    return run


@pytest.fixture(scope="session")
def events():
    """Finds the events of a name in a request's trace."""
    return lambda result, name: [event for event in result.program.trace if event["event"] == name]


@pytest.fixture(scope="session")
def scripted():
    """The plain scripted worker, which brings no log-probabilities, and a controller of a rule."""
    return lambda rule: (ScriptedWorker, DynasorCoTController(chunk_size=10, family="tinylm", rule=rule))
