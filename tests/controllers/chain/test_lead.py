"""Chains whose probes come late: what runs ahead is bounded, and what is read is what it always was."""

import asyncio
import random

import pytest

pytest.importorskip("openai")

from scaffolding_ext import DynasorCoTController, HuggingFaceWorker, OpenAIWorker, Prompting, ScaffoldingLlm
from scaffolding_ext.controllers.chain.probe import AnswerProbe
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import PROBE, Purpose, purpose_of
from scaffolding_ext.tinylm.grammar import sample_problem
from tests.servers.openai_server import OpenAIServer

MODEL = "tinylm/draft"
SPACING = 16


@pytest.fixture(scope="module")
def engine():
    with HuggingFaceWorker(MODEL, seed=0) as engine:
        yield engine


def greedy(**arguments):
    probe = AnswerProbe(max_tokens=8, sampling_params={"temperature": 0.0})
    controller = DynasorCoTController(
        128, 30, SPACING, probe=probe, sampling_params={"temperature": 0.0}, **arguments
    )  # never certain: the chain grows on
    controller.prompting = Prompting.for_model(MODEL)
    return controller


def answered(worker, controller, num_problems=3):
    prompts = [sample_problem(random.Random(number), "held_out").question for number in range(num_problems)]
    with ScaffoldingLlm(controller, {"generation": worker}, seed=0) as llm:
        return [llm.generate(prompt, sample_id=prompt) for prompt in prompts]


def test_over_http_a_late_probe_ends_the_stream_and_a_second_one_makes_chunks_of_it(engine, events):
    with OpenAIServer(engine, MODEL) as server:

        class LateProbes(OpenAIWorker):
            num_held = 0

            async def run_task(self, task):
                if purpose_of(task) == PROBE and self.num_held < 2 and self._streams:
                    self.num_held += 1
                    await asyncio.to_thread(server.wait_for_stopped)  # the stream ran too far ahead
                return await super().run_task(task)

        with LateProbes(server.url, MODEL, flavor="vllm") as worker:
            (late,) = answered(worker, greedy(), 1)
        (plain,) = answered(engine, greedy(), 1)
        first, second = events(late, "late")
        assert (first["goes_on"], second["goes_on"]) == ("in another stream", "in chunks")
        assert first["position"] in (SPACING, 2 * SPACING)  # where what had arrived did no longer suffice
        assert first["arrived"] >= 2 * SPACING
        assert late.outputs[0].token_ids == plain.outputs[0].token_ids
        assert late.outputs[0].text == plain.outputs[0].text
        assert events(late, "probe", "end", "force") == events(plain, "probe", "end", "force")
        ledger = late.program.ledger
        assert ledger.num_unmetered_tasks == 0
        assert ledger.by_purpose[Purpose.CHAIN].decoded == plain.program.ledger.by_purpose[Purpose.CHAIN].decoded


def sampled_over_http(engine, waits):
    """A sampled chain; with `waits` no probe is asked before its chain's stream has ended at the server."""
    probe = AnswerProbe(max_tokens=8, sampling_params={"temperature": 0.0})
    sampling = {"temperature": 1.5}
    controller = DynasorCoTController(128, 30, SPACING, probe=probe, overlap=False, sampling_params=sampling)
    controller.prompting = Prompting.for_model(MODEL)
    with OpenAIServer(engine, MODEL) as server:

        class Worker(OpenAIWorker):
            async def run_task(self, task):
                if purpose_of(task) == PROBE and waits:
                    while server.num_running:
                        await super().run_task(GenerationTask(input_tokens=[5], max_tokens=1))
                return await super().run_task(task)

        with Worker(server.url, MODEL, flavor="vllm") as worker:
            (result,) = answered(worker, controller, 1)
    return result


def test_a_sampled_chain_with_a_seed_is_the_same_text_however_late_its_probes_are(engine, events):
    prompt, late = sampled_over_http(engine, waits=False), sampled_over_http(engine, waits=True)
    assert late.outputs[0].text == prompt.outputs[0].text
    assert events(late, "late", "probe", "end", "force") == events(prompt, "late", "probe", "end", "force")
    assert events(late, "late")[0]["arrived"] == 2 * SPACING


@pytest.mark.parametrize("max_lead", [None, 5])
def test_a_stream_rests_where_its_lead_ends_and_the_trace_says_so(max_lead, events):
    ahead = []

    class LateProbes(HuggingFaceWorker):
        async def run_task(self, task):
            if purpose_of(task) == PROBE:
                while self.metrics.num_paused < 1 and self.metrics.num_running:
                    turn = GenerationTask(input_tokens=[5], max_tokens=1)
                    await super().run_task(turn)
                ahead.extend(request.num_decoded for request in self._engine._unfinished)
            return await super().run_task(task)

    with LateProbes(MODEL, seed=0) as worker:
        (late,) = answered(worker, greedy(max_lead=max_lead), 1)
        (plain,) = answered(worker, greedy(), 1)
    lead = max_lead or SPACING
    positions = [event["position"] for event in events(late, "probe")]
    assert ahead[: len(positions) - 1] == [position + lead for position in positions[:-1]]
    assert all(event["arrived"] - event["position"] <= lead for event in events(late, "paused"))
    assert events(late, "paused")
    assert late.outputs[0].text == plain.outputs[0].text


def test_a_lead_is_a_number_of_tokens():
    with pytest.raises(ConfigError, match="must be at least 1") as caught:
        greedy(max_lead=0)
    assert caught.value.key == "max_lead"
