"""Reads and checks tasks for workers: prompts as token ids, the parts of a score, and plain fields."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from scaffolding_ext import require
from scaffolding_ext.errors import ConfigError, InvalidTaskError
from scaffolding_ext.prompts.encoding import prompt_ids
from scaffolding_ext.prompts.sampling_params import GUIDED_DECODING, sampling_defaults
from scaffolding_ext.protocol import GenerationTask, standins
from scaffolding_ext.protocol.branching import BranchTask, VerifyTask, block_score
from scaffolding_ext.protocol.tasks import ScoreTask

_UNLIMITED = 1 << 60


class Scored(NamedTuple):
    """Token ids of a score task (prompt and continuation), and the index of the first scored token."""

    token_ids: list[int]
    start: int


class TaskReader:
    """Reads prompts as token ids of a model; `limited_by` names in errors what sets `max_seq_len`."""

    def __init__(self, tokenizer: Any, vocab_size: int, max_seq_len: int | None, limited_by: str = "") -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self._max_seq_len = _UNLIMITED if max_seq_len is None else max_seq_len
        self._in_all = f"{self._max_seq_len} in all{limited_by and f' ({limited_by})'}"

    @property
    def tokenizer_fingerprint(self) -> str:
        """Equal for workers whose token ids mean the same."""
        return hashlib.blake2b(self.tokenizer.to_str().encode(), digest_size=16).hexdigest()

    def prompt(self, task: GenerationTask) -> list[int]:
        """Token ids of a generation task's prompt; `input_tokens` take precedence over `input_str`."""
        return self.ids(task.input_tokens, task.input_str, "input")

    def ids(self, token_ids: list[int] | None, text: str | None, name: str) -> list[int]:
        """Token ids, given directly or as text.

        Raises:
            InvalidTaskError: There are none, or they do not fit the model.
        """
        if token_ids is None:
            if text is None:
                raise InvalidTaskError(f"{name}_tokens and {name}_str are both None: set one of them")
            token_ids = prompt_ids(self.tokenizer, text)
        if not len(token_ids):
            raise InvalidTaskError(f"{name} is empty: give a prompt of at least one token")
        return self.checked(token_ids, f"{name}_tokens")

    def checked(self, token_ids: list[int], name: str) -> list[int]:
        """Return the token ids as plain integers.

        Raises:
            InvalidTaskError: One is not an integer, or outside the vocabulary.
        """
        try:
            ids = list(map(operator.index, token_ids))
        except TypeError as error:
            raise InvalidTaskError(f"{name} must be a list of integer token ids: {error}") from None
        if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
            bad = next(token for token in ids if not 0 <= token < self.vocab_size)
            raise InvalidTaskError(
                f"{name} contains {bad}; the model's token ids are 0 to {self.vocab_size - 1}. The ids may come from "
                "the tokenizer of another model: use this model's"
            )
        return ids

    def scored(self, task: ScoreTask) -> Scored:
        """Prompt and continuation of a score task. If both are text, a token across their border is scored, too.

        Raises:
            InvalidTaskError: A part is missing, or both together are too long.
        """
        if task.continuation_tokens is None and task.continuation_str is None:
            raise InvalidTaskError("continuation_tokens and continuation_str are both None: set one of them")
        given = self.ids(task.input_tokens, task.input_str, "input")
        if task.continuation_tokens is not None:
            prompt = given + self.checked(task.continuation_tokens, "continuation_tokens")
        elif task.input_tokens is not None or task.input_str is None:
            prompt = given + self.tokenizer.encode(task.continuation_str, add_special_tokens=False).ids
        else:
            prompt = self.ids(None, task.input_str + (task.continuation_str or ""), "input")
            num_common = next(
                (i for i, pair in enumerate(zip(given, prompt, strict=False)) if len({*pair}) > 1), len(given)
            )
            given = given[: max(1, num_common)]
        self.check_len(len(prompt), "prompt and continuation have")
        return Scored(prompt, len(given))

    def verified(self, task: VerifyTask) -> list[list[int]]:
        """Branches of a verify task.

        Raises:
            InvalidTaskError: There are none, one is empty or too long, or yes and no are the same token.
        """
        choices = self.checked([task.yes_token, task.no_token], "yes_token and no_token")
        if choices[0] == choices[1]:
            raise InvalidTaskError(f"yes_token and no_token are both {choices[0]}: give two different tokens")
        if not task.branches:
            raise InvalidTaskError("branches is empty: give at least one branch")
        branches = []
        for number, branch in enumerate(task.branches):
            prompt = self.checked(branch, f"branches[{number}]")
            if not prompt:
                raise InvalidTaskError(f"branches[{number}] is empty: give each branch at least one token")
            self.check_len(len(prompt), f"branches[{number}] has")
            branches.append(prompt)
        return branches

    def check_len(self, num_tokens: int, what: str) -> None:
        """Refuse more tokens than a request may have."""
        if num_tokens > self._max_seq_len:
            raise InvalidTaskError(f"{what} {num_tokens} tokens, but a request may have {self._in_all}: shorten it")

    def max_tokens(self, task: GenerationTask, prompt_len: int) -> int:
        """Maximum tokens to generate: the task's, else as many as fit.

        Raises:
            InvalidTaskError: They do not fit after the prompt, or are unlimited.
        """
        room = self._max_seq_len - prompt_len
        if task.max_tokens is None and room < 1:
            raise InvalidTaskError(
                f"the prompt has {prompt_len} tokens, but a request may have {self._in_all}, and at least one of them "
                "must be generated: shorten the prompt"
            )
        if task.max_tokens is None and self._max_seq_len == _UNLIMITED:
            raise InvalidTaskError("max_tokens is None, but the worker's max_seq_len is unknown: set one of them")
        max_tokens = integer("max_tokens", task.max_tokens, 1, room)
        if max_tokens > room:
            raise InvalidTaskError(
                f"the prompt has {prompt_len} tokens and max_tokens is {max_tokens}, but a request may have "
                f"{self._in_all}: shorten one of them"
            )
        return max_tokens


def integer(name: str, value: Any, low: int | None, default: int) -> int:
    """Return an integer field of at least `low`, or its default if it is None.

    Raises:
        InvalidTaskError: It is not such an integer.
    """
    if value is None:
        return default
    try:
        return require.whole(name, value, low)
    except ConfigError as error:
        raise InvalidTaskError(f"{error.key} {error.message}") from None


def number(name: str, value: Any, default: float, **bounds: float) -> float:
    """Return a finite number within bounds (of `require.number`), or its default if it is None.

    Raises:
        InvalidTaskError: It is not such a number.
    """
    if value is None:
        return default
    try:
        return require.number(name, value, **bounds)
    except ConfigError as error:
        raise InvalidTaskError(f"{error.key} {error.message}") from None


# Values beside None and the default that request nothing.
_OFF: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "logit_bias": ({},),
    "min_tokens": (0,),
    "num_logprobs": (0,),
    "stop": ("",),
    "suffix": ("",),
    "top_k": (0,),
    "user": ("",),
}
# Sampling fields with the values that request nothing; taken from the stand-in, since a release may lack some.
NEUTRAL: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {name: (None, default, *_OFF.get(name, ())) for name, default in sampling_defaults(standins.GenerationTask).items()}
)


# Engine settings in a task's `custom_input_params` beyond its fields.
ENGINE_FIELDS = frozenset((GUIDED_DECODING, "stop_token_ids"))


def is_set(task: GenerationTask, name: str) -> bool:
    """True if a field requests something; a release of TensorRT-LLM may lack it."""
    neutral = NEUTRAL[name]
    return getattr(task, name, neutral[0]) not in neutral


def refuse(task: GenerationTask, names: Collection[str], worker: str, taken: Collection[str] = ()) -> None:
    """Refuse fields (including `ENGINE_FIELDS` but for those taken) that request something the worker cannot do."""
    for name in sorted(ENGINE_FIELDS.difference(taken)):
        if (task.custom_input_params or {}).get(name):
            raise InvalidTaskError(
                f"custom_input_params has {name}, which {worker} cannot honour: leave it out, or use TRTLLMWorker"
            )
    for name in names:
        if is_set(task, name):
            raise InvalidTaskError(
                f"{name} is {getattr(task, name)!r}, which {worker} cannot honour: leave it at {NEUTRAL[name][0]!r}"
            )


def block_scores(task: BranchTask) -> list[float]:
    """Priority of each branch's blocks, by its score and depth.

    Raises:
        InvalidTaskError: There is no branch, scores or seeds do not match the branches, a score is outside [0, 1], or
            the depth is below 1.
    """
    if not task.suffixes:
        raise InvalidTaskError(
            "suffixes is empty: give a suffix for each branch; a suffix may be an empty list of tokens"
        )
    if task.seeds and len(task.seeds) != len(task.suffixes):
        raise InvalidTaskError(
            f"seeds has {len(task.seeds)} numbers, but there are {len(task.suffixes)} branches: give one seed per "
            "branch, or none"
        )
    scores = [1.0] * len(task.suffixes) if task.branch_scores is None else task.branch_scores
    if len(scores) != len(task.suffixes) or not all(0 <= score <= 1 for score in scores):
        raise InvalidTaskError(
            f"branch_scores is {scores!r}; give a score in [0, 1] for each of the {len(task.suffixes)} branches"
        )
    if task.depth < 1:
        raise InvalidTaskError(
            f"depth is {task.depth}; the depth of a branch must be at least 1 (the prefix has depth 0)"
        )
    return [block_score(score, task.depth) for score in scores]
