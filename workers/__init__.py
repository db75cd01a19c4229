"""Workers: a folder for each engine, shared parts, and workers that need no engine."""
