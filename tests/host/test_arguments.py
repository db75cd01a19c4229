"""Wrong usage of the host gets an error of the package's own that says what to do."""

import threading

import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.testing import ScriptedWorker

CONTROLLER, WORKERS = NativeGenerationController(), {"generation": ScriptedWorker("x")}


@pytest.mark.parametrize(
    ("controller", "workers", "message"),
    [
        (NativeGenerationController, WORKERS, "controller: is the class NativeGenerationController; pass an instance"),
        (WORKERS, CONTROLLER, "controller and workers are swapped; write ScaffoldingLlm(controller, workers)"),
        (CONTROLLER, WORKERS["generation"], "workers: is <"),
        (CONTROLLER, {"generation": "tinylm/draft"}, "workers.generation: is 'tinylm/draft'; pass a Worker"),
    ],
)
def test_what_is_no_controller_or_no_worker_is_refused_before_anything_starts(controller, workers, message):
    num_threads = threading.active_count()
    with pytest.raises(ConfigError) as caught:
        ScaffoldingLlm(controller, workers)
    assert str(caught.value).startswith(message)
    assert threading.active_count() == num_threads


@pytest.mark.parametrize("number", [0, 2.5])
def test_the_number_of_parallel_requests_is_checked(number):
    with pytest.raises(ConfigError, match=f"max_parallel_requests: is {number}; it must be"):
        ScaffoldingLlm(CONTROLLER, WORKERS, number)


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("", {}, "prompt: is empty: give a text"),
        ("half of \ud83d", {}, "prompt: is 'half of \\ud83d'; it holds bytes that are not text"),
        ("x", {"seed": "x"}, "seed: is 'x'; it must be a whole number"),
        ("x", {"timeout": float("nan")}, "timeout: is nan; it must be a finite number"),
        ("x", {"top_p": 7}, "request.top_p: is 7; it must be above 0 and at most 1"),
    ],
)
def test_what_a_request_is_given_is_checked(prompt, options, message):
    with ScaffoldingLlm(CONTROLLER, WORKERS) as llm, pytest.raises(ConfigError) as caught:
        llm.generate(prompt, **options)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (5, "prompt: is 5; pass a str, or a list of str to generate()"),
        (["a", b"b"], "prompt: is b'b'; pass a str"),
    ],
)
def test_what_is_no_prompt_is_refused(prompts, message):
    with ScaffoldingLlm(CONTROLLER, WORKERS) as llm:
        for ask in (llm.generate, llm.generate_async):
            with pytest.raises(ConfigError) as caught:
                ask(prompts)
            if ask == llm.generate:
                assert str(caught.value).startswith(message)


def test_any_iterable_of_prompts_will_do():
    with ScaffoldingLlm(CONTROLLER, WORKERS) as llm:
        assert [result.outputs[0].text for result in llm.generate(prompt for prompt in "ab")] == ["x", "x"]
