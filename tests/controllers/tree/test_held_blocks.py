"""Blocks of KV that a search holds at once: against a count by hand of every block, and against the engine's own."""

import asyncio
from collections import Counter

import numpy as np
import pytest

from scaffolding_ext.controllers.tree.held_blocks import HeldBlocks, num_blocks
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.branching import BranchTask, VerifyTask
from scaffolding_ext.protocol.relay import relay
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.workers.budgeted import BudgetedWorker
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

BLOCK = 16
PROMPT = "Start with 5. Apply a+3,b-2. Find the total."


def counted(requests, size):
    """Every block of every request written down, and those that are read whole struck out but for one."""
    seen, total = Counter(), 0
    for ids, num_written in requests:
        for end in range(size, len(ids) + num_written + size, size):
            if end <= len(ids):
                seen[tuple(ids[:end])] += 1
            else:
                total += 1
    return total + len(seen)


@pytest.mark.parametrize("seed", range(20))
def test_blocks_equal_a_count_of_each(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 6))
    beginnings = [rng.integers(0, 3, rng.integers(0, 12)).tolist() for _ in range(3)]
    requests = [
        (
            beginnings[rng.integers(3)] + rng.integers(0, 2, rng.integers(0, 9)).tolist(),
            int(rng.integers(0, 7)),
        )
        for _ in range(rng.integers(0, 12))
    ]
    assert num_blocks(requests, size) == counted(requests, size)


@pytest.mark.parametrize(
    ("requests", "blocks"),
    [
        ([], 0),
        ([([], 0)], 0),
        ([([1, 2, 3, 4], 0)] * 3, 1),
        ([([1, 2, 3, 4], 1)] * 3, 1 + 3),
        ([([1, 2, 3], 1)] * 3, 3),  # what is not full when it is read is nobody else's
        ([([1, 2, 3, 4, 5, 6, 7, 8], 0), ([1, 2, 3, 4, 9, 9, 9, 9], 0)], 3),
        ([([5, 6, 7, 8], 0), ([1, 2, 3, 4, 5, 6, 7, 8], 0)], 3),  # the same tokens behind others are another block
    ],
)
def test_blocks_of_four_tokens(requests, blocks):
    assert num_blocks(requests, 4) == blocks


def tasks():
    """Of each kind two requests over one prefix of two blocks of four tokens."""
    prefix = [1, 2, 3, 4, 5, 6, 7, 8]
    tag = WorkerTag.GENERATION
    generations = [GenerationTask(worker_tag=tag, input_tokens=[*prefix, 9], output_tokens=[1] * 4) for _ in range(2)]
    branches = BranchTask(worker_tag=tag, prefix_tokens=prefix, suffixes=[[], [9]], output_tokens=[[1, 2], [3] * 5])
    worded = BranchTask(
        worker_tag=tag,
        prefix_tokens=prefix,
        suffixes=[[9], [9]],
        phrasings=[[0] * 8, prefix],
        output_tokens=[[1], [1]],
    )
    verdicts = VerifyTask(worker_tag=tag, branches=[[*prefix, 1], [*prefix, 2]])
    score = ScoreTask(worker_tag=tag, input_tokens=prefix, continuation_tokens=[1, 2])
    judged = GenerationTask(worker_tag=WorkerTag.REWARD, input_tokens=[7] * 40)
    return {
        "generation": (generations, 2 + 2 + 2),
        "branches": ([branches], 2 + 1 + 2),
        "phrasings": ([worded], 2 + 2 + 1 + 1),
        "verdicts": ([verdicts], 2 + 2),
        "score": ([score], 3),
        "another worker's": ([judged], 0),
        "nothing": ([], 0),
        "text": ([GenerationTask(worker_tag=tag, input_str="x")], None),
    }


@pytest.mark.parametrize("name", tasks())
def test_a_step_counts_its_requests_of_every_kind(name):
    step, blocks = tasks()[name]
    held = HeldBlocks(4)
    for _ in relay(iter([step]), watch=held):
        pass
    assert held.most == blocks


def test_steps_that_run_beside_each_other_are_held_together_and_the_most_stays():
    held = HeldBlocks(4)
    one, other = (tasks()["generation"][0][:1] for _ in range(2))
    held.ask(one)
    held.ask(other)
    held.count(one, 0.0)
    assert held.most == 2 + 2 + 2  # the prefix once, and of each what is left of it and what it writes
    held.count(other, 0.0)
    assert held.most == 6
    text = tasks()["text"][0]
    held.ask(text)
    held.count(text, 0.0)
    held.count([], 0.0)
    assert held.most is None  # nobody knows


class Peeking(HuggingFaceWorker):
    """Sees the most blocks that its engine holds, at every task that ends and on the way."""

    most = 0

    async def run_task(self, task):
        running = asyncio.ensure_future(super().run_task(task))
        while not running.done():
            await asyncio.wait([running], timeout=0.001)
            self.most = max(self.most, self.metrics.num_held_blocks)
        return running.result()


def search(**arguments):
    return SearchController(**({"steps": 12, "max_tokens": 60, "budget": 16, "insist_on_answer": False} | arguments))


@pytest.fixture
def searched(events):
    """The events of a tree of the embedded model, its result and the worker; blocks are of 16 tokens."""

    def run(controller, wrap=lambda worker: worker, **options):
        with (
            Peeking("tinylm/draft", tokens_per_block=BLOCK, **options) as worker,
            ScaffoldingLlm(controller, {"generation": wrap(worker)}, seed=1) as llm,
        ):
            result = llm.generate(PROMPT, sample_id="one", timeout=120)
        return result, worker, events(result, "tree")[0]

    return run


def test_a_tree_of_a_model_holds_what_its_engine_holds_at_most(searched):
    result, worker, tree = searched(search(strategy={"type": "Beam", "args": {"width": 6, "keep": 3}}))
    assert tree["most_blocks_held"] == result.program.ledger.most_blocks_held
    assert result.program.ledger.to_json()["most_blocks_held"] == tree["most_blocks_held"]
    assert 0 < worker.most <= tree["most_blocks_held"]
    assert tree["most_blocks_held"] <= tree["most_tokens_held"] / BLOCK + 2 * 6  # a node leaves two blocks partly empty
    assert result.program.figures["SearchController"]["most_blocks_held"] == tree["most_blocks_held"]


def test_a_worker_that_shares_nothing_or_has_no_blocks_leaves_them_out(searched):
    result, _, tree = searched(search(), enable_block_reuse=False)
    assert result.program.ledger.most_blocks_held is None
    assert "most_blocks_held" not in tree
    assert "most_blocks_held" not in result.program.ledger.to_json()


def test_a_worker_around_another_says_its_block_size(searched):
    result, _, _ = searched(search(), BudgetedWorker)
    assert result.program.ledger.most_blocks_held
