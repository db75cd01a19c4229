"""Penalties and bans of a generation config change texts as `generate()` of transformers lets them."""

import asyncio

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.tokenizers import model_folder
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.workers.huggingface.engine_request import SamplingParams
from scaffolding_ext.workers.huggingface.sampling import sample
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

FOLDER = model_folder("tinylm/draft")
PROMPT = [5, 6, 7, 8, 9, 10]
NUM_TOKENS = 40


def network(**fields):
    found = AutoModelForCausalLM.from_pretrained(FOLDER)
    found.generation_config = GenerationConfig(**{"do_sample": False, "eos_token_id": 3, "pad_token_id": 0, **fields})
    return found


def worker(**fields):
    return HuggingFaceWorker(network(**fields), tokenizer=AutoTokenizer.from_pretrained(FOLDER))


def written(served, **fields):
    task = GenerationTask(input_tokens=PROMPT, max_tokens=NUM_TOKENS, **fields)
    asyncio.run(served.run_task(task))
    return task


def generated(**fields):
    ids = torch.tensor([PROMPT])
    return network(**fields).generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS)[0]


PLAIN = generated()[len(PROMPT) :].tolist()


@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 1.3},
        {"no_repeat_ngram_size": 2},
        {"bad_words_ids": [[PLAIN[0]], PLAIN[3:5]]},
        {"begin_suppress_tokens": [PLAIN[0]]},
        {"min_length": 40},
        {"sequence_bias": [[[PLAIN[0]], -8.0]]},
        {"exponential_decay_length_penalty": [2, 1.5]},
        {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "suppress_tokens": [PLAIN[1]]},
    ],
)
def test_texts_equal_generate(fields):
    expected = generated(**fields)[len(PROMPT) :].tolist()
    with worker(**fields) as served:
        task = written(served, num_logprobs=1)
        assert task.output_tokens == expected
        assert written(served, temperature=0.0).output_tokens == PLAIN  # a task with a temperature decides everything
        with worker() as plain:
            first = written(plain, num_logprobs=1).logprobs[0]
        assert max(task.logprobs[0].values()).logprob <= max(first.values()).logprob  # of the unchanged distribution
    assert expected != PLAIN or fields.keys() & {"min_length", "min_new_tokens", "exponential_decay_length_penalty"}


@pytest.mark.parametrize(
    "fields",
    [
        {"num_beams": 2},
        {"guidance_scale": 1.5},
        {"stop_strings": ["\n"]},
        {"do_sample": True, "typical_p": 0.9},
    ],
)
def test_what_is_not_applied_is_refused_by_name(fields):
    with pytest.raises(ConfigError, match=f"^model: has a generation config with {list(fields)[-1]} .*remove"):
        worker(**fields)


def test_values_that_are_off_are_served():
    off = {
        "num_beams": 1,
        "repetition_penalty": 1.0,
        "no_repeat_ngram_size": 0,
        "typical_p": 1.0,
        "suppress_tokens": [],
    }
    with worker(do_sample=True, **off) as served:
        assert written(served, temperature=0.0).output_tokens == PLAIN


def test_min_p_keeps_a_share_of_the_likeliest():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).expand(400, -1)
    params = [SamplingParams(1.0, 0, 1.0, seed, min_p=0.4) for seed in range(400)]
    drawn = set(sample(logits, params, [0] * 400).token_ids)
    assert drawn == {0, 1}
    hot = [p._replace(temperature=3.0) for p in params]  # scaled by the temperature first, as in transformers
    assert set(sample(logits, hot, [0] * 400).token_ids) == {0, 1, 2, 3}


def test_the_models_min_p_applies_if_the_task_sets_no_temperature():
    with worker(do_sample=True, min_p=1.0) as served:  # only the likeliest token is left
        assert written(served, seed=3).output_tokens == PLAIN
