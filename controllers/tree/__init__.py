"""Tree search over branches of one prompt."""
