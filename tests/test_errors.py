"""The exception tree: its members can be pickled, and are what else they claim to be."""

import pickle

from scaffolding_ext import errors
from scaffolding_ext.errors import (
    ConfigError,
    MissingDependencyError,
    ScaffoldingExtError,
    TaskError,
)
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import StreamGenerationTask
from scaffolding_ext.testing import ScriptedWorker


def kinds(root=ScaffoldingExtError):
    """Every exception of the module, from the base of the tree down."""
    yield root
    for kind in root.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield from kinds(kind)


ARGUMENTS = {
    ConfigError: ("is 5", "workers.generation"),
    MissingDependencyError: ("torch", "hf"),
    TaskError: ("it failed", StreamGenerationTask(input_str="x")),
}


def test_an_error_comes_back_from_a_pickle_as_it_was():
    changed = []
    for kind in kinds():
        arguments = next((ARGUMENTS[base] for base in kind.__mro__ if base in ARGUMENTS), ("what happened",))
        error = kind(*arguments)
        shown, twin = (
            (type(each), str(each), {name: repr(value) for name, value in vars(each).items()})
            for each in (error, pickle.loads(pickle.dumps(error)))
        )
        changed += [] if shown == twin else [(shown, twin)]
    assert not changed


def test_the_error_of_a_streaming_request_crosses_processes_without_what_is_live():
    def respond(task):
        task.request_handle = lambda: None  # an engine's handle cannot be pickled
        raise RuntimeError("the engine is gone")

    with ScaffoldingLlm(Streaming(), {"generation": ScriptedWorker(respond)}) as llm:
        error = llm.generate_async("x").exception(30)
    twin = pickle.loads(pickle.dumps(error))
    assert str(twin) == str(error)
    assert (twin.task.input_str, twin.task.request_handle, twin.task.streaming_output_list) == ("x", None, [])
    assert error.task.request_handle is not None


class Streaming:
    """A controller by its methods alone, which sends a streaming task to the caller."""

    def clone(self):
        return self

    def generate(self, prompt):
        yield [StreamGenerationTask(worker_tag="generation", input_str=prompt, streaming_output_flag=True)]


def test_a_word_of_thousands_of_characters_is_cut_and_a_path_is_not():
    path = "/models/" + "long/" * 40
    error = ConfigError(f"is {'x' * 5000!r}; name a file, not {path}", "y" * 700)
    assert len(str(error)) < 600
    assert "(5,003 characters) name a file" in str(error)
    assert path in error.message
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
