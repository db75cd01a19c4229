"""Training sequences: what is learnt and what is masked, where chains are cut, and the shapes of batches."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest

from scaffolding_ext.tinylm.data import CLOSE_SHARE, IGNORED, PROBE_SHARE, VERDICT_SHARE, Example, ExampleStream
from scaffolding_ext.tinylm.grammar import CLOSE, HEDGE, NO, PROBE, VERDICT, YES, sample_problem
from scaffolding_ext.tinylm.tokenizer import END

pytest.importorskip("transformers")

from scaffolding_ext.prompting import Prompting, load_tokenizer

TOKENIZER = load_tokenizer("tinylm/draft")
PROMPT = re.compile(r"<\|user\|>(.+?)<\|assistant\|><think>\n", re.DOTALL)
STATED = re.compile(
    r"^(?:(?:So the answer looks like|So I get|That gives) (.+?)\.|But now I get (.+?), not \S+\. I made a slip\.)\n",
    re.MULTILINE,
)


class Reading(NamedTuple):
    """An example as text: what it shows, its question, the thinking that is learnt, and the reply that is learnt."""

    kind: str
    question: str
    thinking: str
    answer: str | None
    reply: str


def text(ids: list[int]) -> str:
    return str(TOKENIZER.backend_tokenizer.decode(ids, skip_special_tokens=False))


def parts(example: Example) -> list[str]:
    """The example as text, in stretches that are given and learnt in turn, a given one first."""
    together = zip(example.ids, example.labels, strict=True)
    runs = itertools.groupby(together, key=lambda pair: pair[1] == IGNORED)
    return [text([token for token, _ in run]) for _, run in runs]


def read(example: Example) -> Reading:
    prompt, *rest = parts(example)
    match = PROMPT.match(prompt)
    assert match is not None
    question = match[1]
    if match.end() < len(prompt):  # cut before its first token: prompt and suffix are one stretch
        rest = ["", prompt[match.end() :], *rest]
    if len(rest) == 1:
        thinking, _, reply = rest[0].partition(CLOSE)
        return Reading("chain", question, thinking, None, reply)
    thinking, suffix, reply = rest
    if suffix.endswith(VERDICT):
        answer = suffix.removeprefix(CLOSE).removesuffix("}." + VERDICT)
        return Reading("verdict", question, thinking, answer, reply)
    kind = {PROBE: "probe", CLOSE: "close"}[suffix]
    return Reading(kind, question, thinking, None, reply)


def stated_belief(chain: str) -> str | None:
    """The answer that a piece of chain states last, by its own words."""
    stated = STATED.findall(chain)
    return stated[-1][0] or stated[-1][1] if stated else None


def true_answer(seed: int) -> str:
    return sample_problem(random.Random(seed), "train").answer


@pytest.fixture(scope="module")
def stream() -> ExampleStream:
    return ExampleStream(TOKENIZER)


@pytest.fixture(scope="module")
def examples(stream: ExampleStream) -> list[Example]:
    """One example a seed; its problem is the first thing that the seed draws."""
    return [stream.sample(random.Random(seed)) for seed in range(800)]


@pytest.fixture(scope="module")
def readings(examples: list[Example]) -> list[tuple[int, Reading]]:
    """What each seed's example shows."""
    return [(seed, read(example)) for seed, example in enumerate(examples)]


# ---- one example


def test_what_is_learnt_is_what_stands_there_and_the_prompt_never_is(examples: list[Example]) -> None:
    for example in examples:
        assert len(example.labels) == len(example.ids)
        assert all(label in (IGNORED, token) for token, label in zip(example.ids, example.labels, strict=True))
        assert parts(example)[0].startswith("<|user|>")
        assert example.labels[-1] == example.ids[-1] == TOKENIZER.eos_token_id


def test_the_shares_of_the_kinds(readings: list[tuple[int, Reading]]) -> None:
    """Within four standard deviations of 800 draws."""
    shares = Counter(reading.kind for _, reading in readings)
    for kind, share in (("probe", PROBE_SHARE), ("close", CLOSE_SHARE), ("verdict", VERDICT_SHARE)):
        assert abs(shares[kind] / len(readings) - share) < 4 * (share * (1 - share) / len(readings)) ** 0.5


def test_a_whole_chain_ends_with_the_answer_that_it_believes_in(readings: list[tuple[int, Reading]]) -> None:
    wrong = 0
    for seed, reading in readings:
        if reading.kind == "chain":
            belief = stated_belief(reading.thinking)
            assert reading.reply == f"{belief}}}.{END}"
            wrong += belief != true_answer(seed)
    assert wrong > 10


@pytest.mark.parametrize(("kind", "tail"), [("probe", "}" + END), ("close", "}." + END)])
def test_a_cut_chain_replies_what_it_believes_and_before_that_the_truth(
    readings: list[tuple[int, Reading]], kind: str, tail: str
) -> None:
    hedged = Counter[bool]()
    after = 0
    for seed, reading in readings:
        if reading.kind != kind:
            continue
        belief = stated_belief(reading.thinking)
        if belief is not None:
            after += 1
            assert reading.reply == belief + tail
        else:
            hedged[HEDGE in reading.reply] += 1
            assert reading.reply.replace(HEDGE, "") == true_answer(seed) + tail
    assert min(after, hedged[False]) >= 5  # cuts lie on both sides of the first answer
    assert (hedged[True] >= 5) == (kind == "probe")  # a forced answer is never hedged


def test_a_verdict_says_whether_the_closed_answer_is_right(readings: list[tuple[int, Reading]]) -> None:
    verdicts = Counter[str]()
    for seed, reading in readings:
        if reading.kind == "verdict":
            assert reading.answer == stated_belief(reading.thinking)
            verdict = YES if reading.answer == true_answer(seed) else NO
            assert reading.reply == verdict + END
            verdicts[verdict] += 1
    assert min(verdicts.values()) > 0.3 * sum(verdicts.values())


def test_cuts_lie_anywhere(readings: list[tuple[int, Reading]]) -> None:
    """Also within a line, where no newline ends what is given."""
    chains = [reading.thinking for _, reading in readings if reading.kind == "probe"]
    assert any(chain.endswith("\n") for chain in chains)
    assert any(chain and not chain.endswith("\n") for chain in chains)


def test_every_problem_is_of_the_training_split(examples: list[Example]) -> None:
    from scaffolding_ext.tinylm.grammar import split_of

    assert {split_of(read(example).question) for example in examples} == {"train"}


def test_prompts_are_those_that_controllers_send(examples: list[Example]) -> None:
    """The same ids as the chat template gives, opened for the assistant."""
    from scaffolding_ext.protocol import GenerationTask

    prompting = Prompting.for_model("tinylm/draft")
    for example in examples[:20]:
        task = GenerationTask(input_str=read(example).question)
        prompting.apply(task)
        assert task.input_tokens is not None
        assert example.ids[: len(task.input_tokens)] == task.input_tokens
    assert (prompting.family.probe, prompting.family.close) == (PROBE, CLOSE)


def test_an_example_depends_on_its_generator_alone(stream: ExampleStream) -> None:
    assert stream.sample(random.Random(7)) == ExampleStream(TOKENIZER).sample(random.Random(7))


def test_the_bound_on_steps_is_kept(stream: ExampleStream) -> None:
    rng = random.Random(0)
    for _ in range(50):
        question = read(stream.sample(rng, max_num_steps=2)).question
        assert len(re.findall(r"(?:^|[ ,])[a-z][-+*LR\d]\d*(?=[,.])", question)) == 2, question


# ---- batches


def batches(stream: ExampleStream, batch_tokens: int = 700, num_examples: int = 60) -> list[tuple[np.ndarray, ...]]:
    return [tuple(batch) for batch in stream.batches(random.Random(0), batch_tokens, num_examples)]


def test_batches_hold_every_example_once(stream: ExampleStream) -> None:
    rng = random.Random(0)
    expected = Counter(tuple(stream.sample(rng).ids) for _ in range(60))
    pad = TOKENIZER.pad_token_id
    rows = [tuple(row[row != pad].tolist()) for ids, _ in batches(stream) for row in ids]
    assert Counter(rows) == expected


def test_batches_are_int64_rectangles_of_rounded_length(stream: ExampleStream) -> None:
    for ids, labels in batches(stream):
        assert ids.shape == labels.shape
        assert ids.dtype == labels.dtype == np.int64
        assert ids.shape[1] % 32 == 0
        longest = (ids != TOKENIZER.pad_token_id).sum(axis=1).max()
        assert ids.shape[1] - longest < 32


@pytest.mark.parametrize("batch_tokens", [1, 700, 3072])
def test_batches_keep_to_their_tokens_or_are_one_row(stream: ExampleStream, batch_tokens: int) -> None:
    for ids, _ in batches(stream, batch_tokens):
        assert ids.size <= batch_tokens or len(ids) == 1


def test_padding_is_on_the_right_and_never_learnt(stream: ExampleStream) -> None:
    for ids, labels in batches(stream):
        padded = ids == TOKENIZER.pad_token_id
        assert (labels[padded] == IGNORED).all()
        assert (np.diff(padded.astype(int), axis=1) >= 0).all()
        learnt = labels != IGNORED
        assert (labels[learnt] == ids[learnt]).all()
        assert learnt.any(axis=1).all()


def test_batches_depend_on_their_generator_alone(stream: ExampleStream) -> None:
    for (ids, labels), (other_ids, other_labels) in zip(batches(stream), batches(stream), strict=True):
        assert np.array_equal(ids, other_ids)
        assert np.array_equal(labels, other_labels)
