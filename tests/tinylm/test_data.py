"""Training sequences: what is learnt and what is masked, where chains are cut, and the shapes of batches."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest

from scaffolding_ext.tinylm.data import CLOSE_SHARE, IGNORED, PROBE_SHARE, Example, ExampleStream
from scaffolding_ext.tinylm.grammar import CLOSE, PROBE, sample_problem
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
    """An example as text: its kind, question, the part that is given, and the part that is learnt."""

    kind: str
    question: str
    given: str
    learnt: str


def text(ids: list[int]) -> str:
    return str(TOKENIZER.backend_tokenizer.decode(ids, skip_special_tokens=False))


def num_given(example: Example) -> int:
    return sum(label == IGNORED for label in example.labels)


def read(example: Example) -> Reading:
    given, learnt = text(example.ids[: num_given(example)]), text(example.ids[num_given(example) :])
    prompt = PROMPT.match(given)
    assert prompt is not None
    kind = "chain" if prompt.end() == len(given) else "probe" if given.endswith(PROBE) else "close"
    return Reading(kind, prompt[1], given[prompt.end() :], learnt)


def stated_belief(chain: str) -> str | None:
    """The answer that a piece of chain states last, by its own words."""
    stated = STATED.findall(chain)
    if not stated:
        return None
    return re.split("=|, near ", stated[-1][0] or stated[-1][1])[-1]


def true_answer(seed: int) -> str:
    return sample_problem(random.Random(seed), "train").answer


@pytest.fixture(scope="module")
def stream() -> ExampleStream:
    return ExampleStream(TOKENIZER)


@pytest.fixture(scope="module")
def examples(stream: ExampleStream) -> list[Example]:
    """One example a seed; its problem is the first thing that the seed draws."""
    return [stream.sample(random.Random(seed)) for seed in range(800)]


# ---- one example


def test_labels_mask_a_prefix_and_are_the_ids_after_it(examples: list[Example]) -> None:
    for example in examples:
        masked = num_given(example)
        assert len(example.labels) == len(example.ids)
        assert example.labels == [IGNORED] * masked + example.ids[masked:]
        assert 0 < masked < len(example.ids)


def test_the_shares_of_the_kinds(examples: list[Example]) -> None:
    """Within four standard deviations of 800 draws: 0.052 for a share of 0.16."""
    shares = Counter(read(example).kind for example in examples)
    assert abs(shares["probe"] / len(examples) - PROBE_SHARE) < 0.052
    assert abs(shares["close"] / len(examples) - CLOSE_SHARE) < 0.043


def test_a_whole_chain_is_learnt_from_its_first_token_to_the_end_token(examples: list[Example]) -> None:
    for seed, example in enumerate(examples):
        reading = read(example)
        if reading.kind == "chain":
            assert reading.given == ""
            chain, _, answer = reading.learnt.partition(CLOSE)
            assert answer == true_answer(seed) + "}." + END
            assert stated_belief(chain) == true_answer(seed)


@pytest.mark.parametrize(("kind", "suffix", "tail"), [("probe", PROBE, "}" + END), ("close", CLOSE, "}." + END)])
def test_of_a_cut_chain_the_answer_alone_is_learnt(examples: list[Example], kind: str, suffix: str, tail: str) -> None:
    num_before, num_after = 0, 0
    for seed, example in enumerate(examples):
        reading = read(example)
        if reading.kind != kind:
            continue
        assert reading.given.endswith(suffix)
        belief = stated_belief(reading.given.removesuffix(suffix))
        num_before, num_after = num_before + (belief is None), num_after + (belief is not None)
        assert reading.learnt == (belief or true_answer(seed)) + tail
    assert min(num_before, num_after) >= 5  # cuts lie on both sides of the first answer


def test_cuts_lie_anywhere(examples: list[Example]) -> None:
    """Also within a line, where no newline ends what is given."""
    readings = [reading for reading in map(read, examples) if reading.kind == "probe"]
    cut_chains = [reading.given.removesuffix(PROBE) for reading in readings]
    assert any(chain.endswith("\n") for chain in cut_chains)
    assert any(not chain.endswith("\n") for chain in cut_chains)


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
