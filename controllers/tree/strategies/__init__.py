"""Search strategies: which nodes of a tree of steps are expanded, and how often. One strategy a file."""
