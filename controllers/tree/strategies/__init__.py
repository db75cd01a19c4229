"""Search strategies: which nodes of a tree of steps to expand, and how often. One strategy per file."""
