"""Branches on one prompt: how they grow, what they score, and which of them stay."""
