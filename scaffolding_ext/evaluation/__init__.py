"""Runs a stack over a dataset, scores what it answers, and reports accuracy beside what it cost."""
