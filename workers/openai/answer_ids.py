"""Answers as token ids: restores ids that llama-server leaves out, and finds stop strings where a server cannot."""

from __future__ import annotations

from collections.abc import Callable

from scaffolding_ext.protocol.stop_strings import StopStrings
from scaffolding_ext.workers.openai.responses import Piece, UnreadableAnswerError

_MAX_TAIL = 3  # most bytes of an unfinished character, and so most tokens
_UNREADABLE = "\ufffd"  # stands in decoded text for bytes that are no character


class LostIds:
    """Restores the token ids of one answer.

    If a token ends inside a character, the server holds it back. Later the server gives the whole character, with the
    id of only the token that completes it. The text shows which tokens came before.

    Args:
        encode: Token ids of a text, without special tokens.
        decode: Text of token ids.
        needs_logprobs: Whether each token's log-probability is asked for, too: they cannot be restored.
    """

    def __init__(
        self, encode: Callable[[str], list[int]], decode: Callable[[list[int]], str], needs_logprobs: bool
    ) -> None:
        self._encode = encode
        self._decode = decode
        self._needs_logprobs = needs_logprobs
        self._textless: list[int] = []  # ids that came without text; the text may be the beginning of a stop string
        self._num_tokens = 0
        self._has_dropped = False

    def restored(self, piece: Piece) -> Piece:
        """A piece with all of its ids. Bytes that form no character are removed, because their ids are unknown.

        Raises:
            UnreadableAnswerError: The text does not determine the ids, or needed log-probabilities are lost.
        """
        if piece.token_ids is None:  # all are lost where the text is not one whole character
            return piece if piece.text.strip(_UNREADABLE) else piece._replace(token_ids=[])
        ids, texts = [], []
        for token, told in zip(piece.token_ids, piece.token_texts, strict=True):
            before, text = self._read(token, told)
            ids += [*before, token]
            texts.append(text)
        if len(ids) > len(piece.token_ids) and self._needs_logprobs:
            raise UnreadableAnswerError(
                f"the server left out {len(ids) - len(piece.token_ids)} log-probabilities, of tokens that end inside "
                f"a character of {piece.text!r}: set num_logprobs to None"
            )
        self._num_tokens += len(ids)
        if texts != list(piece.token_texts):
            self._has_dropped = True
            piece = piece._replace(text="".join(texts))
        return piece._replace(token_ids=ids)

    def _read(self, token: int, told: str) -> tuple[list[int], str]:
        """The ids that were left out before a token, and the text of these ids and of the token."""
        if not told:
            self._textless.append(token)
            return [], ""
        textless, self._textless = self._textless, []
        own = "" if told.isascii() else self._decode([token])
        if told.isascii() or told == own:
            return [], told
        text = told.replace(_UNREADABLE, "")
        if _UNREADABLE not in own:  # no earlier token began its character
            return [], text
        if not text:
            return [], own
        whole = self._encode(text)
        if whole[: len(textless)] != textless or whole[-1] != token:
            raise UnreadableAnswerError(
                f"the server left out the ids of tokens that end inside a character, and the text {told!r} with the "
                f"last token {token} does not show which: ask for the text alone, without token ids"
            )
        return whole[len(textless) : -1], text

    def ended(self, piece: Piece, num_decoded: int) -> Piece:
        """The last piece. If ids at its end were lost inside a character, their text is removed.

        Raises:
            UnreadableAnswerError: There are more or fewer ids than `num_decoded`, the server's own count.
        """
        num_lost = num_decoded - self._num_tokens
        if num_lost < 0 or (num_lost > _MAX_TAIL and not self._has_dropped):
            raise UnreadableAnswerError(
                f"the server decoded {num_decoded} tokens, and its answer gives the ids of {self._num_tokens}: some "
                "that end inside a character were left out"
            )
        return piece._replace(text=piece.text.rstrip(_UNREADABLE)) if num_lost else piece


_UNFINISHED = "\ufffd"  # ends decoded text whose last character is not whole
_MOST_WAITING = 8  # tokens that wait for the rest of a character; a character has at most four bytes


class IdStops:
    """Finds the token that completes a stop string in one growing list of token ids.

    Each token is decoded together with the few tokens before it that its text may depend on. So the cost is linear in
    the number of tokens.
    """

    def __init__(self, strings: StopStrings, decode: Callable[[list[int]], str]) -> None:
        self.strings = strings
        self._decode = decode
        self._matcher = strings.matcher()
        self._context = self._read = 0  # ids before `_read` were matched; those from `_context` on decode the next ones

    def feed(self, ids: list[int], num_new: int) -> int | None:
        """The number of ids up to the end of the first whole stop string, or None; the last `num_new` ids are new."""
        for end in range(len(ids) - num_new + 1, len(ids) + 1):
            known, text = self._decode(ids[self._context : self._read]), self._decode(ids[self._context : end])
            is_whole = len(text) > len(known) and not text.endswith(_UNFINISHED)
            if is_whole or end - self._read > _MOST_WAITING:
                self._context, self._read = self._read, end
                if self._matcher.feed(text[len(known) :]):
                    return end
        return None
