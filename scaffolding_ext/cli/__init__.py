"""The command line: one module a command, arguments only."""
