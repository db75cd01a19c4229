"""The file of a branching calibration: thresholds of one model on one data set, and how they did there."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from scaffolding_ext.controllers.calibration_file import CalibrationFile
from scaffolding_ext.controllers.tree.gates.confidence import ConfidenceGate
from scaffolding_ext.protocol.branching import LayerExit


class BranchingFigures(BaseModel):
    """The figures of the thresholds on the problems that they were chosen on.

    Attributes:
        num_problems: How many there were.
        skip_rate: Share of them whose verdicts the skip gate spares.
        skip_agreement: Share of those whose answer is that of full verification; None where none was spared.
        exit_agreement: Share of the problems where verdicts that are read early choose the branch that full ones do.
        exit_share: Share of the verdicts that are read before the last layer.
        depth: Mean share of the layers that a verdict runs through.
        median_agreement: Of the decisions under `median_exit`, as `exit_agreement`.
        median_depth: Of the verdicts under `median_exit`, as `depth`.
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
    """Thresholds of the gates, for the model whose branches and verdicts they were chosen on.

    Attributes:
        branching_factor: Branches of a problem.
        seed: Of the run.
        least_agreement: Share of the decisions that a layer exit had to leave as they are.
        skip_gate: The 75th percentile of the highest confidence and the 25th of the relative lead.
        layer_exit: The exit that saves the most layers; None where none leaves enough decisions as they are.
        median_exit: The paper's rule, which `layer_exit: true` takes.
        figures: How they did.
    """

    command: ClassVar = "calibrate branching"

    kind: Literal["branching_calibration"] = "branching_calibration"
    branching_factor: int
    seed: int
    least_agreement: float
    skip_gate: ConfidenceGate
    layer_exit: LayerExit | None
    median_exit: LayerExit
    figures: BranchingFigures
