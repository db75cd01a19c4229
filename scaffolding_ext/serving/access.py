"""Access by key: who may send requests, how many tokens they may use, and in which order they are served."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from pathlib import Path

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.request.program import Program, Progress
from scaffolding_ext.scheduling import Policy
from scaffolding_ext.serving.refusals import ApiError, wait_and_retry

ANYBODY = "anybody"  # the holder's name if no keys are set
_BEARER = "bearer "


class Keys:
    """The keys that may send requests.

    Args:
        keys: Keys by the name of the holder; only digests of the keys are kept. None lets anybody in.
        share_prefixes: If True, requests with different keys reuse the KV of each other's prompts.
            `usage.cached_tokens` then reveals to a client that another one has sent a prompt with the same beginning.
    """

    def __init__(self, keys: Mapping[str, str] | None, share_prefixes: bool = False) -> None:
        self._digests = None if keys is None else {name: _digest(key) for name, key in keys.items()}
        self.share_prefixes = share_prefixes

    @property
    def num_holders(self) -> int:
        """Number of keys; 0 lets anybody in."""
        return len(self._digests or ())

    @classmethod
    def read(cls, text: str, where: str, share_prefixes: bool = False) -> Keys:
        """Read keys from lines `KEY` or `NAME:KEY`; a line that begins with `#` is a comment.

        Raises:
            ConfigError: There are no keys, or two keys have the same name.
        """
        entries = [line.strip() for line in text.splitlines()]
        keys: dict[str, str] = {}
        for number, entry in enumerate((e for e in entries if e and not e.startswith("#")), 1):
            name, colon, key = entry.partition(":")
            name, key = (name.strip(), key.strip()) if colon else (f"key-{number}", entry)
            if not key or name in keys:
                raise ConfigError(
                    f"has an entry, number {number}, without a key or with the name of an earlier entry: give each "
                    "entry a key and a unique name",
                    where,
                )
            keys[name] = key
        if not keys:
            raise ConfigError("holds no keys: write a key on each line, as KEY or NAME:KEY", where)
        return cls(keys, share_prefixes)

    @classmethod
    def in_file(cls, path: Path, share_prefixes: bool = False) -> Keys:
        """Read keys from a file, as `read` does.

        Raises:
            ConfigError: The file cannot be read, or holds no keys.
        """
        try:
            return cls.read(path.read_text(encoding="utf-8"), "keys_file", share_prefixes)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"is {str(path)!r}, which cannot be read: {error}", "keys_file") from error

    def holder(self, authorization: str | None) -> str:
        """Return the name of the key's holder from an `Authorization` header; keys are compared in constant time.

        Raises:
            ApiError: There is no key, or it is unknown.
        """
        if self._digests is None:
            return ANYBODY
        given = authorization or ""
        if not given.lower().startswith(_BEARER):
            raise ApiError(401, "the request has no key: send the header Authorization: Bearer KEY", "missing_api_key")
        digest = _digest(given[len(_BEARER) :].strip())
        holders = [name for name, own in self._digests.items() if hmac.compare_digest(own, digest)]
        if not holders:
            raise ApiError(401, "unknown key: ask the server's operator for one", "invalid_api_key")
        return holders[0]

    def cache_salt(self, holder: str) -> str | None:
        """Salt that separates the holder's KV in workers, derived from the key; None if all holders share KV."""
        if self._digests is None or self.share_prefixes:
            return None
        return hmac.new(self._digests[holder], b"cache_salt", "sha256").hexdigest()


class TokenBudgets:
    """The tokens that each holder may use in a minute: a bucket that fills evenly.

    A request reserves the tokens that it is expected to use when it is admitted; at its end it pays what it has used.
    The last request that is admitted may overdraw the bucket.

    Args:
        per_minute: Prompt and decoded tokens; None sets no limit.
        clock: Gives the time in seconds.
    """

    def __init__(self, per_minute: int | None, clock: Callable[[], float]) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._levels: dict[str, tuple[float, float]] = {}

    def reserve(self, holder: str, num_tokens: float) -> float:
        """Reserve tokens for a request, at most those of a minute.

        Returns:
            The tokens that are reserved, for `settle`.

        Raises:
            ApiError: No tokens are left; its Retry-After says when there are some again.
        """
        if self._per_minute is None:
            return 0.0
        level = self._level(holder)
        if level <= 0:
            message = (
                f"the key has used or reserved its {self._per_minute} tokens of this minute: wait for the seconds of "
                "Retry-After"
            )
            raise wait_and_retry(message, "token_budget_exceeded", (1 - level) * 60 / self._per_minute)
        reserved = min(num_tokens, float(self._per_minute))
        self._levels[holder] = level - reserved, self._clock()
        return reserved

    def settle(self, holder: str, reserved: float, num_tokens: int) -> None:
        """Pay the tokens that a request has used, instead of those that were reserved for it."""
        if self._per_minute is not None:
            self._levels[holder] = self._level(holder) + reserved - num_tokens, self._clock()

    def _level(self, holder: str) -> float:
        assert self._per_minute is not None
        now = self._clock()
        level, at = self._levels.get(holder, (float(self._per_minute), now))
        return min(float(self._per_minute), level + (now - at) * self._per_minute / 60)


class RoundRobin(Policy):
    """Serves the holders of keys in turn, each in the order of its requests.

    A request gets the number of its round. A new holder begins at the latest round of a finished request, so it gains
    nothing for the time before.
    """

    def __init__(self) -> None:
        self._round = 0
        self._next: dict[str | None, int] = {}  # the round of each holder's next request

    def priority(self, progress: Progress) -> float:
        """Return the current round; programs get their round in `take_in`."""
        return float(self._round)

    def take_in(self, program: Program) -> None:
        """Give the program the next round of its caller."""
        own = max(self._round, self._next.get(program.caller.name, 0))
        self._next[program.caller.name] = own + 1
        program.place.order = lambda progress: float(own)
        program.lifetime.at_end(lambda: self._end(own))

    def _end(self, number: int) -> None:
        self._round = max(self._round, number)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
