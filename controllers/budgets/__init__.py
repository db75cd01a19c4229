"""Thinking budgets: forced on a chain, or planned by question type for a queue."""
