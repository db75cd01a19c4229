"""Keys that may send requests."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from scaffolding_ext.serving.refusals import ApiError


def check_key(authorization: str, keys: Sequence[str]) -> None:
    """Refuse a request whose `Authorization` header holds none of the keys; compared in constant time.

    Raises:
        ApiError: There is no key, or it is unknown.
    """
    scheme, _, key = authorization.partition(" ")
    if scheme.lower() != "bearer":
        raise ApiError(401, "the request has no key: send the header Authorization: Bearer KEY", "missing_api_key")
    if not any(hmac.compare_digest(own.encode(), key.strip().encode()) for own in keys):
        raise ApiError(401, "unknown key: ask the server's operator for one", "invalid_api_key")
