"""File of a conformal calibration: the scores of every turn, and the setting that they depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from scaffolding_ext.controllers.calibration_file import CalibrationFile
from scaffolding_ext.controllers.draft_target.scores import ScorePool
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol.meta import TokenCounts

OnReject = Literal["resample", "continue"]
Source = Literal["online", "held_out"]
# Stored as one string of numbers, because YAML takes seconds to read many thousands of them.
Scores = Annotated[
    list[float],
    BeforeValidator(lambda value: value.split() if isinstance(value, str) else value),
    PlainSerializer(lambda values: " ".join(map(repr, values)), return_type=str),
]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DraftTargetSetting(_Frozen):
    """Setting that scores depend on; a calibration is valid for one setting only."""

    draft_model: str | None
    target_model: str | None
    draft_tokens: int
    target_tokens: int
    on_reject: OnReject
    score: str = "mean_nll"

    def of_models(self, draft_model: str | None, target_model: str | None) -> DraftTargetSetting:
        return self.model_copy(update={"draft_model": draft_model, "target_model": target_model})


class TurnScores(_Frozen):
    """One turn of the calibration chains at one level.

    Attributes:
        rate: Share of them that were taken over, each ranked among the others; 0 if there are none.
    """

    scores: Scores
    rate: float
    low: float | None
    high: float | None


class LevelScores(_Frozen):
    """Calibration chains that ran at one level.

    Attributes:
        num_target_tokens: Tokens that the target wrote in them; None in files without it, like `ledger`.
    """

    alpha: float
    turns: list[TurnScores]
    num_target_tokens: int | None = None
    ledger: dict[str, Any] | None = None

    @property
    def cost(self) -> TokenCounts | None:
        """All their tokens; None in files without a ledger."""
        total = (self.ledger or {}).get("total")
        return TokenCounts(**total) if total else None


class ConformalCalibration(CalibrationFile):
    """Scores of calibration chains, by level and turn. The file's `model` is the target.

    Attributes:
        source: `"online"` for the questions at hand, `"held_out"` for others.
    """

    command: ClassVar[str] = "calibrate conformal"

    kind: Literal["conformal_calibration"] = "conformal_calibration"
    source: Source
    setting: DraftTargetSetting
    num_chains: int
    seed: int
    questions: list[str]
    levels: list[LevelScores]

    def pools(self, alpha: float) -> list[ScorePool]:
        """Return a pool of scores per turn at a level; only chunks of the same turn are exchangeable."""
        return [ScorePool(turn.scores) for turn in self.level(alpha).turns]

    def level(self, alpha: float) -> LevelScores:
        for level in self.levels:
            if level.alpha == alpha:
                return level
        known = ", ".join(str(level.alpha) for level in self.levels)
        raise ConfigError(
            f"is {alpha}, but the calibration has {known}, and scores of one level do not hold for later turns of "
            "another: calibrate at this level",
            "alpha",
        )

    def check(self, setting: DraftTargetSetting, *, any_chunk_len: bool = False) -> None:
        """Refuse a setting other than that of the scores; unnamed models, or chunks of any length, are not compared."""
        for name, ours in self.setting.model_dump().items():
            theirs = getattr(setting, name)
            if any_chunk_len and name.endswith("_tokens"):
                continue
            if ours != theirs and not (name.endswith("_model") and None in (ours, theirs)):
                raise ConfigError(
                    f"was calibrated with {name} {ours!r}, but here it is {theirs!r}, so its scores are not "
                    "exchangeable with yours: calibrate again, or restore the setting"
                    + (" (the rule's any_chunk_len: true takes it all the same)" if name.endswith("_tokens") else ""),
                    "calibration",
                )

    def is_foreign(self, prompt: str) -> bool:
        """Return True if the calibration is online and does not include this prompt."""
        return self.source == "online" and fingerprint(prompt) not in self.questions


def fingerprint(prompt: str) -> str:
    """Hash a prompt, so that a file identifies it without containing it."""
    return hashlib.blake2b(prompt.encode(), digest_size=8).hexdigest()


def fingerprints(prompts: Iterable[str]) -> list[str]:
    return sorted({fingerprint(prompt) for prompt in prompts})
