"""The arguments of OpenAIWorker, checked before anything is started."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping

from scaffolding_ext import require
from scaffolding_ext.errors import ConfigError

ENDPOINTS = ("completions", "chat")


def check_arguments(
    base_url: str,
    endpoint: str,
    whole: Mapping[str, int | None],
    counts: Mapping[str, int],
    seconds: Mapping[str, float],
) -> None:
    """Check what the worker is given.

    Args:
        base_url: The server's address.
        endpoint: One of `ENDPOINTS`.
        whole: Arguments of at least 1, or None.
        counts: Arguments of at least 0.
        seconds: Arguments above 0.

    Raises:
        ConfigError: One is unusable; `key` names it.
    """
    parts = urllib.parse.urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"is {base_url!r}; give an address such as http://localhost:8000/v1", "base_url")
    if parts.username or parts.password:
        raise ConfigError("holds a user name or password, which errors would show; use api_key_env", "base_url")
    require.one_of("endpoint", endpoint, ENDPOINTS)
    for lowest, arguments in ((1, whole), (0, counts)):
        for key, value in arguments.items():
            if value is not None:
                require.whole(key, value, lowest)
    for key, duration in seconds.items():
        require.number(key, duration, above=0)
