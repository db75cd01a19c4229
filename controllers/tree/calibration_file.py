"""The file of a branching calibration: thresholds of one model on one data set, and how they did there."""

from __future__ import annotations

import os

from pydantic import BaseModel, ConfigDict, ValidationError

from scaffolding_ext.controllers.calibration_file import check_model, read_calibration, write_calibration
from scaffolding_ext.controllers.tree.gates.confidence import ConfidenceGate
from scaffolding_ext.documents import located
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol.branching import LayerExit

KIND, VERSION = "branching", 1


class BranchingFigures(BaseModel):
    """What the thresholds came to on the problems that they were chosen on.

    Attributes:
        num_problems: How many there were.
        skip_rate: Share of them whose verdicts the skip gate spares.
        skip_agreement: Share of those whose answer is that of full verification; None where none was spared.
        exit_agreement: Share of the problems where verdicts that are read early choose the branch that full ones do.
        exit_share: Share of the verdicts that are read before the last layer.
        depth: Mean share of the layers that a verdict runs through.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    num_problems: int
    skip_rate: float
    skip_agreement: float | None
    exit_agreement: float
    exit_share: float
    depth: float


class BranchingCalibration(BaseModel):
    """Thresholds with their origin.

    Attributes:
        model: Whose branches and verdicts the thresholds were chosen on.
        dataset: Name of the data.
        branching_factor: Branches of a problem.
        seed: Of the run.
        least_agreement: Share of the decisions that a layer exit had to leave as they are.
        skip_gate: The 75th percentile of the highest confidence and the 25th of the relative lead.
        layer_exit: The exit that saves the most layers; None where none leaves enough decisions as they are.
        figures: How they did.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    model: str
    dataset: str
    branching_factor: int
    seed: int
    least_agreement: float
    skip_gate: ConfidenceGate
    layer_exit: LayerExit | None
    figures: BranchingFigures

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> BranchingCalibration:
        """Read a file; `configs:NAME` is one that ships with the package.

        Raises:
            ConfigError: It is not there, or no such file; it names the file.
        """
        fields = read_calibration(located(path), {KIND: VERSION})
        try:
            return cls.model_validate(
                {name: value for name, value in fields.items() if name not in ("kind", "version")}
            )
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ConfigError(
                f"lacks a field or holds a wrong one ({where}: {first['msg']})", os.fspath(path)
            ) from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the YAML file.

        Raises:
            OutputError: It cannot be written.
        """
        write_calibration(path, KIND, VERSION, **self.model_dump())

    def check_model(self, model: str | None) -> None:
        """Warn where the thresholds are applied to another model; one that is not named is not compared."""
        check_model("branching calibration", self.model, model, "calibrate branching")
