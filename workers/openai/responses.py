"""Server answers, whole or streamed, in one shape: text, token ids, log-probabilities, finish reason, counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from scaffolding_ext.documents import has_surrogate
from scaffolding_ext.errors import EngineError, NoOutputError
from scaffolding_ext.prompts.encoding import UNREADABLE
from scaffolding_ext.prompts.families import DEFAULT_FAMILY, family_named
from scaffolding_ext.protocol.meta import PROMPT, REUSE, TokenCounts
from scaffolding_ext.protocol.task_results import TokenLogprob
from scaffolding_ext.request.program import current_program
from scaffolding_ext.workers.openai.fields import (
    CallPart,
    UnreadableAnswerError,
    call_parts,
    count_in,
    field,
    finish_reason_in,
    ids_of,
    text_of,
    texts_of,
)
from scaffolding_ext.workers.openai.flavors import Flavor

_ID = "token_id:"  # prefix of a token written as its id
_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")  # of `usage`
_MAX_TAIL = 3  # maximum bytes, and so tokens, of an unfinished character
Steps = list[dict[int, TokenLogprob]]


class _Marks(NamedTuple):
    open: str
    close: str


def _marks() -> _Marks:
    """The marks that a reasoning parser has removed, as the running request's family writes them."""
    program = current_program()
    prompting = None if program is None else program.question.prompting
    if program is None or prompting is None or not (family := program.question.family or prompting.family).thinks:
        return _Marks(*family_named(DEFAULT_FAMILY).marks[:2])  # no prompt has opened what the server separates
    return _Marks(family.think_open if prompting.separates_thinking else "", family.think_close)


class GrowingAnswer:
    """An answer of a server, read from the choices of its pieces; a whole answer is one piece.

    If a reasoning parser has split a chat's text, thinking and text are joined with the mark between them. The mark
    that opens it comes first, unless the family thinks and its prompt may have opened it.

    Args:
        flavor: Kind of the server.
        expects_ids: If True, missing token ids are an error.
        lost_ids: Restores token ids that the server omits.
        continues: True if the task continues an answer, whose text has the opening mark.

    Attributes:
        texts: Text of each piece.
        token_ids: None if the server returns none.
        logprobs: Reported log-probabilities per token.
        finish_reason: `"stop"` or `"length"`, once it is told.
        calls: Tool calls, or pieces of them.
        usage: Token counts of the server, once they are told.
        num_received: Tokens, or pieces of text if the server returns no ids.
    """

    def __init__(
        self, flavor: Flavor, expects_ids: bool, lost_ids: LostIds | None = None, continues: bool = False
    ) -> None:
        self.texts: list[str] = []
        self.token_ids: list[int] | None = [] if expects_ids else None
        self.logprobs: Steps = []
        self.finish_reason: str | None = None
        self.calls: list[CallPart] = []
        self.usage: Any = None
        self.num_received = 0
        self._flavor, self._expects_ids, self._lost_ids = flavor, expects_ids, lost_ids
        self._in_thinking, self._continues = False, continues
        self._half = ""  # of a character that the next piece completes

    def add(self, reply: Any) -> int:
        """Add an answer's JSON object, or a piece of one; return how many tokens came.

        Raises:
            UnreadableAnswerError: The server's filter withheld the answer, or a field has an unknown type or value.
            EngineError: The server gave up, or omitted requested data.
        """
        usage = field(reply, "usage")
        if any(count_in(usage, name) for name in _COUNTS):  # all zeros tell nothing, and undo no earlier counts
            self.usage = usage
        num_before = self.num_received
        for choice in field(reply, "choices") or ():
            if not field(choice, "index"):  # one is requested; some servers send more
                self._add(choice)
        return self.num_received - num_before

    def _add(self, choice: Any) -> None:
        reason = finish_reason_in(choice)
        message = field(choice, "message") or field(choice, "delta")
        text, thinking = (text_of(choice), "") if message is None else texts_of(message)
        reported = field(choice, "logprobs")
        ids = ids_of(choice)
        if ids is None and self._flavor.ids.ask is not None:
            ids = _reported_ids(reported)
        steps = [] if ids is None or reported is None else _steps(reported, ids)
        if self._lost_ids is not None:
            told = [str(field(entry, "token") or "") for entry in _content(reported) or ()]
            text, ids = self._lost_ids.restored(text, ids, told)
        if self._expects_ids and (text or thinking) and ids is None:
            raise EngineError(
                "the server returns no token ids, though servers of its flavor do. It may be an older release: set "
                "flavor='auto', which tests this, or another flavor, such as 'openai'"
            )
        self.texts.append(self._characters(self._joined(text, thinking)))
        self.num_received += bool(self.texts[-1]) if ids is None else len(ids)
        if ids is not None:
            self.token_ids = [] if self.token_ids is None else self.token_ids
            self.token_ids += ids
        self.logprobs += steps
        self.calls += call_parts(message)
        self.finish_reason = reason or self.finish_reason

    def end(self) -> None:
        """Check that all has come, when nothing more comes.

        Raises:
            EngineError: The server did not say why it ended the answer, or omitted token ids.
        """
        if self.finish_reason is None:
            raise EngineError(
                f"the server ended an answer after {self.num_received} tokens without saying why (finish_reason None)"
            )
        if self._half:
            self.texts[-1] += UNREADABLE
        if self._lost_ids is not None and self._lost_ids.has_lost_an_end(self.counts.decoded) and self.texts:
            self.texts[-1] = self.texts[-1].rstrip(UNREADABLE)

    @property
    def counts(self) -> TokenCounts:
        return token_counts(self.usage, self.num_received)

    @property
    def uncounted(self) -> str | None:
        """Part of the cost that the server did not tell; see `Meta`."""
        if self.usage is None and self.num_received:
            return PROMPT
        return None if self.usage is None or self._flavor.tells_reuse or tells_reuse(self.usage) else REUSE

    def _characters(self, text: str) -> str:
        """Join the halves of a character that two pieces hold; a half alone is replaced."""
        text, self._half = self._half + text, ""
        if text.isascii() or not has_surrogate(text):
            return text
        if "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    def _joined(self, text: str, thinking: str) -> str:
        begins = bool(thinking) and not self._in_thinking
        thinking = (_marks().open if begins and not self._continues else "") + thinking
        self._in_thinking = self._in_thinking or begins
        if not text:
            return thinking
        end = _marks().close if self._in_thinking else ""
        self._in_thinking = False
        return thinking + end + text


def token_counts(usage: Any, num_output_tokens: int) -> TokenCounts:
    """Token counts from `usage`: cached prompt tokens are reused, the others prefilled. See `tells_reuse`.

    Some servers count thinking beside the completion; both are decoded then. No text costs 0 tokens, so a completion of
    0 is not known.

    Raises:
        UnreadableAnswerError: A count is not a whole number of at least 0.
    """
    if usage is None:
        return TokenCounts(num_output_tokens)
    prompt = count_in(usage, "prompt_tokens") or 0
    reused = min(prompt, count_in(field(usage, "prompt_tokens_details"), "cached_tokens") or 0)
    decoded = count_in(usage, "completion_tokens") or num_output_tokens
    thinking = count_in(field(usage, "completion_tokens_details"), "reasoning_tokens") or 0
    if prompt + decoded + thinking == count_in(usage, "total_tokens"):
        decoded += thinking
    return TokenCounts(decoded, prompt - reused, reused)


def tells_reuse(usage: Any) -> bool:
    """True if `usage` has the cached tokens of the prompt."""
    return field(field(usage, "prompt_tokens_details"), "cached_tokens") is not None


def prompt_scores(reply: Any, num_tokens: int) -> list[float | None]:
    """Log-probability of each of a prompt's tokens in its echo; None for the first, which has no predecessor.

    Raises:
        EngineError: The server did not report a log-probability for each token.
    """
    reported = field(reply["choices"][0], "logprobs")
    values = list(field(reported, "token_logprobs") or ())
    if len(values) < num_tokens or None in values[1:num_tokens]:
        raise EngineError(
            f"the worker requested the log-probabilities of {num_tokens} prompt tokens, but the server "
            f"returned {sum(value is not None for value in values)}: set flavor='auto', which tests this"
        )
    return [None if value is None else _finite(value) for value in values[:num_tokens]]


def _content(reported: Any) -> Sequence[Any] | None:
    """Entries in the shape of chat completions; llama-server uses it on completions, too."""
    content = field(reported, "content")
    return content if isinstance(content, list) else None


def _reported_ids(reported: Any) -> list[int] | None:
    """Token ids named in the log-probability entries; None if an entry lacks one."""
    content = _content(reported)
    if content is not None:
        ids = [_id_of(entry) for entry in content]
    else:
        ids = [_named_id(token) for token in field(reported, "tokens") or ()]
    known = [token for token in ids if token is not None]
    return known if known and len(known) == len(ids) else None


def _id_of(entry: Any) -> int | None:
    """Id of a chat entry: llama-server puts it beside the token's text, vLLM in its place."""
    number = field(entry, "id")
    if number is None:
        return _named_id(str(field(entry, "token")))
    if type(number) is not int:
        raise UnreadableAnswerError(f"the server's answer has the token id {number!r}, which is not a whole number")
    return number


def _named_id(token: str) -> int | None:
    number = token.removeprefix(_ID)
    return int(number) if token.startswith(_ID) and number.isdecimal() else None


def _steps(reported: Any, ids: list[int]) -> Steps:
    """Log-probabilities reported per token: of the token itself and of alternatives with ids."""
    content = _content(reported)
    if content is not None:
        return [
            _step([(_id_of(top), field(top, "logprob")) for top in field(entry, "top_logprobs") or ()], token, entry)
            for token, entry in zip(ids, content, strict=False)
        ]
    values = field(reported, "token_logprobs") or ()
    tops = field(reported, "top_logprobs") or [None] * len(values)
    return [
        _step([(_named_id(name), value) for name, value in (top or {}).items()], token, {"logprob": value})
        for token, value, top in zip(ids, values, tops, strict=False)
    ]


def _step(tops: list[tuple[int | None, Any]], token: int, entry: Any) -> dict[int, TokenLogprob]:
    known = sorted(((_finite(value), name) for name, value in tops if name is not None), reverse=True)
    step = {name: TokenLogprob(value, rank) for rank, (value, name) in enumerate(known, 1)}
    if token not in step:
        step[token] = TokenLogprob(_finite(field(entry, "logprob")))
    return step


def _finite(value: Any) -> float:
    """Check a log-probability.

    Raises:
        UnreadableAnswerError: It is not a number.
        NoOutputError: It is NaN or infinite.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnreadableAnswerError(f"the server's answer has the log-probability {value!r}, which is not a number")
    number = float(value)
    if not math.isfinite(number):
        raise NoOutputError(
            f"the server returned the impossible log-probability {number}: see its log; the model's weights "
            "or its dtype may overflow"
        )
    return number


class LostIds:
    """Restores the token ids of one answer.

    A server holds back a token that ends inside a character. It later sends the whole character with the id of only the
    token that completes it; the text shows which tokens came before.

    Args:
        encode: Token ids of a text, without special tokens.
        decode: Text of token ids.
        needs_logprobs: True if log-probabilities are requested, too: these cannot be restored.
    """

    def __init__(
        self, encode: Callable[[str], list[int]], decode: Callable[[list[int]], str], needs_logprobs: bool
    ) -> None:
        self._encode = encode
        self._decode = decode
        self._needs_logprobs = needs_logprobs
        self._textless: list[int] = []  # ids without text; their text may begin a stop string
        self._num_tokens = 0
        self._has_dropped = False

    def restored(self, text: str, ids: list[int] | None, told: Sequence[str]) -> tuple[str, list[int] | None]:
        """Return a piece's text and all of its ids, given the text told of each token.

        Bytes that form no character are removed, because their ids are unknown.

        Raises:
            UnreadableAnswerError: The text does not determine the ids, or requested log-probabilities are lost.
        """
        if ids is None:  # all are lost if the text is not one whole character
            return text, None if text.strip(UNREADABLE) else []
        whole, texts = list[int](), list[str]()
        for token, each in zip(ids, told, strict=True):
            before, own = self._read(token, each)
            whole += [*before, token]
            texts.append(own)
        if len(whole) > len(ids) and self._needs_logprobs:
            raise UnreadableAnswerError(
                f"the server omitted {len(whole) - len(ids)} log-probabilities, of tokens that end inside a character "
                f"of {text!r}: set num_logprobs to None"
            )
        self._num_tokens += len(whole)
        if texts != list(told):
            self._has_dropped, text = True, "".join(texts)
        return text, whole

    def _read(self, token: int, told: str) -> tuple[list[int], str]:
        """Ids omitted before a token, and the text of these ids and the token."""
        if not told:
            self._textless.append(token)
            return [], ""
        textless, self._textless = self._textless, []
        own = "" if told.isascii() else self._decode([token])
        if told.isascii() or told == own:
            return [], told
        text = told.replace(UNREADABLE, "")
        if UNREADABLE not in own:  # no earlier token began its character
            return [], text
        if not text:
            return [], own
        whole = self._encode(text)
        if whole[: len(textless)] != textless or whole[-1] != token:
            raise UnreadableAnswerError(
                f"the server omitted the ids of tokens that end inside a character, and the text {told!r} with the "
                f"last token {token} does not determine them: request only the text, without token ids"
            )
        return whole[len(textless) : -1], text

    def has_lost_an_end(self, num_decoded: int) -> bool:
        """Return True if ids at the end were lost inside a character, whose bytes then end the text.

        Raises:
            UnreadableAnswerError: The number of ids differs from `num_decoded`, the server's count.
        """
        num_lost = num_decoded - self._num_tokens
        if num_lost < 0 or (num_lost > _MAX_TAIL and not self._has_dropped):
            raise UnreadableAnswerError(
                f"the server decoded {num_decoded} tokens, but its answer has the ids of {self._num_tokens}: some "
                "that end inside a character were omitted"
            )
        return num_lost > 0
