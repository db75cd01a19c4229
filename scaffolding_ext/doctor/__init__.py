"""Diagnose a stack: ask it two questions, watch its workers' requests and replies, and report problems."""
