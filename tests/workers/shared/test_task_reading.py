"""Tasks as token ids: what is scored where text is tokenised across the border of prompt and continuation."""

import pytest

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.tasks import ScoreTask

tokenizers = pytest.importorskip("tokenizers")
from scaffolding_ext.workers.shared.task_reading import TaskReader  # noqa: E402  (after the skip)

VOCABULARY = {token: number for number, token in enumerate(["a", "b", "c", "ab", "abc", "bc"])}
MERGES = [("a", "b"), ("ab", "c"), ("b", "c")]


@pytest.fixture
def reader():
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=VOCABULARY, merges=MERGES))
    return TaskReader(tokenizer, len(VOCABULARY), 64)


def scored(reader, **fields):
    token_ids, start = reader.scored(ScoreTask(**fields))
    names = {number: token for token, number in VOCABULARY.items()}
    tokens = [names[number] for number in token_ids]
    return tokens[:start], tokens[start:]


def test_a_token_over_the_border_is_scored_whole(reader):
    assert scored(reader, input_str="ca", continuation_str="bb") == (["c"], ["ab", "b"])
    assert scored(reader, input_str="cab", continuation_str="ca") == (["c"], ["abc", "a"])


def test_a_clean_border_stays_where_it_is(reader):
    assert scored(reader, input_str="cab", continuation_str="bc") == (["c", "ab"], ["bc"])


def test_token_ids_are_taken_as_they_are(reader):
    assert scored(reader, input_tokens=[2, 0], continuation_tokens=[1, 1]) == (["c", "a"], ["b", "b"])
    assert scored(reader, input_tokens=[2, 0], continuation_str="bb") == (["c", "a"], ["b", "b"])


def test_the_first_token_of_all_cannot_be_scored(reader):
    assert scored(reader, input_str="a", continuation_str="bb") == (["ab"], ["b"])


def test_a_continuation_is_needed(reader):
    with pytest.raises(InvalidTaskError, match="continuation_tokens and continuation_str are both None"):
        scored(reader, input_str="a")


def test_without_a_limit_a_task_must_say_how_many_tokens(reader):
    unlimited = TaskReader(reader.tokenizer, len(VOCABULARY), None)
    assert unlimited.max_tokens(GenerationTask(max_tokens=7), 3) == 7
    assert reader.max_tokens(GenerationTask(), 3) == 61
    with pytest.raises(InvalidTaskError, match="max_tokens is None"):
        unlimited.max_tokens(GenerationTask(), 3)


def test_one_tokenizer_has_one_fingerprint(reader):
    other = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=VOCABULARY, merges=MERGES[:1]))
    twin = tokenizers.Tokenizer.from_str(reader.tokenizer.to_str())
    assert reader.tokenizer_fingerprint != TaskReader(other, 6, 64).tokenizer_fingerprint
    assert reader.tokenizer_fingerprint == TaskReader(twin, 6, 64).tokenizer_fingerprint
