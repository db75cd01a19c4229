"""Controllers: one algorithm a file."""
