"""Two small reasoning models that ship with the package, the problems they solve, and an exact checker of steps."""

from scaffolding_ext.tinylm.grammar import Problem, sample_problem
from scaffolding_ext.tinylm.steps import Line, check_steps

__all__ = ["Line", "Problem", "check_steps", "sample_problem"]
