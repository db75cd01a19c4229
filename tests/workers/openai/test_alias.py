"""A server's alias for its model brings the tokenizer of what is behind it."""

import asyncio

import pytest

pytest.importorskip("openai")
pytest.importorskip("torch")

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.stack.build import build_stack
from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker
from scaffolding_ext.workers.openai.worker import OpenAIWorker
from tests.servers.openai_server import OpenAIServer

MODEL = "tinylm/draft"


@pytest.fixture(scope="module")
def model():
    with HuggingFaceWorker(MODEL) as worker:
        yield worker


@pytest.mark.parametrize(
    ("root", "options", "tokenizer", "endpoint"),
    [
        (MODEL, {"endpoint": "auto"}, MODEL, "completions"),
        (MODEL, {}, MODEL, "completions"),
        ("/models/not/here", {"endpoint": "auto"}, None, "chat"),
        (None, {"endpoint": "auto"}, None, "chat"),
        (None, {"endpoint": "auto", "tokenizer": MODEL}, MODEL, "completions"),
        ("/models/not/here", {"tokenizer": MODEL}, MODEL, "completions"),
    ],
)
def test_an_alias_has_the_tokenizer_of_its_root(model, root, options, tokenizer, endpoint):
    with OpenAIServer(model, "alias", root=root) as server, OpenAIWorker(server.url, "alias", **options) as worker:
        assert (worker.model, worker.takes_messages) == (tokenizer, endpoint == "chat")
        if tokenizer is not None:
            task = GenerationTask(input_tokens=[5, 6, 7], max_tokens=4, temperature=0.0)
            asyncio.run(worker.run_task(task))
            assert len(task.output_tokens) == 4


def test_an_alias_without_a_tokenizer_names_both_ways_out(model):
    workers = {"generation": {"type": "OpenAIWorker", "args": {"model": "alias", "endpoint": "completions"}}}
    stack = {"controller": {"type": "NativeGenerationController"}, "workers": workers}
    with OpenAIServer(model, "alias", root="/models/not/here") as server:
        workers["generation"]["args"]["base_url"] = server.url
        with pytest.raises(
            ConfigError, match=r"set the worker's `endpoint: chat`.* or `tokenizer` to the model's folder"
        ):
            build_stack(StackConfig.model_validate(stack))
        workers["generation"]["args"]["endpoint"] = "chat"
        with build_stack(StackConfig.model_validate(stack)):
            pass
