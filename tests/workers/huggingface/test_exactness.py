"""HuggingFaceWorker against transformers: the same tokens, the same log-probabilities, whatever runs beside them.

The runs batch, read prompts in chunks and reuse prefixes; each test makes sure that this really happened.
"""

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPTNeoXConfig,
    MistralConfig,
    Qwen2Config,
)

from scaffolding_ext.evaluation.run.datasets import embedded_problems
from scaffolding_ext.prompts.tokenizers import load_tokenizer, model_folder
from scaffolding_ext.protocol import GenerationTask, TaskStatus
from scaffolding_ext.protocol.meta import token_counts_of
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.workers.huggingface.model_runner import ModelRunner
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker
from tests.workers.huggingface.tolerance import float32_tolerance

TRAINED, SMALL = "tinylm/target", "tinylm/draft"
VOCABULARY, CONTEXT, WINDOW, CHUNK = 512, 256, 24, 24
WINDOWS = ["sliding_attention", "full_attention"]
# Of log-probabilities; logits closer than this may be ordered either way.
TOLERANCE = float32_tolerance(longest_sum=1024, num_sums=32, magnitude=32.0)
NUM_SAMPLED = 40  # texts
WAIT = 120  # seconds until a test gives up
# Random models get the tokenizer of a reasoning model, and are compared greedily.
decodes_random_models_greedily = pytest.mark.filterwarnings(
    "ignore::scaffolding_ext.workers.shared.sampling_defaults.GreedyThinkingWarning"
)

_SHAPE = {"vocab_size": VOCABULARY, "initializer_range": 0.2, "tie_word_embeddings": False}
_SHAPE |= {"bos_token_id": None, "eos_token_id": 3}
_SHAPE |= {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
_SHAPE |= {"max_position_embeddings": CONTEXT}
_GROUPED = {**_SHAPE, "num_key_value_heads": 2}
CONFIGS = {
    "qwen2": lambda: Qwen2Config(**_GROUPED),
    "neox": lambda: GPTNeoXConfig(**_SHAPE, rotary_pct=0.25),
    "mistral": lambda: MistralConfig(**_GROUPED, sliding_window=WINDOW),
    "gemma3": lambda: Gemma3TextConfig(**_GROUPED, head_dim=16, sliding_window=WINDOW, layer_types=WINDOWS),
}


# ---- models, and what is run on them


class Started(NamedTuple):
    """A worker, its runner, what each request did in each pass, and transformers' own model."""

    worker: HuggingFaceWorker
    runner: ModelRunner
    passes: list[list[tuple[bool, bool]]]  # whether the request decodes, and whether it reads a part of its prompt
    reference: Any


@pytest.fixture
def start(monkeypatch):
    """Makes workers whose passes are noted, and shuts them down."""
    started, passes, forward = [], {}, ModelRunner.forward

    def noting(runner, works):
        logits = forward(runner, works)
        notes = [(work.request.num_decoded > 0, not work.completes) for work in works]
        passes.setdefault(runner, []).append(notes)
        return logits

    def make(model, **options):
        worker = HuggingFaceWorker(model, **options)  # its warm-up is a pass
        reference = AutoModelForCausalLM.from_pretrained(model_folder(model)).eval()
        assert reference.config._attn_implementation in ("eager", "sdpa")
        started.append(Started(worker, *list(passes.items())[-1], reference))
        return started[-1]

    monkeypatch.setattr(ModelRunner, "forward", noting)
    yield make
    for each in started:
        each.worker.shutdown()


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """Makes the folder of a tiny random model, once a shape."""
    folders = {}

    def make(shape):
        if shape not in folders:
            folders[shape] = tmp_path_factory.mktemp(shape)
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(CONFIGS[shape]())
            with torch.no_grad():
                for parameter in model.parameters():
                    if (
                        parameter.dim() == 1
                    ):  # biases begin as 0 and norms as 1, so that it would not show if one were lost
                        parameter.add_(torch.randn_like(parameter), alpha=0.2)
            model.save_pretrained(folders[shape])
            for name in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(Path(model_folder(SMALL)) / name, folders[shape])
        return str(folders[shape])

    return make


@pytest.fixture(params=CONFIGS)
def served(request, folder_of, start):
    return start(folder_of(request.param), max_batch_size=8, prefill_chunk=CHUNK)


def assert_mixed(started, num_decoding):
    """Rows decoded together, prompts came in chunks while others decoded, and prefixes were reused."""
    decoding = [sum(decodes for decodes, _ in notes) for notes in started.passes]
    assert max(decoding) >= num_decoding
    reading = [any(is_part for _, is_part in notes) for notes in started.passes]
    assert any(is_part and num for is_part, num in zip(reading, decoding, strict=True))
    assert started.worker.metrics.num_reused > 0


def run(worker, tasks):
    """Run tasks that the engine gets all at once."""

    async def all_of_them():
        with worker._engine._wake:
            calls = [asyncio.ensure_future(worker.run_task(task)) for task in tasks]
            await asyncio.sleep(0)
        return await asyncio.wait_for(asyncio.gather(*calls), WAIT)

    assert asyncio.run(all_of_them()) == [TaskStatus.SUCCESS] * len(tasks)


def problems(num_problems):
    tokenizer = load_tokenizer(TRAINED)
    texts = [f"<|user|>{sample.prompt}<|assistant|><think>\n" for sample in embedded_problems(num_problems)]
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]


def random_prompts():
    """Prompts of 1 to 150 tokens; some begin as a long one does, for a while, and one is the same."""
    rng = random.Random(0)

    def draw(num_tokens):
        return rng.choices(range(5, VOCABULARY), k=num_tokens)

    long = draw(120)
    prompts = [draw(n) for n in (1, 2, 15, 16, 17, 23, 24, 25, 31, 48, 64, 65, 97, 128, 150)]
    prompts += [long[:n] + draw(30) for n in (15, 16, 17, 40, 64, 119, 120)] + [long, long[:70], list(long)]
    rng.shuffle(prompts)
    return prompts


# ---- greedy texts


def reference_logits(reference, prompt, continuation):
    """Of each token of the continuation, from one pass over it all."""
    with torch.inference_mode():
        return reference(torch.tensor([prompt + continuation])).logits[0, len(prompt) - 1 : -1]


def generated(reference, prompts, max_tokens, end_id=None):
    """Greedy texts of transformers' own `generate`, in one call for prompts that are padded on the left."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    reference.generation_config.eos_token_id, reference.generation_config.pad_token_id = end_id, 0
    output = reference.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=max_tokens)
    texts = output[:, width:].tolist()
    return [text[: text.index(end_id) + 1] if end_id in text else text for text in texts]


def num_wrong(reference, prompt, ours, theirs):
    """Return the number of wrong tokens: the first that differs from theirs, and any that is not the likeliest.

    Where the best two logits are nearly tied, either is right.
    """
    logits = reference_logits(reference, prompt, ours)
    best = logits.topk(2).values
    chosen = logits.gather(-1, torch.tensor(ours)[:, None])[:, 0]
    wrong = best[:, 0] - chosen > TOLERANCE
    first = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if first is not None:
        wrong[first] |= best[first, 0] - best[first, 1] > TOLERANCE
    return int(wrong.sum()) + (first is None and len(ours) != len(theirs))


def test_greedy_texts_of_a_trained_model_equal_those_of_generate(start):
    started = start(TRAINED, max_batch_size=64, prefill_chunk=128)
    prompts = problems(80)
    prompts += prompts[::4]  # the problems have no long prefix in common
    tasks = [GenerationTask(input_tokens=ids, max_tokens=40, temperature=0.0) for ids in prompts]
    run(started.worker, tasks)
    assert_mixed(started, num_decoding=40)
    end_id = load_tokenizer(TRAINED).eos_token_id
    theirs = [text for i in range(0, 80, 40) for text in generated(started.reference, prompts[i : i + 40], 40, end_id)]
    wrong = [
        num_wrong(started.reference, task.input_tokens, task.output_tokens, text)
        for task, text in zip(tasks, theirs + theirs[::4], strict=True)
    ]
    assert sum(wrong) == 0


@decodes_random_models_greedily
def test_greedy_texts_of_a_random_model_equal_those_of_generate(served):
    lengths = [10 + 7 * i % 45 for i in range(len(random_prompts()))]
    tasks = [
        GenerationTask(input_tokens=ids, max_tokens=length, ignore_eos=True, temperature=0.0)
        for ids, length in zip(random_prompts(), lengths, strict=True)
    ]
    run(served.worker, tasks)
    assert_mixed(served, num_decoding=4)
    assert any(token_counts_of(task).reused and token_counts_of(task).prefilled > CHUNK for task in tasks)
    texts = [generated(served.reference, [task.input_tokens], task.max_tokens)[0] for task in tasks]
    assert len({token for text in texts for token in text}) > 50  # else it might not matter what is attended to
    wrong = [
        num_wrong(served.reference, task.input_tokens, task.output_tokens, text)
        for task, text in zip(tasks, texts, strict=True)
    ]
    assert sum(wrong) == 0


# ---- log-probabilities


@decodes_random_models_greedily
def test_logprobs_of_generated_tokens_equal_the_reference(served):
    tasks = [
        GenerationTask(input_tokens=ids, max_tokens=12, ignore_eos=True, num_logprobs=5, temperature=i % 2, seed=i)
        for i, ids in enumerate(random_prompts())
    ]
    run(served.worker, tasks)
    assert_mixed(served, num_decoding=4)
    for task in tasks:
        expected = reference_logits(served.reference, task.input_tokens, task.output_tokens).log_softmax(-1)
        for entry, token, row in zip(task.logprobs, task.output_tokens, expected, strict=True):
            assert set(entry) == {token} | {alternative for alternative, value in entry.items() if value.rank}
            assert {value.rank for value in entry.values()} - {None} == {1, 2, 3, 4, 5}
            likeliest = row.topk(5).values.tolist()
            for alternative, value in entry.items():  # an id is right where its own value is that of its rank
                assert value.logprob == pytest.approx(row[alternative].item(), abs=TOLERANCE)
                assert value.rank is None or value.logprob == pytest.approx(likeliest[value.rank - 1], abs=TOLERANCE)


@decodes_random_models_greedily
def test_scores_equal_the_reference_in_chunks_and_from_a_cached_prefix(served):
    for splits in (range(1, 80, 3), range(80, 1, -3)):  # the second time, more of each prompt can be reused, or less
        tasks = [
            ScoreTask(input_tokens=ids[:split], continuation_tokens=ids[split:] + ids[:7])
            for ids, split in zip(random_prompts(), splits, strict=False)
        ]
        beside = [
            GenerationTask(input_tokens=ids, max_tokens=40, ignore_eos=True, temperature=0.0)
            for ids in random_prompts()[:4]
        ]
        run(served.worker, beside + tasks)
        for task in tasks:
            expected = reference_logits(served.reference, task.input_tokens, task.continuation_tokens).log_softmax(-1)
            expected = expected.gather(-1, torch.tensor(task.continuation_tokens)[:, None])[:, 0]
            assert task.logprobs == pytest.approx(expected.tolist(), abs=TOLERANCE)
    assert_mixed(served, num_decoding=4)
    assert any(token_counts_of(task).reused and token_counts_of(task).prefilled > CHUNK for task in tasks)


# ---- sampling


def test_a_sampled_text_depends_on_its_seed_and_its_prompt_alone(start):
    prompts = problems(NUM_SAMPLED)

    def texts(max_batch_size, first_seed=0):
        started = start(SMALL, max_batch_size=max_batch_size)
        limits = [{}, {"top_p": 0.9}, {"top_k": 2}]
        tasks = [
            GenerationTask(input_tokens=ids, max_tokens=40, temperature=0.7, seed=first_seed + i, **limits[i % 3])
            for i, ids in enumerate(prompts)
        ]
        run(started.worker, tasks)
        assert max(map(len, started.passes)) == max_batch_size
        return [task.output_tokens for task in tasks]

    def num_equal(some, others):
        return sum(a == b for a, b in zip(some, others, strict=True))

    alone = texts(1)
    assert num_equal(alone, texts(32)) >= 0.95 * NUM_SAMPLED  # rounding may flip a draw that falls next to a border
    assert num_equal(alone, texts(32, first_seed=1000)) <= NUM_SAMPLED / 2
