"""HuggingFaceWorker's errors for wrong arguments and fields: what was given, what is allowed, and where."""

import asyncio
import shutil
from pathlib import Path

import pytest
import torch
from transformers import GPTJConfig, GPTJForCausalLM, LlamaConfig, LlamaForCausalLM

from scaffolding_ext.errors import ConfigError, InvalidTaskError
from scaffolding_ext.prompts.tokenizers import load_tokenizer, model_folder
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.workers.huggingface.model_loading import _MOST
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

MODEL = "tinylm/draft"


@pytest.fixture(scope="module")
def worker():
    with HuggingFaceWorker(MODEL, max_batch_size=2, max_seq_len=64) as worker:
        yield worker


def refusal(*args, **options):
    with pytest.raises(ConfigError) as caught:
        HuggingFaceWorker(*args, **options)
    return caught.value


@pytest.mark.parametrize("key", ["threads", "max_batch_size", "max_seq_len", "prefill_chunk", "prefix_cache_bytes"])
def test_a_number_that_is_none(key):
    value = True
    error = refusal(MODEL, **{key: value})
    least = 0 if key == "prefix_cache_bytes" else 1
    most = f" and at most {_MOST[key]}" if key in _MOST else ""
    assert (error.key, error.message) == (key, f"is {value!r}; it must be a whole number of at least {least}{most}")


def test_a_seed_below_zero():
    assert str(refusal(MODEL, seed=-1)) == "seed: is -1; it must be at least 0"


def test_a_model_folder_that_is_missing(tmp_path):
    folder = str(tmp_path / "none")
    error = refusal(folder)
    assert error.key == "model"
    assert error.message.startswith(f"is {folder!r}, neither a folder here nor a model of the hub: ")
    assert "give a folder with config.json" in error.message


def test_a_folder_that_is_no_model(tmp_path):
    error = refusal(str(tmp_path))
    assert error.key == "model"
    assert error.message.startswith(f"is {str(tmp_path)!r}, a folder without a model: ")


def test_a_folder_without_weights(tmp_path):
    for path in Path(model_folder(MODEL)).glob("*.json"):
        shutil.copy(path, tmp_path)
    error = refusal(str(tmp_path))
    assert error.key == "model"
    assert "safetensors" in error.message


def test_an_embedded_model_that_does_not_exist():
    error = refusal("tinylm/none")
    assert isinstance(error, ConfigError)
    assert (error.key, "tinylm/draft" in error.message) == ("model", True)


def test_a_model_that_is_no_name():
    assert (
        refusal(5).message
        == "is 5; it must be a folder, a name on the hub, tinylm/NAME, or a causal LM of transformers"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_a_device_that_this_machine_lacks(device):
    error = refusal(MODEL, device=device)
    assert error.key == "device"
    assert error.message.startswith(f"is {device!r}, which torch {torch.__version__} cannot use on this machine: ")
    assert error.message.endswith("set 'cpu', or install a torch and a driver for that device")


@pytest.mark.parametrize("device", ["graphics", 5.0])
def test_a_device_that_does_not_exist(device):
    assert refusal(MODEL, device=device).key == "device"


def test_a_dtype_that_does_not_exist():
    assert str(refusal(MODEL, dtype="int8")) == "dtype: is 'int8'; choose one of float32, bfloat16, float16"


def test_a_loaded_model_without_its_tokenizer():
    network = LlamaForCausalLM(LlamaConfig(vocab_size=512, hidden_size=32, num_hidden_layers=1, num_attention_heads=2))
    error = refusal(network)
    assert error.key == "tokenizer"
    assert "give the fast tokenizer that transformers' AutoTokenizer loads" in error.message


def test_a_model_whose_attention_cannot_be_replaced():
    config = GPTJConfig(vocab_size=512, n_embd=32, n_layer=1, n_head=2, n_positions=64, rotary_dim=8)
    error = refusal(GPTJForCausalLM(config), tokenizer=load_tokenizer(MODEL))
    assert error.key == "model"
    assert "a gptj, whose attention transformers cannot replace" in error.message


@pytest.mark.parametrize("stop", [5, ["a", 5]])
def test_a_stop_that_is_no_string(worker, stop):
    task = GenerationTask(input_tokens=[5], max_tokens=4, stop=stop)
    with pytest.raises(InvalidTaskError, match=r"^stop is .*; it must be a string or a list of strings$"):
        asyncio.run(worker.run_task(task))


@pytest.mark.parametrize("stop", ["", ("a",), ["a", ""]])
def test_a_stop_that_is_none_or_several(worker, stop):
    task = GenerationTask(input_tokens=[5], max_tokens=4, stop=stop)
    asyncio.run(worker.run_task(task))
    assert task.output_str is not None
