"""Plain generation, best of N and process rewards."""
