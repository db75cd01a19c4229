"""The arguments of OpenAIWorker, checked before anything is started."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Mapping

from scaffolding_ext import require
from scaffolding_ext.errors import ConfigError

DEFAULT_KEY = "OPENAI_API_KEY"
ENDPOINTS = ("completions", "chat")


def api_key(variable: str) -> str:
    """The key in an environment variable; where the usual one is not set, a word for servers that ask for none.

    Raises:
        ConfigError: A variable of the user's own choice is not set.
    """
    key = os.environ.get(variable)
    if not key and variable != DEFAULT_KEY:
        raise ConfigError(
            f"names {variable}, which is not set in the environment: export {variable}=...", "api_key_env"
        )
    return key or "none"  # the client wants one; servers without keys ignore it


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
    try:
        parts = urllib.parse.urlsplit(base_url)
        secret = "a user name or password" if "@" in parts.netloc else "a query" if "?" in base_url else ""
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        secret, is_address = "", False
    if secret:
        raise ConfigError(f"holds {secret}, which errors would show; give keys by api_key_env", "base_url")
    if not is_address:
        raise ConfigError(f"is {base_url!r}; give an address such as http://localhost:8000/v1", "base_url")
    require.one_of("endpoint", endpoint, ENDPOINTS)
    for lowest, arguments in ((1, whole), (0, counts)):
        for key, value in arguments.items():
            if value is not None:
                require.whole(key, value, lowest)
    for key, duration in seconds.items():
        require.number(key, duration, above=0)
