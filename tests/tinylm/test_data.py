"""Training sequences: what is learnt and what is masked, where branches stand, and the shapes of batches."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from scaffolding_ext.tinylm.chains import STATED, read_chain, written_check
from scaffolding_ext.tinylm.data import (
    CHECK_SHARE,
    HEDGE_SHARE,
    IGNORED,
    NUM_CLOSES,
    NUM_PROBES,
    NUM_STEP_VERDICTS,
    NUM_VERDICTS,
    OWN_SHARE,
    Batch,
    Example,
    ExampleStream,
    OwnChain,
)
from scaffolding_ext.tinylm.grammar import (
    ALL_KINDS,
    CHECK,
    CLOSE,
    HEDGE,
    NO,
    PROBE,
    STEP_VERDICT,
    VERDICT,
    YES,
    Problem,
    sample_problem,
    split_of,
)
from scaffolding_ext.tinylm.tokenizer import END

pytest.importorskip("transformers")

from scaffolding_ext.prompts.prompting import Prompting, load_tokenizer

TOKENIZER = load_tokenizer("tinylm/draft")
PROMPT = re.compile(r"<\|user\|>(.+?)<\|assistant\|><think>\n", re.DOTALL)
ASKED = re.compile(re.escape(CLOSE) + r"(\S+)\}\.(" + re.escape(VERDICT) + "|" + re.escape(CHECK) + ")")
VERDICTS = {YES + END: True, NO + END: False}


class Branch(NamedTuple):
    """What a branch shows: the thinking that it sees, what is given, and the reply that is learnt."""

    thinking: str
    suffix: str
    reply: str

    @property
    def belief(self) -> str | None:
        """The answer that the thinking states last, by its own words."""
        stated = STATED.findall(self.thinking)
        return stated[-1][0] or stated[-1][1] if stated else None


class Reading(NamedTuple):
    """An example as text."""

    problem: Problem
    chain: str
    branches: list[Branch]


def text(ids: list[int]) -> str:
    return str(TOKENIZER.backend_tokenizer.decode(ids, skip_special_tokens=False))


def read(example: Example, problem: Problem) -> Reading:
    """The example with its problem, whose question it must show."""
    rows = list(zip(*example, strict=True))
    chain = [row[0] for row in rows if row[3] == 0]
    start = chain.index(TOKENIZER.convert_tokens_to_ids("<think>")) + 2  # behind the newline
    match = PROMPT.fullmatch(text(chain[:start]))
    assert match is not None
    assert match[1] == problem.question
    branches = []
    for number in range(1, max(example.branches) + 1):
        own = [row for row in rows if row[3] == number]
        (cut,) = {row[4] for row in own}
        given = [token for token, label, *_ in own if label == IGNORED]
        learnt = [token for token, label, *_ in own if label != IGNORED]
        assert [row[0] for row in own] == given + learnt
        branches.append(Branch(text(chain[start:cut]), text(given), text(learnt)))
    return Reading(problem, text(chain[start:]), branches)


def problem_of(seed: int) -> Problem:
    """The first thing that a seed draws."""
    rng = random.Random(seed)
    return sample_problem(rng, "train", rng.choice(ALL_KINDS))


@pytest.fixture(scope="module")
def stream() -> ExampleStream:
    return ExampleStream(TOKENIZER)


@pytest.fixture(scope="module")
def examples(stream: ExampleStream) -> list[Example]:
    return [stream.sample(random.Random(seed)) for seed in range(500)]


@pytest.fixture(scope="module")
def readings(examples: list[Example]) -> list[Reading]:
    """What each seed's example shows."""
    return [read(example, problem_of(seed)) for seed, example in enumerate(examples)]


def branches_with(readings: list[Reading], suffix: str) -> Iterator[tuple[Problem, Branch]]:
    """All branches that ask for the same, with their problems."""
    for reading in readings:
        for branch in reading.branches:
            if branch.suffix == suffix or (suffix in (VERDICT, CHECK) and branch.suffix.endswith(suffix)):
                yield reading.problem, branch


# ---- one example


def test_what_is_learnt_is_what_stands_there_and_the_prompt_never_is(examples: list[Example]) -> None:
    for example in examples:
        assert {len(values) for values in example} == {len(example.ids)}
        assert all(label in (IGNORED, token) for token, label in zip(example.ids, example.labels, strict=True))
        ends = [i for i, (one, other) in enumerate(itertools.pairwise(example.branches)) if one != other]
        for end in [*ends, -1]:
            assert example.labels[end] == example.ids[end] == TOKENIZER.eos_token_id
        prompt_len = example.ids.index(TOKENIZER.convert_tokens_to_ids("<think>")) + 2
        chain_len = example.branches.count(0)
        assert set(example.labels[:prompt_len]) == {IGNORED}
        assert example.labels[prompt_len:chain_len] == example.ids[prompt_len:chain_len]


def test_a_branch_stands_where_the_chain_was_cut(examples: list[Example]) -> None:
    for example in examples:
        chain_len = example.branches.count(0)
        assert example.positions[:chain_len] == list(range(chain_len))
        assert example.branches == sorted(example.branches)
        by_branch = itertools.groupby(
            zip(example.branches, example.positions, example.cuts, strict=True), lambda x: x[0]
        )
        for number, rows in by_branch:
            _, positions, cuts = zip(*rows, strict=True)
            assert len(set(cuts)) == 1
            assert list(positions) == list(range(cuts[0], cuts[0] + len(positions)))
            assert (cuts[0] == 0) == (number == 0)
            assert cuts[0] < chain_len


def test_the_numbers_of_branches(readings: list[Reading]) -> None:
    num_checks = 0
    for reading in readings:
        suffixes = Counter(re.sub(r"\{.+\}", "", branch.suffix) for branch in reading.branches)
        assert suffixes[PROBE] == NUM_PROBES
        assert suffixes[CLOSE] == NUM_CLOSES
        assert suffixes[re.sub(r"\{", "", CLOSE) + "." + VERDICT] == NUM_VERDICTS
        assert 1 <= suffixes[STEP_VERDICT] <= 2 * NUM_STEP_VERDICTS
        num_checks += suffixes[re.sub(r"\{", "", CLOSE) + "." + CHECK]
    share = num_checks / len(readings)
    assert abs(share - CHECK_SHARE) < 4 * (CHECK_SHARE * (1 - CHECK_SHARE) / len(readings)) ** 0.5


def test_a_whole_chain_ends_with_the_answer_that_it_believes_in(readings: list[Reading]) -> None:
    wrong = 0
    for reading in readings:
        thinking, _, reply = reading.chain.partition(CLOSE)
        belief = read_chain(reading.problem, thinking)[-1].belief
        assert reply == f"{belief}}}.{END}"
        wrong += belief != reading.problem.answer
    assert wrong > 10


@pytest.mark.parametrize(("suffix", "tail"), [(PROBE, "}" + END), (CLOSE, "}." + END)])
def test_a_cut_chain_replies_what_it_believes_and_before_that_the_truth(
    readings: list[Reading], suffix: str, tail: str
) -> None:
    hedged = Counter[bool]()
    after = 0
    for problem, branch in branches_with(readings, suffix):
        if branch.belief is not None:
            after += 1
            assert branch.reply == branch.belief + tail
        else:
            hedged[HEDGE in branch.reply] += 1
            assert branch.reply.replace(HEDGE, "") == problem.answer + tail
    assert min(after, hedged[False]) >= 5  # cuts lie on both sides of the first answer
    share = hedged[True] / hedged.total()
    expected = HEDGE_SHARE if suffix == PROBE else 0  # a forced answer is never hedged
    assert abs(share - expected) <= 4 * (expected * (1 - expected) / hedged.total()) ** 0.5


def test_a_verdict_says_whether_the_closed_answer_is_right(readings: list[Reading]) -> None:
    said = Counter[bool]()
    for problem, branch in branches_with(readings, VERDICT):
        asked = ASKED.fullmatch(branch.suffix)
        assert asked is not None
        assert asked[1] == branch.belief
        assert VERDICTS[branch.reply] == (asked[1] == problem.answer)
        said[VERDICTS[branch.reply]] += 1
    assert min(said.values()) > 0.2 * said.total()


def test_every_chain_is_asked_for_its_verdict_at_its_end(readings: list[Reading]) -> None:
    for reading in readings:
        thinking = reading.chain.partition(CLOSE)[0]
        assert any(branch.thinking == thinking and VERDICT in branch.suffix for branch in reading.branches)


def test_both_verdicts_are_asked_for_where_both_are_due(readings: list[Reading]) -> None:
    for reading in readings:
        beliefs = {segment.belief for segment in read_chain(reading.problem, reading.chain.partition(CLOSE)[0])} - {
            None
        }
        said = {VERDICTS[branch.reply] for _, branch in branches_with([reading], VERDICT)}
        assert said == {belief == reading.problem.answer for belief in beliefs}


def test_a_check_is_written_out_and_says_whether_the_closed_answer_is_right(readings: list[Reading]) -> None:
    said = Counter[bool]()
    for problem, branch in branches_with(readings, CHECK):
        asked = ASKED.fullmatch(branch.suffix)
        assert asked is not None
        assert asked[1] == branch.belief
        assert branch.reply == written_check(problem, asked[1], (YES, NO)) + END
        said[asked[1] == problem.answer] += 1
    assert min(said.values()) > 0.2 * said.total()


def test_a_verdict_on_a_step_says_whether_its_line_follows_from_the_one_before(readings: list[Reading]) -> None:
    said = Counter[bool]()
    for problem, branch in branches_with(readings, STEP_VERDICT):
        *_, step = read_chain(problem, branch.thinking + "\n")
        assert step.is_right is VERDICTS[branch.reply]
        said[VERDICTS[branch.reply]] += 1
    assert min(said.values()) > 0.4 * said.total()


def test_cuts_lie_anywhere(readings: list[Reading]) -> None:
    """Also within a line, where no newline ends what is given."""
    thinking = [branch.thinking for _, branch in branches_with(readings, PROBE)]
    assert any(chain.endswith("\n") for chain in thinking)
    assert any(chain and not chain.endswith("\n") for chain in thinking)


def test_every_problem_is_of_the_training_split(readings: list[Reading]) -> None:
    assert {split_of(reading.problem.question) for reading in readings} == {"train"}
    assert {reading.problem.kind for reading in readings} == set(ALL_KINDS)


def test_prompts_are_those_that_controllers_send(readings: list[Reading], examples: list[Example]) -> None:
    """The same ids as the chat template gives, opened for the assistant."""
    from scaffolding_ext.protocol import GenerationTask

    prompting = Prompting.for_model("tinylm/draft")
    for reading, example in zip(readings[:20], examples, strict=False):
        task = GenerationTask(input_str=reading.problem.question)
        prompting.apply(task)
        assert task.input_tokens is not None
        assert example.ids[: len(task.input_tokens)] == task.input_tokens
    assert (prompting.family.probe, prompting.family.close) == (PROBE, CLOSE)


def test_an_example_depends_on_its_generator_alone(stream: ExampleStream) -> None:
    assert stream.sample(random.Random(7)) == ExampleStream(TOKENIZER).sample(random.Random(7))


def test_the_bound_on_steps_is_kept(stream: ExampleStream) -> None:
    rng = random.Random(0)
    for _ in range(50):
        prompt = text(stream.sample(rng, max_num_steps=2).ids)
        assert len(re.findall(r"(?:^|[ ,])[a-z][-+*LR\d]\d*(?=[,.])", prompt.partition("<think>")[0])) == 2, prompt


# ---- chains that a model has written


def own_chain() -> OwnChain:
    problem = Problem("sum", "Start with 5. Apply a+3,b-2. Find the total.", "6", 5, ("a+3", "b-2"))
    return OwnChain(problem, read_chain(problem, "Okay!\na+3 5+3=8\nb-2 8-2=7\nSo I get 7.\n"))


def test_of_an_own_chain_the_branches_alone_are_learnt(stream: ExampleStream) -> None:
    example = stream.example(*own_chain(), random.Random(0), learn_chain=False)
    assert set(example.labels[: example.branches.count(0)]) == {IGNORED}
    reading = read(example, own_chain().problem)
    assert {branch.reply for _, branch in branches_with([reading], VERDICT)} == {NO + END}
    steps = {branch.thinking.rpartition("\n")[2]: branch.reply for _, branch in branches_with([reading], STEP_VERDICT)}
    assert steps == {"a+3 5+3=8": YES + END, "b-2 8-2=7": NO + END}


def test_own_chains_are_as_frequent_as_they_say() -> None:
    stream = ExampleStream(TOKENIZER)
    stream.own_chains = [own_chain()]
    rng = random.Random(0)
    share = sum("Okay!" in text(stream.sample(rng).ids) for _ in range(400)) / 400
    assert abs(share - OWN_SHARE) < 4 * (OWN_SHARE * (1 - OWN_SHARE) / 400) ** 0.5


# ---- batches


def batches(stream: ExampleStream, batch_tokens: int = 1400, num_examples: int = 60) -> list[Batch]:
    return list(stream.batches(random.Random(0), batch_tokens, num_examples))


def test_batches_hold_every_example_once(stream: ExampleStream) -> None:
    rng = random.Random(0)
    expected = Counter(tuple(stream.sample(rng).ids) for _ in range(60))
    pad = TOKENIZER.pad_token_id
    rows = [tuple(row[row != pad].tolist()) for batch in batches(stream) for row in batch.ids]
    assert Counter(rows) == expected


def test_batches_are_int64_rectangles_of_rounded_length(stream: ExampleStream) -> None:
    for batch in batches(stream):
        ids = batch.ids
        assert {(array.shape, array.dtype) for array in batch} == {(ids.shape, np.dtype(np.int64))}
        assert batch.mask().shape == (len(ids), 1, ids.shape[1], ids.shape[1])
        assert ids.shape[1] % 32 == 0
        longest = (ids != TOKENIZER.pad_token_id).sum(axis=1).max()
        assert ids.shape[1] - longest < 32


@pytest.mark.parametrize("batch_tokens", [1, 1400, 4608])
def test_batches_keep_to_their_tokens_or_are_one_row(stream: ExampleStream, batch_tokens: int) -> None:
    for batch in batches(stream, batch_tokens):
        assert batch.ids.size <= batch_tokens or len(batch.ids) == 1


def test_padding_is_on_the_right_and_never_learnt(stream: ExampleStream) -> None:
    for batch in batches(stream):
        ids, labels, mask = batch.ids, batch.labels, batch.mask()
        padded = ids == TOKENIZER.pad_token_id
        assert (labels[padded] == IGNORED).all()
        assert (np.diff(padded.astype(int), axis=1) >= 0).all()
        learnt = labels != IGNORED
        assert (labels[learnt] == ids[learnt]).all()
        assert learnt.any(axis=1).all()
        assert mask.any(axis=3).all()  # a row that sees nothing would have no softmax
        assert not (mask[:, 0] & (padded[:, None, :] != padded[:, :, None])).any()


def test_a_token_sees_its_branch_and_the_chain_up_to_the_cut(stream: ExampleStream) -> None:
    """By the definition, token by token, on one example."""
    rng = random.Random(5)
    example = stream.sample(rng, max_num_steps=3)
    (batch,) = stream.batches(random.Random(5), 1, 1, 3)
    assert batch.ids[0, : len(example.ids)].tolist() == example.ids
    mask = batch.mask()[0, 0]
    for i, j in itertools.product(range(len(example.ids)), repeat=2):
        own = example.branches[i] == example.branches[j] and j <= i
        before = example.branches[j] == 0 and j < example.cuts[i]
        assert mask[i, j] == (own or before)


def test_a_branch_is_read_as_if_it_followed_the_chain(stream: ExampleStream) -> None:
    """The model's logits over a batch are those of each branch alone behind its part of the chain."""
    torch = pytest.importorskip("torch")
    from scaffolding_ext.tinylm.model import SHAPES, build_model

    model = build_model(SHAPES["draft"], TOKENIZER, seed=0).eval()
    example = stream.sample(random.Random(3), max_num_steps=3)
    (batch,) = stream.batches(random.Random(3), 1, 1, 3)
    ids, positions, mask = map(torch.from_numpy, (batch.ids, batch.positions, batch.mask()))
    with torch.inference_mode():
        together = model(input_ids=ids, position_ids=positions, attention_mask=mask).logits[0]
        for number in range(max(example.branches) + 1):
            own = [i for i, branch in enumerate(example.branches) if branch == number]
            seen = list(range(example.cuts[own[0]])) + own
            alone = model(input_ids=ids[:, seen]).logits[0, -len(own) :]
            torch.testing.assert_close(together[own], alone, atol=1e-4, rtol=1e-4)


def test_batches_depend_on_their_generator_alone(stream: ExampleStream) -> None:
    for one, other in zip(batches(stream), batches(stream), strict=True):
        assert all(np.array_equal(*pair) for pair in zip(one, other, strict=True))
