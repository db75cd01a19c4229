"""File of a branching calibration: gate thresholds of one model on one data set."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from scaffolding_ext.controllers.calibration_file import CalibrationFile
from scaffolding_ext.controllers.tree.gates.confidence import ConfidenceGate
from scaffolding_ext.protocol.branching import LayerExit


class BranchingFigures(BaseModel):
    """Performance of the thresholds on the problems they were fitted to.

    Attributes:
        skip_rate: Share of problems for which the skip gate saves the verdicts.
        skip_agreement: Share of those whose answer equals that of full verification; None if none was saved.
        exit_agreement: Share of problems for which early verdicts choose the same branch as full ones.
        exit_share: Share of verdicts read before the last layer.
        depth: Mean share of the layers that a verdict runs through.
        median_agreement: `exit_agreement` under `median_exit`.
        median_depth: `depth` under `median_exit`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    num_problems: int
    skip_rate: float
    skip_agreement: float | None
    exit_agreement: float
    exit_share: float
    depth: float
    median_agreement: float
    median_depth: float


class BranchingCalibration(CalibrationFile):
    """Gate thresholds, for the model they were fitted to.

    Attributes:
        least_agreement: Share of decisions that a layer exit had to leave unchanged.
        skip_gate: The 75th percentile of the highest confidence and the 25th of the relative lead.
        layer_exit: The exit that saves the most layers; None if none leaves enough decisions unchanged.
        median_exit: The paper's rule, used by `layer_exit: true`.
    """

    command: ClassVar[str] = "calibrate branching"

    kind: Literal["branching_calibration"] = "branching_calibration"
    branching_factor: int
    seed: int
    least_agreement: float
    skip_gate: ConfidenceGate
    layer_exit: LayerExit | None
    median_exit: LayerExit
    figures: BranchingFigures
