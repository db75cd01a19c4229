"""How many tokens each type of question may think for, so that accuracy and waiting balance: one concept a file.

Reference: Ozbas and Bastopcu, "Queueing-Aware Optimization of Reasoning Tokens for Accuracy-Latency Trade-offs in LLM
Servers", arXiv 2601.10274.
"""

from scaffolding_ext.controllers.budgets.queueing.plan import BudgetPlan, solve
from scaffolding_ext.controllers.budgets.queueing.tasks import TaskType, UnstableLoadError

__all__ = ["BudgetPlan", "TaskType", "UnstableLoadError", "solve"]
