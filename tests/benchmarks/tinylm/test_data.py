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

from benchmarks.tinylm.data import (
    CHECK_SHARE,
    DOUBT_SHARE,
    HEDGE_SHARE,
    IGNORED,
    MIN_DOUBTED_STEPS,
    NUM_CLOSES,
    NUM_PROBES,
    NUM_VERDICTS,
    RIVAL_SHARE,
    Batch,
    Example,
    ExampleStream,
)
from benchmarks.tinylm.steps import FULL_CHECKS, STATED, check_steps
from benchmarks.tinylm.tokenizer import END
from scaffolding_ext.tinylm.grammar import (
    CHECK,
    CLOSE,
    HEDGE,
    KINDS,
    NO,
    PROBE,
    VERDICT,
    YES,
    Problem,
    sample_problem,
    split_of,
)

pytest.importorskip("transformers")

from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.prompts.tokenizers import load_tokenizer

TOKENIZER = load_tokenizer("tinylm/draft")
PROMPT = re.compile(r"<\|user\|>(.+?)<\|assistant\|><think>\n", re.DOTALL)
ASKED = re.compile(re.escape(CLOSE) + r"(\S+)\}\.(" + re.escape(VERDICT) + "|" + re.escape(CHECK) + ")")
VERDICTS = {YES + END: True, NO + END: False}
PASSES = re.compile(
    r"^(?:(?:So the answer looks like|So I get|That gives|Again) (\S+?)[.,]|I get (\S+) again"
    r"|(?:But now I get|Back to) (\S+),).*\n",
    re.MULTILINE,
)


class Branch(NamedTuple):
    """What a branch shows: the thinking that it sees, what is given, and the reply that is learnt."""

    thinking: str
    suffix: str
    reply: str

    @property
    def belief(self) -> str | None:
        """The answer that the thinking states last, by its own words."""
        stated = STATED.findall(self.thinking)
        return "".join(stated[-1]) if stated else None

    @property
    def answers(self) -> list[str]:
        """The answers that passes have led to so far, in order."""
        return ["".join(found) for found in PASSES.findall(self.thinking)]


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
    return sample_problem(rng, "train")


@pytest.fixture(scope="module")
def stream() -> ExampleStream:
    return ExampleStream(TOKENIZER)


@pytest.fixture(scope="module")
def examples(stream: ExampleStream) -> list[Example]:
    return [stream.sample(random.Random(seed)) for seed in range(600)]


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
        num_checks += suffixes[re.sub(r"\{", "", CLOSE) + "." + CHECK]
    share = num_checks / len(readings)
    assert abs(share - CHECK_SHARE) < 4 * (CHECK_SHARE * (1 - CHECK_SHARE) / len(readings)) ** 0.5


def test_a_whole_chain_ends_with_the_answer_that_it_believes_in(readings: list[Reading]) -> None:
    wrong = 0
    for reading in readings:
        thinking, _, reply = reading.chain.partition(CLOSE)
        belief = check_steps(reading.problem, thinking)[-1].belief
        assert reply == f"{belief}}}.{END}"
        wrong += belief != reading.problem.answer
    assert wrong > 10


def test_a_forced_answer_is_what_is_believed_and_before_the_first_the_truth(readings: list[Reading]) -> None:
    beliefs = []
    for problem, branch in branches_with(readings, CLOSE):
        assert branch.reply == f"{branch.belief or problem.answer}}}.{END}"
        beliefs.append(branch.belief)
    assert 5 <= beliefs.count(None) <= len(beliefs) - 5  # cuts lie on both sides of the first answer


def assert_share(events: list[bool], expected: float) -> None:
    """Within four standard deviations."""
    assert len(events) >= 50
    assert abs(sum(events) / len(events) - expected) <= 4 * (expected * (1 - expected) / len(events)) ** 0.5


def test_a_probe_before_the_first_answer_gives_the_truth_and_hedges_by_chance(readings: list[Reading]) -> None:
    hedged = []
    for problem, branch in branches_with(readings, PROBE):
        if branch.belief is None:
            assert branch.reply.replace(HEDGE, "") == problem.answer + "}" + END
            hedged.append(HEDGE in branch.reply)
    assert_share(hedged, HEDGE_SHARE)


def test_a_probe_of_a_settled_chain_gives_what_is_believed_without_a_hedge(readings: list[Reading]) -> None:
    settled = 0
    for _, branch in branches_with(readings, PROBE):
        if branch.belief is not None and branch.answers.count(branch.belief) > 1:
            settled += 1
            assert branch.reply == branch.belief + "}" + END
    assert settled > 100


def test_a_probe_of_a_chain_that_is_not_settled_hedges_and_may_give_the_answer_before(readings: list[Reading]) -> None:
    hedged: dict[bool, list[bool]] = {True: [], False: []}
    gives_rival = []
    for problem, branch in branches_with(readings, PROBE):
        if branch.belief is not None and branch.answers.count(branch.belief) == 1:
            hedged[problem.num_steps >= MIN_DOUBTED_STEPS].append(HEDGE in branch.reply)
            given = branch.reply.replace(HEDGE, "").removesuffix("}" + END)
            if len(branch.answers) > 1:
                gives_rival.append(given == branch.answers[-2])
                assert given in branch.answers[-2:]
            else:
                assert given == branch.belief
    assert_share(hedged[True], DOUBT_SHARE)
    assert not any(hedged[False])
    assert_share(gives_rival, RIVAL_SHARE)


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


def test_verdicts_are_asked_for_on_two_answers_where_there_are_two(readings: list[Reading]) -> None:
    for reading in readings:
        thinking = reading.chain.partition(CLOSE)[0]
        beliefs = {line.belief for line in check_steps(reading.problem, thinking)} - {None}
        asked = {branch.belief for _, branch in branches_with([reading], VERDICT)}
        assert len(asked) == min(2, len(beliefs))


def test_a_check_is_written_out_and_says_whether_it_leads_to_the_closed_answer(readings: list[Reading]) -> None:
    said = Counter[bool]()
    for problem, branch in branches_with(readings, CHECK):
        asked = ASKED.fullmatch(branch.suffix)
        assert asked is not None
        assert asked[1] == branch.belief
        derivation, _, verdict = branch.reply.rpartition("\n")
        opening, *steps = check_steps(problem, derivation + "\n")
        assert opening.text in FULL_CHECKS
        assert len(steps) == problem.num_steps
        assert VERDICTS[verdict] == (re.findall(r"-?\d+", derivation)[-1].lstrip("-") == asked[1].lstrip("-"))
        said[VERDICTS[verdict]] += 1
    assert min(said.values()) > 0.1 * said.total()


def test_cuts_lie_anywhere(readings: list[Reading]) -> None:
    """Also within a line, where no newline ends what is given."""
    thinking = [branch.thinking for _, branch in branches_with(readings, PROBE)]
    assert any(chain.endswith("\n") for chain in thinking)
    assert any(chain and not chain.endswith("\n") for chain in thinking)


def test_every_problem_is_of_the_training_split(readings: list[Reading]) -> None:
    assert {split_of(reading.problem.question) for reading in readings} == {"train"}
    assert {reading.problem.kind for reading in readings} == set(KINDS)


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
    from benchmarks.tinylm.model import SHAPES, build_model

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
