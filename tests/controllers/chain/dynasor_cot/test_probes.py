"""Dynasor-CoT's probes: where they are sent, and what is sent with them."""

import asyncio

import pytest

from scaffolding_ext.controllers.chain.probe import AnswerProbe
from scaffolding_ext.controllers.chain.probing import ProbeSchedule
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import PROBE, Purpose, purpose_of
from scaffolding_ext.testing import ScriptedWorker

FAMILY = family_named("tinylm")
PROMPT = "Question: "
ENDLESS = "thinking on and on " * 100


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [10, 20, 30, 40, 50, 60, 70, 80, 90]),
        ({"schedule": ProbeSchedule(10, 35)}, [35, 45, 55, 65, 75, 85, 95]),
        ({"schedule": ProbeSchedule(40, first_probe=1)}, [1, 41, 81]),
        ({"schedule": ProbeSchedule(10, growth=1.5)}, [10, 20, 35, 58, 92]),  # gaps 10, 15, 22.5 and 33.75, rounded up
        ({"schedule": ProbeSchedule(10, 7, growth=2)}, [7, 17, 37, 77]),
        ({"schedule": ProbeSchedule(40, first_probe=0)}, [0, 40, 80]),
        ({"schedule": ProbeSchedule(10, 100)}, []),
        ({"schedule": ProbeSchedule(10, 500)}, []),
    ],
)
def test_probe_positions(mode, arguments, expected, ask, dynasor, events, positions):
    result, worker = ask(dynasor(mode, max_tokens=100, **arguments), ENDLESS, [])
    assert positions(result) == expected
    assert max(len(getattr(task, "output_tokens", ())) for task in worker.tasks) <= 100
    (end,) = events(result, "end")
    assert (end["position"], end["finish_reason"]) == (100, "length")


def test_a_chain_that_is_stopped_before_it_began_costs_the_probe_alone(mode, ask, dynasor):
    controller = dynasor(mode, certainty_threshold=1, schedule=ProbeSchedule(10, first_probe=0))
    result, worker = ask(controller, ENDLESS, ["5}"])
    assert (result.outputs[0].text, result.exit_reason) == (FAMILY.close + "5" + FAMILY.answer_end, "certain")
    assert PROMPT + FAMILY.probe in [task.input_str for task in worker.tasks]
    if mode != "chunk":  # whose first chunk runs beside the probe
        assert set(result.program.ledger.by_purpose) == {Purpose.PROBE}
        assert len(worker.tasks) == 1


def test_probes_read_chain_and_suffix(mode, ask, dynasor, positions):
    result, worker = ask(dynasor(mode, max_tokens=40), ENDLESS, [])
    probes = [task for task in worker.tasks if purpose_of(task) == PROBE][:-1]  # the last one forces the answer
    assert [task.input_str for task in probes] == [PROMPT + ENDLESS[:p] + FAMILY.probe for p in positions(result)]
    assert all(type(task) is GenerationTask and task.max_tokens == 20 for task in probes)


def test_with_prompting_everything_is_sent_as_exact_token_ids(mode, dynasor, positions):
    prompting = Prompting.for_model("tinylm/draft")
    prompted = dynasor(mode, max_tokens=40)
    prompted.prompting = prompting
    chain_ids = [300 + i for i in range(100)]  # no tokenizer would give these for their text
    num_prompt_tokens = len(prompting.encode("<|user|>Question: <|assistant|><think>\n"))

    def respond(task):
        return "}" if purpose_of(task) == PROBE else chain_ids[len(task.input_tokens) - num_prompt_tokens :]

    worker = ScriptedWorker(respond)
    with ScaffoldingLlm(prompted, {"generation": worker}, seed=0) as llm:
        result = llm.generate(PROMPT)
    prompt_ids = worker.tasks[0].input_tokens
    assert len(prompt_ids) == num_prompt_tokens
    probes = [task for task in worker.tasks if purpose_of(task) == PROBE]
    suffix_ids = prompting.encode(FAMILY.probe)
    for position, probe in zip(positions(result), probes, strict=False):
        assert probe.input_tokens == prompt_ids + chain_ids[:position] + suffix_ids
    assert probes[-1].input_tokens == prompt_ids + chain_ids[:40] + prompting.encode(FAMILY.close)
    assert result.outputs[0].token_ids == chain_ids[:40]
    assert len({task.seed for task in worker.tasks}) == len(worker.tasks)


def test_with_prompting_a_certain_output_has_the_ids_of_its_closing(dynasor):
    prompted = dynasor("stream", certainty_threshold=2)
    prompted.prompting = Prompting.for_model("tinylm/draft")
    worker = ScriptedWorker(lambda task: "5}" if purpose_of(task) == PROBE else ENDLESS)
    with ScaffoldingLlm(prompted, {"generation": worker}) as llm:
        output = llm.generate(PROMPT).outputs[0]
    ending = FAMILY.close + "5" + FAMILY.answer_end
    assert output.text == ENDLESS[:20] + ending
    assert output.token_ids == [ord(c) for c in ENDLESS[:20]] + prompted.prompting.encode(ending)


def test_sampling_fields_reach_chain_and_probes(ask, dynasor):
    chosen = dynasor(
        max_tokens=25,
        sampling_params={"temperature": 0.7, "stop": ["END"]},
        probe=AnswerProbe(sampling_params={"top_k": 4}),
    )
    _, worker = ask(chosen, ENDLESS, [])
    for task in worker.tasks:
        if purpose_of(task) == PROBE:
            temperature = 0.6 if task.input_str.endswith(FAMILY.probe) else 0.0  # a forced answer is greedy
            assert (task.temperature, task.top_p, task.top_k, task.stop) == (temperature, 0.95, 4, [])
        else:
            assert (task.temperature, task.top_p, task.top_k, task.stop) == (
                0.7,
                None,
                None,
                None,
            )  # it may still think


def test_a_tasks_own_budget_and_sampling_count(dynasor, script):
    chosen = dynasor(sampling_params={"temperature": 0.7, "top_p": 0.9})
    worker = ScriptedWorker(script(ENDLESS, []))
    chosen.bind({"generation": worker})
    task = GenerationTask(input_str=PROMPT, max_tokens=15, temperature=0.1)
    for work in chosen.process([task]):
        for piece in work:
            asyncio.run(worker.run_task(piece))
    assert task.output_tokens == [ord(c) for c in ENDLESS[:15]]
    assert (worker.tasks[0].temperature, worker.tasks[0].top_p) == (0.1, 0.9)
