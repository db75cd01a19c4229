"""HuggingFaceWorker over a network and a tokenizer that are loaded already."""

import asyncio

from transformers import AutoModelForCausalLM, AutoTokenizer

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.tokenizers import model_folder
from scaffolding_ext.protocol import GenerationTask, TaskStatus
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

FOLDER = model_folder("tinylm/draft")
QUESTION = "Start with 5. Apply a+3,b-2. Find the total."


def loaded(**options):
    network = AutoModelForCausalLM.from_pretrained(FOLDER)
    return HuggingFaceWorker(network, tokenizer=AutoTokenizer.from_pretrained(FOLDER), **options)


def texts(worker):
    tasks = [
        GenerationTask(input_tokens=[5, 6, 7 + seed], max_tokens=30, temperature=0.7, seed=seed) for seed in range(8)
    ]

    async def run():
        return await asyncio.gather(*map(worker.run_task, tasks))

    assert set(asyncio.run(run())) == {TaskStatus.SUCCESS}
    return [task.output_tokens for task in tasks]


def test_it_writes_what_the_same_model_by_its_name_writes():
    with loaded() as given, HuggingFaceWorker("tinylm/draft") as named:
        assert texts(given) == texts(named)
        assert given.tokenizer_fingerprint == named.tokenizer_fingerprint
        assert given.model == FOLDER


def test_a_stack_prompts_it_with_its_tokenizer():
    """Its name may be none by which a tokenizer could be loaded."""
    worker = loaded()
    worker.model = "a model of mine"
    with ScaffoldingLlm(
        NativeGenerationController({"max_tokens": 40, "temperature": 0.0}), {"generation": worker}
    ) as llm:
        text = llm.generate(QUESTION).outputs[0].text
    with HuggingFaceWorker("tinylm/draft") as named:
        controller = NativeGenerationController({"max_tokens": 40, "temperature": 0.0})
        with ScaffoldingLlm(controller, {"generation": named}) as llm:
            assert llm.generate(QUESTION).outputs[0].text == text
