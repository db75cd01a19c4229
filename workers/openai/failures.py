"""The error of a failed request: it names the server, what it did and what to do, and never holds the key."""

from __future__ import annotations

import asyncio
import json
from typing import NamedTuple

from scaffolding_ext.errors import EngineError, InvalidTaskError, WorkerError

_REFUSALS = range(400, 500)  # the request or the key is wrong; only 408, 409 and 429 are tried again


class UnreadableAnswerError(EngineError):
    """One answer cannot be read or was filtered because of what the model wrote; the server itself works."""


class Failures(NamedTuple):
    """Names what goes wrong with one server.

    Attributes:
        base_url: The server.
        key: The key; no message may hold it.
        key_name: The environment variable that the key came from.
        num_attempts: Most attempts for one request.
        timeout_seconds: Seconds of silence after which an attempt fails.
        deadline_seconds: Most seconds that a request may take.
        max_concurrency: Requests at once.
    """

    base_url: str
    key: str
    key_name: str
    num_attempts: int
    timeout_seconds: float
    deadline_seconds: float
    max_concurrency: int

    def told(self, error: Exception) -> WorkerError:
        """What to raise for an error of the library."""
        import openai

        attempts = f"{self.num_attempts} attempts" if self.num_attempts > 1 else "1 attempt"
        text = self._without_key(str(error))
        if isinstance(error, WorkerError):
            return error
        if isinstance(error, openai.APIStatusError):
            status = error.status_code
            if status in (401, 403):
                return EngineError(
                    f"{self.base_url} refused the API key ({status}): set another key in the environment variable "
                    f"{self.key_name}"
                )
            if status == 429:
                return EngineError(
                    f"{self.base_url} was too busy in {attempts} (429): lower max_concurrency (it is "
                    f"{self.max_concurrency}) or raise max_retries. It said: {text}"
                )
            if status in _REFUSALS and status not in (408, 409):
                return InvalidTaskError(f"{self.base_url} refused the request: {text}")
            return EngineError(f"{self.base_url} failed in {attempts}. It said: {text}")
        if isinstance(error, openai.APITimeoutError):
            return EngineError(
                f"{self.base_url} sent nothing for {self.timeout_seconds:g} s in each of {attempts}: raise "
                "timeout_seconds, or see whether the server is busy"
            )
        if isinstance(error, openai.APIConnectionError):
            return EngineError(f"cannot reach {self.base_url} in {attempts}: is the server running? ({text})")
        if isinstance(error, asyncio.TimeoutError):
            return EngineError(
                f"{self.base_url} did not finish within deadline_seconds ({self.deadline_seconds:g} s): raise it, or "
                "lower max_tokens"
            )
        if isinstance(error, json.JSONDecodeError | openai.APIResponseValidationError):
            return EngineError(f"{self.base_url} sent an answer that is no JSON: {text}")
        return EngineError(
            f"{self.base_url} sent an answer that the worker cannot read: {type(error).__name__}: {text}"
        )

    def broken_off(self, error: Exception) -> EngineError:
        """The error to raise when a request fails in any way after its answer has begun."""
        text = self._without_key(f"{type(error).__name__}: {error}")
        return EngineError(f"{self.base_url} ended its answer too early: {text}")

    def _without_key(self, text: str) -> str:
        return text.replace(self.key, "***")
