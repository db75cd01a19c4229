"""Dynasor-CoT on the embedded model: exact chains, and rows that are free again after faults and cancellation."""

import asyncio
import itertools
import random
import re
import threading

import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.chain.probe import AnswerProbe
from scaffolding_ext.controllers.chain.stopping.confidence import AnswerConfidence
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.errors import ConfigError, EngineError, TaskError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import PROBE, Purpose, purpose_of
from scaffolding_ext.tinylm.grammar import sample_problem
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

FAMILY = family_named("tinylm")
WAIT = 30.0  # seconds until a hanging test fails; nothing waits that long when all is well


class Faulty(HuggingFaceWorker):
    """Fails the n-th task that it is given."""

    failing = -1
    num_calls = 0

    async def run_task(self, task):
        self.num_calls += 1
        if self.num_calls - 1 == self.failing:
            raise EngineError("out of luck")
        return await super().run_task(task)


@pytest.fixture(scope="module")
def worker():
    worker = Faulty("tinylm/draft", max_batch_size=8, seed=0)
    yield worker
    worker.shutdown()


def embedded(worker, controller, **options):
    controller.prompting = Prompting.for_model("tinylm/draft")
    return ScaffoldingLlm(controller, {"generation": worker}, seed=0, **options)


def eager(**arguments):
    defaults = {"max_tokens": 300, "certainty_threshold": 2, "chunk_size": 16}
    probing = {"probe": AnswerProbe(8, {"temperature": 0.0}), "sampling_params": {"temperature": 0.7}}
    return DynasorCoTController(**(defaults | probing | arguments))


def questions(num_questions):
    return [sample_problem(random.Random(i), "held_out").question for i in range(num_questions)]


def test_a_stream_is_the_plain_chain_up_to_its_exit(worker, events):
    prompts = questions(5)
    native = NativeGenerationController({"temperature": 0.7, "max_tokens": 300})
    with embedded(worker, native) as llm:
        plain = [llm.generate(prompt, sample_id=prompt) for prompt in prompts]
    with embedded(worker, eager()) as llm:
        probed = [llm.generate(prompt, sample_id=prompt) for prompt in prompts]
    shared = []
    for whole, part in zip(plain, probed, strict=True):
        if part.exit_reason == "certain":
            (stop,) = events(part, "stop")
            ending = FAMILY.close + part.answer + FAMILY.answer_end
            assert part.outputs[0].text.endswith(ending)
            text = part.outputs[0].text.removesuffix(ending)
            ids = part.outputs[0].token_ids[: stop["position"]]
            shared.append(whole.outputs[0].token_ids[: len(ids)] == ids and whole.outputs[0].text.startswith(text))
        else:
            assert part.exit_reason == whole.exit_reason
        assert not re.search(r"<\|", part.outputs[0].text)
        ledger = part.program.ledger
        assert ledger.num_unmetered_tasks == 0
        assert ledger.by_purpose[Purpose.PROBE].decoded > 0
    assert len(shared) >= 2
    assert sum(shared) >= len(shared) - 1  # rounding in another batch may flip one near tie
    assert worker.metrics.num_running == 0


@pytest.mark.parametrize("mode", ["stream", "chunk"])
def test_a_rule_reads_the_probabilities_that_the_engine_tells(worker, events, mode):
    controller = eager(certainty_threshold=None, rule=AnswerConfidence(0.01), mode=mode, max_tokens=96)
    with embedded(worker, controller) as llm:
        result = llm.generate(questions(1)[0], sample_id="0")
    assert result.exit_reason == "confidence"
    (stop,) = events(result, "stop")
    assert 0.0 <= stop["confidence"] <= 1.0
    for probe in events(result, "probe"):
        assert 0.0 < probe["confidence"] <= 1.0
        assert probe["suffix_tokens"] > 0
        assert probe["answer_tokens"] > 1


@pytest.mark.parametrize("mode", ["stream", "chunk"])
def test_a_fault_at_every_yield_leaves_no_stream_open(worker, mode):
    prompt = questions(1)[0]
    with embedded(worker, eager(mode=mode, max_tokens=64)) as llm:
        for failing in itertools.count():
            worker.failing, worker.num_calls = failing, 0
            result = llm.generate_async(prompt, sample_id="s")
            error = result.exception(WAIT)
            worker.failing = -1
            # The engine drops what was cancelled before it admits the next request.
            asyncio.run(HuggingFaceWorker.run_task(worker, GenerationTask(input_tokens=[5, 6], max_tokens=1)))
            if error is None:
                break
            assert isinstance(error, TaskError)
            assert worker._streams == {}
            assert worker.metrics.num_running == 0
    assert failing >= 4


@pytest.mark.parametrize("num_samples", [1, 4])
def test_cancelling_a_request_or_a_vote_frees_its_rows(num_samples):
    """In the middle of probes, while their chains have run ahead as far as they may, or rest."""
    probes = threading.Semaphore(0)

    class Held(HuggingFaceWorker):
        async def run_task(self, task):
            if purpose_of(task) == PROBE:
                probes.release()
                await asyncio.get_running_loop().create_future()
            return await super().run_task(task)

    held = Held("tinylm/draft", max_batch_size=2)
    vote = MajorityVoteController(eager(max_tokens=1500), num_samples, allocation=None)
    with embedded(held, vote, owns_workers=True) as llm:
        result = llm.generate_async(questions(1)[0])
        assert all(probes.acquire(timeout=WAIT) for _ in range(num_samples))
        result.cancel()
        assert result.exception(WAIT) is not None
        asyncio.run(HuggingFaceWorker.run_task(held, GenerationTask(input_tokens=[5, 6], max_tokens=1)))
        assert held._streams == {}
        assert held.metrics.num_running == 0


@pytest.mark.parametrize("mode", ["stream", "chunk"])
def test_the_budget_is_lowered_to_the_workers_context(mode):
    controller = DynasorCoTController(mode=mode, probe=AnswerProbe(8), certainty_threshold=50)  # wants 8,192
    controller.prompting = Prompting.for_model("tinylm/draft")
    worker = HuggingFaceWorker("tinylm/draft", max_seq_len=150)
    with ScaffoldingLlm(controller, {"generation": worker}, seed=0, owns_workers=True) as llm:
        result = llm.generate("Start with 5. Apply a+3,b-2,c+4,d+5,e-2,f+3,g+9,h-4. Find the total.")
        assert any(event["event"] == "fallback" for event in result.program.trace)
        with pytest.raises(ConfigError, match="shorten the prompt"):
            llm.generate("Start with 5. Apply " + "a+3," * 40 + ". Find the total.")
