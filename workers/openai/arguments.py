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
    """The key that an environment variable holds.

    If the usual variable is not set, this is a placeholder, for servers that need no key.

    Raises:
        ConfigError: The user named another variable, and it is not set.
    """
    key = os.environ.get(variable)
    if not key and variable != DEFAULT_KEY:
        raise ConfigError(
            f"names the environment variable {variable}, which is not set: run `export {variable}=...`", "api_key_env"
        )
    return key or "none"  # the client needs a key; servers without keys ignore it


def check_arguments(
    base_url: str,
    endpoint: str,
    whole: Mapping[str, int | None],
    counts: Mapping[str, int],
    seconds: Mapping[str, float],
) -> None:
    """Check the worker's arguments.

    Args:
        base_url: The server's address.
        endpoint: One of `ENDPOINTS`.
        whole: Arguments of at least 1, or None.
        counts: Arguments of at least 0.
        seconds: Arguments above 0.

    Raises:
        ConfigError: An argument is unusable; `key` names it.
    """
    try:
        parts = urllib.parse.urlsplit(base_url)
        secret = "a user name or password" if "@" in parts.netloc else "a query" if "?" in base_url else ""
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number
        secret, is_address = "", False
    if secret:
        raise ConfigError(
            f"holds {secret}, and errors show the address: leave it out, and name the key's variable by api_key_env",
            "base_url",
        )
    if not is_address:
        raise ConfigError(f"is {base_url!r}; it must be an address such as http://localhost:8000/v1", "base_url")
    require.one_of("endpoint", endpoint, ENDPOINTS)
    for lowest, arguments in ((1, whole), (0, counts)):
        for key, value in arguments.items():
            if value is not None:
                require.whole(key, value, lowest)
    for key, duration in seconds.items():
        require.number(key, duration, above=0)
