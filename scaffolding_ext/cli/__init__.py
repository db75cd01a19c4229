"""Command line: one module per command, arguments only."""
