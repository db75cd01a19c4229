"""Prompts get one beginning-of-text token, continuations no space of their own, and tokens have their own bytes."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing

from scaffolding_ext.prompts.encoding import Continuation, prompt_ids, token_ids

TEXTS = ["The sum of 3 and 4 is 7.\n\nSo the answer is \\boxed{7}\n", "Wait, naïve 😊 — let me see: 12 - 5 = 7"]


def llama_2() -> Tokenizer:
    """BPE that puts a space before each text, with bytes for unknown characters."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    letters = [chr(code) for code in range(33, 127)] + ["▁"]
    trainer = trainers.BpeTrainer(vocab_size=140, special_tokens=["<unk>", "<s>"], initial_alphabet=letters)
    tokenizer.train_from_iterator([TEXTS[0].replace("\n", " ")], trainer)
    whole = json.loads(tokenizer.to_str())
    vocabulary = whole["model"]["vocab"]
    vocabulary |= {f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)}
    tokenizer = Tokenizer.from_str(json.dumps(whole))
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def mistral() -> Tokenizer:
    """BPE whose pre-tokenizer puts a space before the first word only."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    letters = sorted({*"".join(TEXTS).replace(" ", "▁"), *map(chr, range(33, 127)), "▁"})
    tokenizer.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=220, special_tokens=["<unk>", "<s>"], initial_alphabet=letters)
    )
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        TEXTS[:1],
        trainers.BpeTrainer(
            vocab_size=300, special_tokens=["<s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        ),
    )
    return tokenizer


def with_prefix_space() -> Tokenizer:
    """Byte-level BPE that puts a space before each text, such as RoBERTa's."""
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


KINDS = {each.__name__: each() for each in (llama_2, mistral, byte_level, with_prefix_space)}
PARTS = ["The answer", "}\n\\]", "\n\n... Oh, ", " 12", "7", "\\boxed{", "\n", " ", "x y"]


@pytest.mark.parametrize("kind", KINDS)
def test_both_texts_together_decode_to_both(kind):
    tokenizer = KINDS[kind]
    continuation = Continuation(tokenizer)
    for before, after in itertools.product(["The sum", "So 3", "7"], PARTS):
        ids = prompt_ids(tokenizer, before) + continuation.ids(after)
        assert tokenizer.decode(ids, skip_special_tokens=True).removeprefix(" ") == before + after


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(PARTS), min_size=1, max_size=5))
def test_any_number_of_parts(parts):
    for tokenizer in KINDS.values():
        continuation = Continuation(tokenizer)
        ids = prompt_ids(tokenizer, "So") + [token for part in parts for token in continuation.ids(part)]
        assert tokenizer.decode(ids, skip_special_tokens=True).removeprefix(" ") == "So" + "".join(parts)


def test_a_prompt_begins_once():
    for text in ["<s>The sum", "<s>", "<s> 7", "<s><s>The"]:
        for kind in ["llama_2", "mistral"]:
            tokenizer = KINDS[kind]
            given = tokenizer.encode(text, add_special_tokens=False).ids
            assert prompt_ids(tokenizer, text) == given
            assert prompt_ids(tokenizer, "The sum")[0] == 1
            assert prompt_ids(tokenizer, "") == [1]


@pytest.mark.parametrize("with_special", [False, True])
def test_a_long_text_has_the_ids_of_encode(with_special):
    tokenizer, text = llama_2(), TEXTS[1] * 50
    assert token_ids(tokenizer, text, with_special) == tokenizer.encode(text, add_special_tokens=with_special).ids
