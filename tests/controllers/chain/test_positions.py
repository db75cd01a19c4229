"""Requests on a real model are read at token positions: text, answer and trace do not depend on what runs beside."""

import pytest

from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.chain.probe import AnswerProbe
from scaffolding_ext.evaluation.run.datasets import load_dataset
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

TELLS_LOAD = ("seconds", "num_decoded", "num_discarded")  # how far a stream ran ahead depends on what runs beside


def run(num_problems, concurrency):
    """Text, answer and trace (but for what it says of the lead) of each problem, so many at once."""
    controller = DynasorCoTController(
        max_tokens=30, certainty_threshold=2, chunk_size=8, probe=AnswerProbe(4), sampling_params={"temperature": 0.7}
    )
    controller.prompting = Prompting.for_model("tinylm/draft")
    samples = load_dataset("tinylm:held_out", num_samples=num_problems, seed=3)
    worker = HuggingFaceWorker("tinylm/draft")
    with ScaffoldingLlm(controller, {"generation": worker}, concurrency, seed=0, owns_workers=True) as llm:
        results = llm.generate([sample.prompt for sample in samples])
    return [
        (
            result.outputs[0].text,
            result.answer,
            [
                {key: value for key, value in event.items() if key not in TELLS_LOAD}
                for event in result.program.trace
                if event["event"] not in ("paused", "late")
            ],
        )
        for result in results
    ]


@pytest.mark.parametrize("num_problems", [8, pytest.param(100, marks=pytest.mark.slow)])
def test_a_stream_gives_the_same_alone_and_among_many(num_problems):
    alone, among_many = run(num_problems, 1), run(num_problems, 64)
    assert sum(event["event"] == "probe" for _, _, trace in alone for event in trace) > num_problems
    same = sum(a == b for a, b in zip(alone, among_many, strict=True))
    assert same >= num_problems - 1  # rounding in another batch may flip a near tie
