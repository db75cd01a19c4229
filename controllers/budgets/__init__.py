"""Budgets of thinking: forced on a chain, and set by type of question for a queue."""
