"""When to stop sampling a vote: one small contract (`base`), one rule or a small family a file."""
