"""Refusals and failures of requests, in the shape of OpenAI's errors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from scaffolding_ext.errors import (
    ConfigError,
    EngineError,
    InvalidTaskError,
    RequestCancelledError,
    RequestTimeoutError,
    ServerBusyError,
    ServerRefusalError,
    ServerTimeoutError,
    ShutdownError,
)

CLIENT_LEFT = 499  # status of requests whose client disconnected
_NO_RETRY = {"x-should-retry": "false"}  # otherwise OpenAI's clients retry


class ApiError(Exception):
    """An error response.

    Args:
        status: The HTTP status.
        message: The message: what was given, what is allowed and what to do.
        code: Machine-readable name.
        param: The offending field.
        headers: Response headers.
    """

    def __init__(
        self, status: int, message: str, code: str, param: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = headers or {}

    def document(self) -> dict[str, Any]:
        """Body of the response, or event of a failing stream."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        if self.status == 429:
            kind = "rate_limit_error"
        if self.status == 401:
            kind = "authentication_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def wait_and_retry(message: str, code: str, seconds: float) -> ApiError:
    """Refuse a request that may succeed later."""
    return ApiError(429, message, code, headers={"retry-after": str(max(1, math.ceil(seconds)))})


def unsupported(param: str, message: str) -> ApiError:
    """Refuse a field that the stack cannot honour."""
    return ApiError(400, f"{param} {message}", "unsupported_parameter", param)


def of_validation(error: ValidationError, unions: Mapping[str, str]) -> ApiError:
    """Convert pydantic's error about a body, without the value, which may be long or private.

    Args:
        error: The error.
        unions: Descriptions of the fields that take several types.
    """
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    parts = [str(part) for part in first["loc"]]
    depth = next((depth for depth, part in enumerate(parts[:-1], 1) if part in unions), None)
    path = ".".join(parts[:depth])
    if depth is not None:
        return ApiError(400, f"{path}: must be {unions[parts[depth - 1]]}", "invalid_value", path)
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body of the request is not valid JSON: {first['msg']}", "invalid_json")
    message = f"{path}: {first['msg'][:1].lower()}{first['msg'][1:]}" if path else first["msg"]
    return ApiError(400, message, "invalid_value", path or None)


def of_failure(error: BaseException, sent: Mapping[str, str] | None = None) -> ApiError:
    """Convert a program's failure. Engine messages may hold the prompt or addresses, so only the log shows them.

    Args:
        error: The failure.
        sent: Fields that the client sent, by our names of them. An error about a field is the client's only if the
            client sent it; any other is the server's, whatever its type.
    """
    if isinstance(error, ApiError):
        return error
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, ConfigError) and (name := (sent or {}).get(cause.key.rpartition(".")[2])):
            return ApiError(400, f"{name}: {cause.message}", "unsupported_value", name)
        if isinstance(cause, ServerRefusalError):
            return ApiError(
                400, "the server behind the stack refuses the request: the log has its message", "unsupported_value"
            )
        if isinstance(cause, ServerBusyError):
            return wait_and_retry("the server behind the stack is too busy", "engine_busy", cause.retry_after or 1)
        if isinstance(cause, ServerTimeoutError):
            return ApiError(504, "the server behind the stack did not answer in time", "timeout", headers={**_NO_RETRY})
        if isinstance(cause, InvalidTaskError):
            return ApiError(400, f"the worker refuses the request: {cause}", "unsupported_value")
    if isinstance(error, RequestTimeoutError):
        return ApiError(
            504, f"{error}: ask for fewer tokens, or allow more seconds", "timeout", headers=dict(_NO_RETRY)
        )
    if isinstance(error, ShutdownError):
        return ApiError(
            503, "the server is shutting down: send the request again", "shutting_down", headers={"retry-after": "5"}
        )
    if isinstance(error, RequestCancelledError):
        return ApiError(
            CLIENT_LEFT, "the client closed the connection, so the server cancelled the request", "cancelled"
        )
    names = " from ".join(type(cause).__name__ for cause in causes)
    if any(isinstance(cause, EngineError) for cause in causes):
        return ApiError(
            502, f"the engine of the stack failed ({names}): the server's log has its message", "engine_error"
        )
    return ApiError(500, f"the stack failed ({names}): the server's log has its message", "internal_error")


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__
