"""Evaluation: run a stack over a dataset, score its answers, and report accuracy and cost."""
