"""Token ids of prompts as text, and of texts that continue one."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from scaffolding_ext.answers.reading import marks_in

_ANCHORS = ("\n", "1", "a", ".")
_LONG = 1 << 10  # characters
UNREADABLE = "\ufffd"  # decoded from bytes that are no character, or not yet


def token_ids(tokenizer: Any, text: str, add_special_tokens: bool) -> list[int]:
    """Token ids of a text; a long one is encoded without the GIL."""
    if len(text) < _LONG:
        return list(tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
    return list(tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)


def special_texts(tokenizer: Any, shown: Collection[str] = ()) -> re.Pattern[str]:
    """Matches the special tokens of a tokenizer, and those made visible, if a text spells them out."""
    tokens = [*_special_tokens(tokenizer), *shown]
    texts = sorted((text for text in tokens if len(text) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, texts)) or "(?!)")


def thinking_tokens(tokenizer: Any) -> frozenset[str]:
    """The marks of thinking among a tokenizer's added tokens, special or not."""
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    found = [marks for text in added if (marks := marks_in(text)) is not None]
    return frozenset(mark for marks in found for mark in (marks.think_open, marks.think_close) if mark in added)


def _special_tokens(tokenizer: Any) -> list[str]:
    return [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]


def hidden_in(tokenizer: Any, texts: Collection[str]) -> frozenset[str]:
    """The special tokens in texts: decoded text does not show them."""
    return frozenset(token for token in _special_tokens(tokenizer) if any(token in text for text in texts))


def with_visible(tokenizer: Any, tokens: Collection[str]) -> Any:
    """A copy of a tokenizer of the tokenizers library that shows some special tokens in decoded text; ids are equal."""
    document = json.loads(tokenizer.to_str())
    for token in document["added_tokens"]:
        token["special"] = token["special"] and token["content"] not in tokens
    return type(tokenizer).from_str(json.dumps(document))


def prompt_ids(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a whole prompt, with the special tokens that the tokenizer adds.

    A beginning-of-text token that the text already has is not added a second time.

    Args:
        tokenizer: A tokenizer of the tokenizers library.
    """
    ids = token_ids(tokenizer, text, True)
    added = tokenizer.encode("", add_special_tokens=True).ids
    return ids[1:] if added and ids[:2] == [added[0]] * 2 else ids


class Continuation:
    """Encodes texts that continue others, so that the ids of both together decode to both texts.

    Tokenizers in SentencePiece's style, such as those of Llama 2, put a space before each text. A continuation is
    encoded behind another text there, and only its own ids are kept.

    Args:
        tokenizer: A tokenizer of the tokenizers library.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._anchors = {anchor: self._plain(anchor) for anchor in _ANCHORS}
        if self.ids("x") == self._plain("x"):
            self._anchors = {}

    def ids(self, text: str) -> list[int]:
        """Token ids of a continuation, without special tokens."""
        for anchor, before in self._anchors.items():
            ids = self._plain(anchor + text)
            if ids[: len(before)] == before:  # the text's first token does not begin in the anchor
                return ids[len(before) :]
        return self._plain(text)

    def _plain(self, text: str) -> list[int]:
        return token_ids(self._tokenizer, text, False)
