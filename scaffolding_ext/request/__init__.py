"""State and results of a request: identity, seeds, token ledger, trace, and the caller's handle."""
