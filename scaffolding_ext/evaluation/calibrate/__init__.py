"""Runs the trials whose files the algorithms read."""
