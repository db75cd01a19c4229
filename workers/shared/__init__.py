"""Shared by workers of several engines: task reading, streams, sampling defaults, lowered requests."""
