"""When a chain of thought has thought enough: rules over what was seen of it (`base` has their contract).

Rules over the answers that a chain gives (`agreement`), over one token behind closed thinking (`entropy`), over how
sure the model is (`confidence`), over its text (`pattern`), one for chains that will not converge (`giving_up`),
one for chains that repeat themselves (`loop`), several as one (`several`), and a plain function as one
(`FunctionRule`).
"""

from scaffolding_ext.controllers.chain.looking import Needs
from scaffolding_ext.controllers.chain.stopping.agreement import Consecutive, TotalVariation, Window
from scaffolding_ext.controllers.chain.stopping.base import FunctionRule, Rule, Stop, StoppingRule
from scaffolding_ext.controllers.chain.stopping.confidence import AnswerConfidence, ChainCertainty
from scaffolding_ext.controllers.chain.stopping.entropy import EntropyAfterThinking
from scaffolding_ext.controllers.chain.stopping.giving_up import GiveUp
from scaffolding_ext.controllers.chain.stopping.loop import LoopStop
from scaffolding_ext.controllers.chain.stopping.pattern import PatternStop
from scaffolding_ext.controllers.chain.stopping.several import AllOf, AnyOf

__all__ = [
    "AllOf",
    "AnswerConfidence",
    "AnyOf",
    "ChainCertainty",
    "Consecutive",
    "EntropyAfterThinking",
    "FunctionRule",
    "GiveUp",
    "LoopStop",
    "Needs",
    "PatternStop",
    "Rule",
    "Stop",
    "StoppingRule",
    "TotalVariation",
    "Window",
]
