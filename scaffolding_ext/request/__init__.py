"""A request from its question to its end: identity, seeds, tokens, trace, and what the caller gets."""
