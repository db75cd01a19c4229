"""Fixtures by which tests of several controllers read a result."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def events() -> Callable[..., list[dict[str, Any]]]:
    """Finds what a request's trace says under these names, but for the time of it."""

    def find(result: Any, *names: str) -> list[dict[str, Any]]:
        found = [event for event in result.program.trace if event["event"] in names]
        return [{key: value for key, value in event.items() if key != "seconds"} for event in found]

    return find
