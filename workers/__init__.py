"""Workers: a folder for each engine, what they share, and workers that need no engine."""
