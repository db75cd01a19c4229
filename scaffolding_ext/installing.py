"""How the package is installed: from a clone of the repository, until it is published.

A release changes the line `RELEASED`. `make pages` then rewrites the command on every page.
"""

from __future__ import annotations

RELEASED = False  # whether a package index has it


def install_command(*extras: str) -> str:
    """The command that installs the package today, with extras of setup.py."""
    named = f"[{','.join(extras)}]" if extras else ""
    return f"pip install '{'scaffolding-ext' if RELEASED else '.'}{named}'"


def how_to_install(*extras: str) -> str:
    """What an error says to who lacks the extras."""
    place = "" if RELEASED else "in a clone of the repository, "
    return f"{place}install it with: {install_command(*extras)}"
