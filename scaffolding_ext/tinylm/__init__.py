"""Two small reasoning models that ship with the package, and the problems they solve."""

from scaffolding_ext.tinylm.grammar import Problem, sample_problem

__all__ = ["Problem", "sample_problem"]
