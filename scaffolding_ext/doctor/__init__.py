"""Asks a stack two questions, looks at all that goes to its workers and comes back, and says what is wrong."""
