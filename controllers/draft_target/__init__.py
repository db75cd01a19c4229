"""Conformal draft and target: a small model drafts, and a large one takes over at a set rate."""
