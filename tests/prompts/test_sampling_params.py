"""The order in which sampling fields are set: request before controller before worker, whatever the values."""

import contextvars
import copy

import pytest

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.sampling_params import (
    SAMPLING_FIELDS,
    apply_sampling_params,
    checked_sampling_params,
    inherit_sampling_params,
    set_sampling_params,
)
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.request.program import Program, enter_program

DEFAULTS = GenerationTask()
CONTROLLERS = {"frequency_penalty": 0.5, "stop": ["x"], "temperature": 0.7, "n": 2, "echo": True, "seed": 5}


def test_a_requests_value_holds_even_where_it_is_the_default():
    for through in ["the task", "a copy", "a piece of it"]:
        for name in sorted(CONTROLLERS):
            task = GenerationTask(input_str="q")
            default = getattr(DEFAULTS, name)
            set_sampling_params(task, {name: default})
            if through == "a copy":  # as upstream's majority vote makes
                task = copy.deepcopy(task)
            elif through == "a piece of it":
                piece = GenerationTask(input_str="q and more")
                inherit_sampling_params(piece, task)
                task = piece
            apply_sampling_params(task, CONTROLLERS)
            assert getattr(task, name) == default, (name, through)
            assert all(getattr(task, other) == value for other, value in CONTROLLERS.items() if other != name)


def test_a_request_may_refuse_the_programs_seed():
    refused, drawn = GenerationTask(), GenerationTask()
    set_sampling_params(refused, {"seed": None})

    def request():
        enter_program(Program(seed=1))
        for task in (refused, drawn):
            apply_sampling_params(task, {})

    contextvars.copy_context().run(request)
    assert refused.seed is None
    assert drawn.seed is not None


def test_what_a_request_sets_twice_adds_up():
    task = GenerationTask()
    set_sampling_params(task, {"temperature": None})
    set_sampling_params(task, {"stop": []})
    apply_sampling_params(task, CONTROLLERS)
    assert (task.temperature, task.stop, task.n) == (None, [], 2)


def test_a_piece_has_a_number_of_tokens_of_its_own():
    task, piece = GenerationTask(), GenerationTask()
    set_sampling_params(task, {"max_tokens": 9, "top_k": 3})
    inherit_sampling_params(piece, task)
    assert (piece.max_tokens, piece.top_k) == (None, 3)


@pytest.mark.parametrize("params", [["temperature"], "temperature", 5])
def test_what_is_no_mapping_is_refused(params):
    with pytest.raises(ConfigError, match="give a mapping of sampling fields to values") as caught:
        checked_sampling_params(params)
    assert caught.value.key == "sampling_params"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_tokens", 0, "is 0; it must be at least 1"),
        ("max_tokens", -1, "is -1; it must be at least 1"),
        ("max_tokens", 2.5, "is 2.5: input should be a valid integer"),
        ("temperature", "hot", "is 'hot': input should be a valid number"),
        ("stop", 5, "is 5: input should be a valid"),
        ("n", True, "is True: input should be a valid integer"),
    ],
)
def test_values_are_checked(name, value, message):
    with pytest.raises(ConfigError, match=message) as caught:
        checked_sampling_params({name: value}, "controller.args")
    assert caught.value.key == f"controller.args.{name}"


def test_none_and_whole_numbers_are_fine_values():
    params = {"temperature": 1, "max_tokens": None, "stop": "a", "top_p": None}
    assert checked_sampling_params(params) == params
    assert checked_sampling_params(None) == {}
    always_set = {"n", "skip_tokenizer", "skip_detokenizer", "ignore_eos"}
    assert checked_sampling_params(dict.fromkeys(SAMPLING_FIELDS - always_set))
