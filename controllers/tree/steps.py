"""Ends of the steps of a solution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaffolding_ext import require
from scaffolding_ext.answers import extract
from scaffolding_ext.controllers.chain.probing import TURN_WORDS
from scaffolding_ext.controllers.prompting import decode, encode, prompt_family
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.task_results import finish_reason_of

MARKS = "marks"  # words with which a chain begins a new thought


@dataclass(frozen=True)
class StepEnds:
    r"""A step ends after one of the texts, or after `max_tokens` at the latest.

    Args:
        ends: Texts that a step ends with, such as `"\n\n"` or `"\nStep"`; they stay in it. `"marks"`: the words with
            which the chain begins a new thought, and the end of thinking. None: only tokens end a step.
        max_tokens: Maximum tokens of a step.
    """

    ends: str | Sequence[str] | None = ("\n\n",)
    max_tokens: int = 256

    def __post_init__(self) -> None:
        require.whole("max_tokens", self.max_tokens)
        ends = [self.ends] if isinstance(self.ends, str) else self.ends
        if ends is not None and (not ends or not all(isinstance(end, str) and end for end in ends)):
            raise ConfigError(f"is {self.ends!r}; give a list of texts, 'marks', or null for tokens only", "ends")

    @classmethod
    def of(cls, given: StepEnds | Mapping[str, Any] | int | None) -> StepEnds:
        if given is None or isinstance(given, StepEnds):
            return given or cls()
        if not isinstance(given, Mapping):
            return cls(None, require.whole("steps", given))
        with require.under("steps"):
            if not given.keys() <= {"ends", "max_tokens"}:
                raise ConfigError(f"is {given!r}; give {{ends: [...], max_tokens: ...}}, or a number of tokens")
            return cls(**given)

    @property
    def texts(self) -> list[str]:
        if self.ends == MARKS:
            return [*(f"\n{word}" for word in TURN_WORDS), prompt_family().think_close]
        return [self.ends] if isinstance(self.ends, str) else list(self.ends or ())

    def ask(self, piece: GenerationTask) -> None:
        """Set a piece's stop strings so that it ends with the step."""
        own = [piece.stop] if isinstance(piece.stop, str) else list(piece.stop or ())
        piece.stop = [*own, *(text for text in self.texts if text not in own)] or None

    def close(self, piece: GenerationTask, own_stops: Sequence[str]) -> None:
        """Restore the text that ended the step in a piece, so that the solution continues after it.

        The worker may have cut the text off; its tokens are part of the step.

        Args:
            own_stops: Stop strings of the request; if one of them ended the piece, the solution has ended.
        """
        piece.stop = list(own_stops) or None  # the text of a step may end one, not the solution
        text, ids = piece.output_str or "", piece.output_tokens
        if finish_reason_of(piece) != "stop" or not self.texts:
            return
        whole = None if ids is None else decode(ids)
        behind = "" if whole is None else whole[len(text) :]
        if any(stop in behind for stop in own_stops):
            return
        if whole is None or not behind:
            is_end_token = ids is not None and len(ids) > 0 and decode(ids[-1:]) == ""  # the model ended the solution
            if is_end_token or not text or extract(text) is not None:
                return
            end = self.texts[0]
            ending = encode(end)
            whole = text + end
            ids = None if ids is None or ending is None else [*ids, *ending]
        elif not any(end in behind for end in self.texts):
            return
        piece.output_str, piece.output_tokens, piece.finish_reason = whole, ids, "length"
        piece.max_tokens = len(ids) if ids is not None else piece.max_tokens
