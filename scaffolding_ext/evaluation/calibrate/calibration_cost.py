"""The tokens that the calibrations of a stack took before it ran."""

from __future__ import annotations

from scaffolding_ext.controllers.base import BaseController, sub_controllers
from scaffolding_ext.protocol import Controller
from scaffolding_ext.protocol.notes import TokenCounts


def calibration_cost(controller: Controller) -> TokenCounts | None:
    """Tokens of the calibrations of a controller and its sub-controllers; None where no calibration says how many."""
    own = controller.calibration_cost if isinstance(controller, BaseController) else None
    costs = [cost for cost in (own, *map(calibration_cost, sub_controllers(controller))) if cost is not None]
    return TokenCounts(*map(sum, zip(*costs, strict=True))) if costs else None
