"""The similarity gate: a branch with its own phrasing stays on the prefix's KV where that leaves the model alike."""

import asyncio

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.prompts.tokenizers import load_tokenizer, model_folder
from scaffolding_ext.protocol import GenerationTask, TaskStatus
from scaffolding_ext.protocol.branching import SIMILARITY_GATE, BranchTask, layer_weighted_similarity
from scaffolding_ext.protocol.meta import token_counts_of
from scaffolding_ext.request.program import Program, enter_program, leave_program
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker
from tests.workers.huggingface.tolerance import float32_tolerance

MODEL = "tinylm/draft"
TOLERANCE = float32_tolerance(longest_sum=1024, num_sums=24, magnitude=32.0)
PREFIX = [5 + 37 * place % 400 for place in range(70)]
PHRASINGS = [PREFIX, [9, *PREFIX], PREFIX[:50], [6 + 41 * place % 400 for place in range(90)]]
SUFFIXES = [[7], [8, 9, 10], [11] * 20, [12, 13]]
NUM_TOKENS = 12


def run(worker, *tasks):
    async def all_of_them():
        return await asyncio.gather(*(worker.run_task(task) for task in tasks))

    assert set(asyncio.run(all_of_them())) == {TaskStatus.SUCCESS}


def branches(least_similarity, **fields):
    given = {"prefix_tokens": PREFIX, "phrasings": PHRASINGS, "suffixes": SUFFIXES, "max_tokens": NUM_TOKENS}
    return BranchTask(**given | {"temperature": 0.0, "least_similarity": least_similarity} | fields)


@pytest.fixture(scope="module")
def worker():
    with HuggingFaceWorker(MODEL, max_seq_len=512) as worker:
        yield worker


@pytest.fixture(scope="module")
def similarities():
    """Of each branch, by transformers' own pass over the prefix and its suffix."""
    model = AutoModelForCausalLM.from_pretrained(model_folder(MODEL)).eval()

    def last_states(ids):
        with torch.inference_mode():
            found = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        return np.stack([states[0, -1].numpy() for states in found[1:]])

    states = [last_states(PREFIX + suffix) for suffix in SUFFIXES[1:]]
    return [1.0, *layer_weighted_similarity(states, last_states(PREFIX))]


@pytest.fixture(scope="module")
def plain(worker):
    """Return the texts that plain requests write behind the prefix, and behind each phrasing."""

    def written(prefixes):
        tasks = [
            GenerationTask(input_tokens=prefix + suffix, max_tokens=NUM_TOKENS, temperature=0.0)
            for prefix, suffix in zip(prefixes, SUFFIXES, strict=True)
        ]
        with HuggingFaceWorker(MODEL, max_seq_len=512, enable_block_reuse=False) as other:
            run(other, *tasks)
        return [task.output_tokens for task in tasks]

    return written([PREFIX] * len(PHRASINGS)), written(PHRASINGS)


def test_similarities_are_those_of_the_models_own_hidden_states(worker, similarities):
    task = branches(-1.0)
    run(worker, task)
    assert task.similarities == pytest.approx(similarities, abs=TOLERANCE)
    assert task.on_prefix == [True] * 4


@pytest.mark.parametrize("num_kept", [1, 2, 3, 4])
def test_branches_stay_on_the_prefix_from_the_threshold_on_and_write_what_plain_requests_write(
    worker, similarities, plain, num_kept
):
    """The threshold lies between two similarities; the branch whose phrasing is the prefix always stays."""
    ranked = [*sorted(similarities, reverse=True), -1.0]
    task = branches((ranked[num_kept - 1] + ranked[num_kept]) / 2)
    run(worker, task)
    assert task.on_prefix == [similarity >= task.least_similarity for similarity in similarities]
    assert sum(task.on_prefix) == num_kept
    on_prefix, on_phrasing = plain
    chosen = [on_prefix[n] if stays else on_phrasing[n] for n, stays in enumerate(task.on_prefix)]
    assert task.output_tokens == chosen
    assert on_prefix[1:] != on_phrasing[1:]


def test_without_a_threshold_each_branch_is_computed_on_its_own_phrasing(worker, plain):
    task = branches(None)
    run(worker, task)
    assert task.output_tokens == plain[1]
    assert task.on_prefix == [True, False, False, False]
    assert task.similarities is None


def test_a_gate_costs_the_suffixes_and_what_lies_behind_the_last_whole_block():
    suffix_len = sum(map(len, SUFFIXES[1:]))
    with HuggingFaceWorker(MODEL, max_seq_len=512) as worker:
        stays = branches(-1.0, max_tokens=1)
        run(worker, stays)
    behind = len(PREFIX) % 32  # read again by each
    first = behind + len(SUFFIXES[0])  # of the branch that asks for nothing
    read = len(PREFIX) + 3 * behind + suffix_len
    assert token_counts_of(stays).prefilled == read + first + 3 * behind + suffix_len
    assert token_counts_of(stays).decoded == 4
    with HuggingFaceWorker(MODEL, max_seq_len=512) as worker:
        leaves = branches(1.0, max_tokens=1, phrasings=[PREFIX, *([400 + n] * 40 for n in (1, 2, 3))])
        run(worker, leaves)
    assert token_counts_of(leaves).prefilled == read + first + 3 * 40 + suffix_len
    assert leaves.on_prefix == [True, False, False, False]


def test_the_trace_says_what_the_gate_decided_on(worker):
    program, task = Program(), branches(0.5)
    enter_program(program)
    try:
        run(worker, task)
    finally:
        leave_program()
    (event,) = [event for event in program.trace if event["event"] == "similarity_gate"]
    assert (event["least_similarity"], event["similarities"]) == (0.5, task.similarities)
    assert event["on_prefix"] == task.on_prefix


def test_where_every_phrasing_is_the_prefix_nothing_is_asked(worker):
    run(worker, GenerationTask(input_tokens=PREFIX, max_tokens=1))
    task = branches(0.9, phrasings=[PREFIX] * 2, suffixes=[[], [7]], max_tokens=1)
    run(worker, task)
    assert (task.similarities, task.on_prefix) == ([1.0, 1.0], [True, True])
    assert token_counts_of(task).prefilled == 2 * 6 + 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"phrasings": PHRASINGS[:2]}, "phrasings has 2 prompts, and there are 4 branches"),
        ({"phrasings": None}, "least_similarity is 0.9, but all branches of the task have the same prefix"),
        ({"least_similarity": 1.5}, "least_similarity is 1.5"),
        (
            {"suffixes": [[7], [8], [], [9]]},
            r"suffixes\[2\] is empty, and least_similarity compares branches at the last token",
        ),
        ({"prefix_tokens": []}, "at least one token"),
        ({"suffixes": [[7], [8], [9999], [9]]}, "contains 9999"),
        ({"prefix_tokens": PREFIX * 10}, "prefix and suffix have 7"),
    ],
)
def test_what_is_unusable_is_refused_by_name(worker, fields, message):
    with pytest.raises(InvalidTaskError, match=message):
        asyncio.run(worker.run_task(branches(**{"least_similarity": 0.9} | fields)))
    assert worker.metrics.num_running == 0


@pytest.mark.filterwarnings("ignore::scaffolding_ext.workers.shared.sampling_defaults.GreedyThinkingWarning")
def test_a_model_whose_layers_cannot_be_called_refuses_the_gate_alone():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    network = GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=512, max_position_embeddings=512, **sizes))
    with HuggingFaceWorker(network, tokenizer=load_tokenizer(MODEL)) as worker:
        assert "leave least_similarity out" in worker.refused[SIMILARITY_GATE]
        with pytest.raises(InvalidTaskError, match=r"least_similarity is 0.9, but .* leave least_similarity out"):
            asyncio.run(worker.run_task(branches(0.9)))
        task = branches(None)
        run(worker, task)
    assert task.on_prefix == [True, False, False, False]
