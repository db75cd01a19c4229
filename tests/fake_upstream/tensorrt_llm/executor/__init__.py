"""Executor of requests, and their results."""
