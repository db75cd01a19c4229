"""Linear layers with narrower weights: as exact as their numbers allow, row by row, and refused where they are slow."""

import asyncio

import pytest
import torch
from transformers import AutoModelForCausalLM

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.prompting import model_folder
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.workers.huggingface import narrow_weights as module
from scaffolding_ext.workers.huggingface.narrow_weights import LAYERS, narrow_weights
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

MODEL = "tinylm/draft"
ROUNDOFF = {"bfloat16": 2.0**-8, "int8": 1 / 254}  # of a number, of the largest one


def lacks(weight_dtype):
    return not getattr(torch.cpu, module._NEEDS[weight_dtype][1], bool)()


kinds = pytest.mark.parametrize(
    "weight_dtype",
    [pytest.param(kind, marks=pytest.mark.skipif(lacks(kind), reason="this processor lacks it")) for kind in LAYERS],
)


@pytest.fixture
def layer():
    torch.manual_seed(0)
    layer = torch.nn.Linear(96, 40)
    with torch.no_grad():
        layer.weight *= torch.logspace(-3, 2, 40)[:, None]  # each output has a scale of its own
    return layer


@kinds
@torch.inference_mode()
def test_it_computes_what_the_layer_does(layer, weight_dtype):
    inputs = torch.randn(1, 30, 96) * torch.logspace(-4, 3, 30)[:, None]
    wide, narrow = layer(inputs), LAYERS[weight_dtype](layer)(inputs)
    assert narrow.dtype is torch.float32
    assert narrow.shape == wide.shape
    largest = inputs.abs().amax(-1, keepdim=True) * layer.weight.abs().amax(1)
    bound = 96 * largest * 2.5 * ROUNDOFF[weight_dtype] + wide.abs() * 2.0**-7 + layer.bias.abs() * 2.0**-7
    assert ((narrow - wide).abs() <= bound).all()
    assert (narrow - wide).abs().max() > 0


@kinds
@torch.inference_mode()
def test_what_is_zero_stays_zero_and_what_is_no_number_shows(weight_dtype):
    layer = LAYERS[weight_dtype](torch.nn.Linear(32, 8, bias=False))
    inputs = torch.zeros(3, 32)
    inputs[1, 5] = torch.nan
    outputs = layer(inputs)
    assert torch.equal(outputs[[0, 2]], torch.zeros(2, 8))
    assert outputs[1].isnan().all()


@torch.inference_mode()
@pytest.mark.skipif(lacks("int8"), reason="this processor lacks it")
def test_a_row_in_whole_numbers_depends_on_itself_alone(layer):
    narrow, inputs = LAYERS["int8"](layer), torch.randn(33, 96)
    alone = torch.cat([narrow(row[None]) for row in inputs])
    assert torch.equal(narrow(inputs), alone)
    inputs[7] *= 1e6
    assert torch.equal(narrow(inputs)[8:], alone[8:])


@kinds
def test_a_worker_gives_nearly_the_models_texts_from_a_fraction_of_the_bytes(weight_dtype):
    def texts(**options):
        with HuggingFaceWorker(MODEL, attn_implementation="sdpa", **options) as worker:  # loaded by transformers
            network = worker._engine._batch._runner._model
            tasks = [GenerationTask(input_tokens=[*range(5, 20 + n)], max_tokens=24, temperature=0.0) for n in range(8)]

            async def run():
                await asyncio.gather(*[worker.run_task(task) for task in tasks])

            asyncio.run(run())
            layers = [each for each in network.modules() if isinstance(each, torch.nn.Linear | LAYERS[weight_dtype])]
            num_bytes = sum(each.matrix.nbytes if options else each.weight.nbytes for each in layers)
            return [task.output_tokens for task in tasks], num_bytes

    (wide, wide_bytes), (narrow, narrow_bytes) = texts(), texts(weight_dtype=weight_dtype)
    assert narrow_bytes * {"bfloat16": 2, "int8": 4}[weight_dtype] == wide_bytes
    assert sum(a[:4] == b[:4] for a, b in zip(wide, narrow, strict=True)) >= 4


@pytest.mark.parametrize("weight_dtype", LAYERS)
def test_a_processor_that_is_slow_at_it_is_refused(monkeypatch, weight_dtype):
    needed, has_it = module._NEEDS[weight_dtype]
    monkeypatch.setattr(torch.cpu, has_it, lambda: False, raising=False)
    with pytest.raises(
        ConfigError, match=rf"^weight_dtype: is '{weight_dtype}', .*, since it lacks {needed}: leave it out$"
    ):
        HuggingFaceWorker(MODEL, attn_implementation="sdpa", weight_dtype=weight_dtype)


def test_an_embedded_model_is_refused():
    with pytest.raises(ConfigError, match=r"^weight_dtype: is 'int8', and the embedded models are no faster"):
        HuggingFaceWorker(MODEL, weight_dtype="int8")


def test_a_model_without_linear_layers_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: True)
    with pytest.raises(ConfigError, match="the model has no linear layer"):
        narrow_weights(torch.nn.Sequential(torch.nn.Embedding(4, 4)), "int8")


def test_the_embedding_of_a_tied_model_stays(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: True)
    network = AutoModelForCausalLM.from_pretrained(model_folder(MODEL)).eval()
    assert network.config.tie_word_embeddings
    before = network.get_input_embeddings().weight.clone()
    narrow_weights(network, "int8")
    assert torch.equal(network.get_input_embeddings().weight, before)
    assert isinstance(network.get_output_embeddings(), LAYERS["int8"])
