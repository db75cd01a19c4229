"""Tasks as requests of the generation engine: checked on the caller's side, so that a bad one fails alone."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.tasks import Purpose, ScoreTask, VerifyTask, purpose_of, set_token_counts
from scaffolding_ext.workers.engine.sampling import GREEDY, SamplingParams

if TYPE_CHECKING:
    from scaffolding_ext.workers.engine.sequence import Sequence

_LOWEST_TEMPERATURE = 1e-3  # the quotient of a logit by less may leave float32

# Fields that this worker cannot honour, with the values that ask for nothing.
_REFUSED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "best_of": (None, 1),
        "echo": (None, False),
        "frequency_penalty": (None, 0.0),
        "logit_bias": (None, {}),
        "n": (None, 1),
        "presence_penalty": (None, 0.0),
        "suffix": (None, ""),
        "return_context_logits": (None, False),
        "skip_tokenizer": (False,),
        "skip_detokenizer": (False,),
    }
)


class RequestBuilder:
    """Makes sequences from tasks, or says what is wrong with them.

    Args:
        tokenizer: The tokenizer's Rust backend.
        vocab_size: Token ids are below it.
        max_seq_len: Prompt and generated tokens of one request at most.
        seed: Seeds the tasks that bring none; None draws fresh entropy.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, max_seq_len: int, seed: int | None) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_seq_len = max_seq_len
        self._rng = np.random.default_rng(seed)

    def generation(self, task: GenerationTask, notify: Callable[[Sequence], None]) -> Sequence:
        """The request of a generation task.

        Raises:
            InvalidTaskError: A field is unusable.
        """
        from scaffolding_ext.workers.engine.sequence import Sequence

        for name, neutral in _REFUSED.items():
            value = getattr(task, name)
            if value not in neutral:
                raise InvalidTaskError(
                    f"{name} is {value!r}; HuggingFaceWorker cannot honour it: leave it at {neutral[0]!r}"
                )
        prompt = self._ids(task.input_tokens, task.input_str, "input")
        return Sequence(
            prompt,
            self._max_tokens(task, len(prompt)),
            self._sampling(task),
            stop=_stop_strings(task.stop),
            num_logprobs=_integer("num_logprobs", task.num_logprobs, 0, 0),
            keep=purpose_of(task).written is not Purpose.PROBE,  # nothing continues a probe
            ignore_end=bool(getattr(task, "ignore_eos", None)),  # younger than 1.2
            min_tokens=_integer("min_tokens", getattr(task, "min_tokens", None), 0, 0),
            notify=notify,
        )

    def score(self, task: ScoreTask, notify: Callable[[Sequence], None]) -> Sequence:
        """The request of a score task.

        Raises:
            InvalidTaskError: A field is unusable.
        """
        from scaffolding_ext.workers.engine.sequence import Sequence

        given = self._ids(task.input_tokens, task.input_str, "input")
        if task.continuation_tokens is not None:
            continuation = self._checked(task.continuation_tokens, "continuation_tokens")
        elif task.continuation_str is not None:
            continuation = self._tokenizer.encode(task.continuation_str, add_special_tokens=False).ids
        else:
            raise InvalidTaskError("continuation_tokens and continuation_str are both None; give one")
        prompt = given + continuation
        if len(prompt) > self._max_seq_len:
            raise InvalidTaskError(
                f"prompt and continuation have {len(prompt)} tokens, but a request may have {self._max_seq_len} in "
                "all: shorten one of them"
            )
        return Sequence(prompt, 0, GREEDY, score_from=len(given), notify=notify)

    def verify(self, task: VerifyTask, notify: list[Callable[[Sequence], None]]) -> list[Sequence]:
        """The requests of a verify task, one a branch.

        Args:
            task: The task.
            notify: What each branch's request calls.

        Raises:
            InvalidTaskError: A field is unusable.
        """
        from scaffolding_ext.workers.engine.sequence import Sequence

        if task.max_layer is not None:
            raise InvalidTaskError(f"max_layer is {task.max_layer}; HuggingFaceWorker reads the last layer: leave None")
        choices = tuple(self._checked([task.yes_token, task.no_token], "yes_token and no_token"))
        if choices[0] == choices[1]:
            raise InvalidTaskError(f"yes_token and no_token are both {choices[0]}; they must differ")
        if not task.branches:
            raise InvalidTaskError("branches is empty; give at least one")
        sequences = []
        for number, (branch, word) in enumerate(zip(task.branches, notify, strict=True)):
            prompt = self._checked(branch, f"branches[{number}]")
            if not prompt:
                raise InvalidTaskError(f"branches[{number}] is empty; a branch needs at least one token")
            if len(prompt) > self._max_seq_len:
                raise InvalidTaskError(
                    f"branches[{number}] has {len(prompt)} tokens, but a request may have {self._max_seq_len} in all: "
                    "shorten it"
                )
            sequences.append(Sequence(prompt, 0, GREEDY, choices=choices, keep=False, notify=word))
        return sequences

    def _max_tokens(self, task: GenerationTask, prompt_len: int) -> int:
        room = self._max_seq_len - prompt_len
        if task.max_tokens is None and room < 1:
            raise InvalidTaskError(
                f"the prompt has {prompt_len} tokens, but a request may have {self._max_seq_len} in all with at least "
                "one generated: shorten the prompt"
            )
        max_tokens = _integer("max_tokens", task.max_tokens, 1, room)
        if max_tokens > room:
            raise InvalidTaskError(
                f"the prompt has {prompt_len} tokens and max_tokens is {max_tokens}, but a request may have "
                f"{self._max_seq_len} in all: shorten one of them"
            )
        return max_tokens

    def _sampling(self, task: GenerationTask) -> SamplingParams:
        unset = task.temperature is None and task.top_p is None and task.top_k is None
        temperature = _number("temperature", task.temperature, 0.0 if unset else 1.0)
        if temperature and temperature < _LOWEST_TEMPERATURE:
            raise InvalidTaskError(
                f"temperature is {task.temperature!r}; it must be 0 (greedy) or at least {_LOWEST_TEMPERATURE}"
            )
        top_p = _number("top_p", task.top_p, 1.0)
        if not 0 < top_p <= 1:
            raise InvalidTaskError(f"top_p is {task.top_p!r}; it must be in (0, 1]")
        top_k = min(_integer("top_k", task.top_k, 0, 0), self._vocab_size)
        seed = int(self._rng.integers(1 << 63)) if task.seed is None else _integer("seed", task.seed, None, 0)
        return SamplingParams(temperature, top_k, top_p, seed)

    def _ids(self, token_ids: list[int] | None, text: str | None, name: str) -> list[int]:
        if token_ids is None:
            if text is None:
                raise InvalidTaskError(f"{name}_tokens and {name}_str are both None; give one")
            token_ids = self._tokenizer.encode(text, add_special_tokens=True).ids
        if not len(token_ids):
            raise InvalidTaskError(f"{name} is empty; a prompt needs at least one token")
        return self._checked(token_ids, f"{name}_tokens")

    def _checked(self, token_ids: list[int], name: str) -> list[int]:
        """The token ids as plain integers, all of them in the vocabulary."""
        try:
            ids = list(map(operator.index, token_ids))
        except TypeError as error:
            raise InvalidTaskError(f"{name} must be a list of integer token ids: {error}") from None
        if ids and not 0 <= min(ids) <= max(ids) < self._vocab_size:
            bad = next(token for token in ids if not 0 <= token < self._vocab_size)
            raise InvalidTaskError(
                f"{name} contains {bad}; the model's token ids are 0 to {self._vocab_size - 1}: was another model's "
                "tokenizer used?"
            )
        return ids


def fill(task: GenerationTask, sequence: Sequence) -> bool:
    """Write into the task what the sequence has so far, or in the end; returns whether it has ended.

    Raises:
        EngineError: The sequence has failed.
    """
    if task.output_tokens is None:
        task.output_tokens = []
    snapshot = sequence.snapshot(len(task.output_tokens))
    if snapshot.finish_reason is not None and sequence.error is not None:
        raise sequence.error
    task.output_tokens += snapshot.token_ids
    task.output_str = snapshot.text
    task.finish_reason = snapshot.finish_reason
    if sequence.num_logprobs:
        task.logprobs = snapshot.logprobs
    set_token_counts(task, snapshot.counts)
    if hasattr(task, "ttft_s"):  # younger than 1.2
        started = sequence.submitted_at
        task.ttft_s = None if sequence.first_token_at is None else sequence.first_token_at - started
        task.latency_s = time.monotonic() - started
        task.usage_prompt_tokens, task.usage_completion_tokens = sequence.prompt_len, len(task.output_tokens)
    return snapshot.finish_reason is not None


def probability_of_first(logits: list[float]) -> float:
    """Softmax over two logits, of the first."""
    first, second = logits
    return 1.0 / (1.0 + math.exp(min(second - first, 700.0)))


def _integer(name: str, value: Any, low: int | None, default: int) -> int:
    if value is None:
        return default
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidTaskError(f"{name} is {value!r}; it must be an integer") from None
    if low is not None and number < low:
        raise InvalidTaskError(f"{name} is {value!r}; it must be at least {low}")
    return number


def _number(name: str, value: Any, default: float) -> float:
    if value is None:
        return default
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidTaskError(f"{name} is {value!r}; it must be a number") from None
    if not math.isfinite(number):
        raise InvalidTaskError(f"{name} is {value!r}; it must be finite")
    return number


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if not all(isinstance(string, str) for string in strings):
        raise InvalidTaskError(f"stop is {stop!r}; it must be a string or a list of strings")
    return tuple(filter(None, strings))
