"""When a chain of thought has thought enough: rules over what was seen of it (`base` has their contract).

Rules over the answers that a chain gives (`agreement`) and over its text (`pattern`); `make_rule` makes one of what a
controller is given.
"""

from scaffolding_ext.controllers.chain.looking import Needs
from scaffolding_ext.controllers.stopping.agreement import Consecutive, TotalVariation, Window
from scaffolding_ext.controllers.stopping.base import Rule, Stop, StoppingRule, decide, needs_of
from scaffolding_ext.controllers.stopping.making import make_rule
from scaffolding_ext.controllers.stopping.pattern import PatternStop

__all__ = [
    "Consecutive",
    "Needs",
    "PatternStop",
    "Rule",
    "Stop",
    "StoppingRule",
    "TotalVariation",
    "Window",
    "decide",
    "make_rule",
    "needs_of",
]
