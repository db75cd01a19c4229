"""Traces of calls, and what replays them."""
