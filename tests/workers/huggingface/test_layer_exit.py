"""Verdicts read before the last layer: where the rule says, with that layer's scores, and nothing left of it."""

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.prompts.tokenizers import load_tokenizer, model_folder
from scaffolding_ext.protocol import GenerationTask, TaskStatus
from scaffolding_ext.protocol.branching import LAYER_EXIT, LayerExit, VerifyTask
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker
from tests.workers.huggingface.tolerance import float32_tolerance

MODEL, NUM_LAYERS = "tinylm/target", 4
TOLERANCE = float32_tolerance(longest_sum=1024, num_sums=24, magnitude=32.0)
NEVER = LayerExit(1e-9, 1e-9)
BRANCHES = [[5 + (number * 37 + place * 11) % 400 for place in range(20 + 9 * number)] for number in range(6)]
YES, NO = 70, 71

_SHAPE = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
_SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "head_dim": 16}
CONFIGS = {
    "llama": LlamaConfig(**_SHAPE),
    "mistral": MistralConfig(**_SHAPE, sliding_window=24),
    "qwen2": Qwen2Config(**{name: value for name, value in _SHAPE.items() if name != "head_dim"}),
    "qwen3": Qwen3Config(**_SHAPE),
}


def verdicts(rule, branches=BRANCHES):
    return VerifyTask(branches=branches, yes_token=YES, no_token=NO, layer_exit=rule)


def run(worker, *tasks):
    async def all_of_them():
        return await asyncio.gather(*(worker.run_task(task) for task in tasks))

    assert set(asyncio.run(all_of_them())) == {TaskStatus.SUCCESS}


@pytest.fixture(scope="module")
def worker():
    with HuggingFaceWorker(MODEL, max_batch_size=8, max_seq_len=256, prefill_chunk=64) as worker:
        yield worker


@pytest.fixture(scope="module")
def curves():
    """Entropies and scores after each layer, shape (branches, layers), by transformers' own pass."""
    model = AutoModelForCausalLM.from_pretrained(model_folder(MODEL)).eval()
    entropies, scores = [], []
    for branch in BRANCHES:
        with torch.inference_mode():
            *states, last = model(torch.tensor([branch]), output_hidden_states=True).hidden_states[1:]
            normed = [*(model.model.norm(state[0, -1]) for state in states), last[0, -1]]
            logits = model.lm_head(torch.stack(normed)).double()
        entropies.append(torch.distributions.Categorical(logits=logits).entropy().numpy())
        scores.append((logits[:, YES] - logits[:, NO]).sigmoid().numpy())
    return np.stack(entropies), np.stack(scores)


@pytest.fixture(scope="module")
def rule(curves):
    """A rule under which some branches leave, after different layers, and some do not; none is near its border."""
    entropies, _ = curves
    rules = [
        LayerExit(theta, epsilon, layer)
        for theta in np.quantile(entropies, [0.4, 0.6, 0.8]) + 1e-3
        for epsilon in np.quantile(np.abs(np.diff(entropies)), [0.4, 0.6, 0.8]) + 1e-3
        for layer in (2, 3)
    ]
    return max(rules, key=lambda rule: len(set(rule.layers(entropies).tolist())))


def test_each_branch_leaves_where_its_rule_says_with_that_layers_score(worker, curves, rule):
    entropies, scores = curves
    expected = rule.layers(entropies)
    assert len(set(expected.tolist())) > 1
    task = verdicts(rule)
    run(worker, task)
    assert task.exit_layers == expected.tolist()
    assert task.scores == pytest.approx(scores[range(len(BRANCHES)), expected - 1].tolist(), abs=TOLERANCE)


def test_verdicts_after_every_layer_are_those_of_the_models_own_states(worker, curves):
    task = verdicts(None)
    task.every_layer = True
    run(worker, task)
    entropies, scores = np.moveaxis(np.array(task.curves), -1, 0)
    assert entropies == pytest.approx(curves[0], abs=TOLERANCE)
    assert scores == pytest.approx(curves[1], abs=TOLERANCE)
    assert task.scores == pytest.approx(curves[1][:, -1].tolist(), abs=TOLERANCE)
    assert task.exit_layers is None


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_rule_that_never_fires_changes_no_score(kind, tmp_path):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)  # else a norm or bias that is lost would not show
    model.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(model_folder("tinylm/draft")) / name, tmp_path)
    never, last = verdicts(NEVER), verdicts(None)
    with HuggingFaceWorker(str(tmp_path), prefill_chunk=64) as worker:
        assert not worker.refused
        run(worker, never)
        run(worker, last)
    assert never.exit_layers == [3] * len(BRANCHES)
    assert last.exit_layers is None
    assert never.scores == pytest.approx(last.scores, abs=1e-4)


def test_who_leaves_early_leaves_nothing_that_others_could_read(worker, rule):
    branches = [[9, *branch] for branch in BRANCHES]  # nobody has computed them
    cached = worker.metrics.num_cached_blocks
    first = verdicts(rule, branches)
    beside = [
        GenerationTask(input_tokens=branch, max_tokens=8, ignore_eos=True, temperature=0.0) for branch in branches[:3]
    ]
    run(worker, first, *beside)
    again, texts = (
        verdicts(rule, branches),
        [GenerationTask(input_tokens=b, max_tokens=8, temperature=0.0) for b in branches],
    )
    run(worker, *texts)
    run(worker, again)
    with HuggingFaceWorker(MODEL, enable_block_reuse=False, max_seq_len=256) as fresh:
        alone = [GenerationTask(input_tokens=branch, max_tokens=8, temperature=0.0) for branch in branches]
        run(fresh, *alone)
        assert fresh.metrics.num_cached_blocks == 0
    assert min(first.exit_layers) < NUM_LAYERS
    assert again.exit_layers == first.exit_layers
    assert again.scores == pytest.approx(first.scores, abs=TOLERANCE)
    assert [task.output_tokens for task in texts] == [task.output_tokens for task in alone]
    assert worker.metrics.num_cached_blocks > cached
    assert worker.metrics.num_running == worker.metrics.num_waiting == worker.metrics.num_held_blocks == 0


def test_a_branch_whose_kv_is_there_costs_its_question_in_the_layers_that_it_runs_through(worker, rule):
    written = GenerationTask(input_tokens=[11, *BRANCHES[2]], max_tokens=30, ignore_eos=True, temperature=0.0)
    run(worker, written)
    before = worker.metrics.num_prefilled
    task = verdicts(rule, [[*written.input_tokens, *written.output_tokens, 7, 8]])
    run(worker, task)
    assert worker.metrics.num_prefilled - before == 1 + len(BRANCHES[2]) + 32 - 64  # behind two whole blocks


ALWAYS = LayerExit(1e9, 1e9)
LONG = [5 + 37 * place % 400 for place in range(1024)]


@pytest.fixture
def token_layers(monkeypatch):
    """The tokens that each call of a layer computes."""
    found = []

    def through(layer, hidden, **options):
        found.append(hidden.shape[1])
        return run_through(layer, hidden, **options)

    run_through = LlamaDecoderLayer.__call__
    monkeypatch.setattr(LlamaDecoderLayer, "__call__", through)
    return found


def test_a_long_prompt_leaves_as_a_whole_at_the_default_chunk(token_layers):
    with HuggingFaceWorker(MODEL) as worker:
        token_layers.clear()
        run(worker, verdicts(None, [LONG]))
        full = sum(token_layers)
        token_layers.clear()
        task = verdicts(ALWAYS, [[*LONG[1:], 3]])
        run(worker, task)
    assert task.exit_layers == [2]
    assert full >= NUM_LAYERS * len(LONG)
    assert sum(token_layers) == 2 * len(LONG)


def test_models_whose_layers_cannot_be_called_say_so():
    config = GPTNeoXConfig(
        vocab_size=512, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    with HuggingFaceWorker(GPTNeoXForCausalLM(config), tokenizer=load_tokenizer(MODEL), max_seq_len=128) as worker:
        assert "the model is a gpt_neox" in worker.refused[LAYER_EXIT]
        with pytest.raises(InvalidTaskError, match=r"layer_exit is LayerExit.*only layers of llama, mistral"):
            asyncio.run(worker.run_task(verdicts(NEVER)))
        plain = verdicts(None)
        run(worker, plain)
        assert plain.scores is not None
