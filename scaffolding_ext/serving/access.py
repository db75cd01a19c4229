"""Access by key: who may send requests, and in which order they are served."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.request.program import Program, Progress
from scaffolding_ext.scheduling import Policy
from scaffolding_ext.serving.refusals import ApiError

ANYBODY = "anybody"  # the holder's name if no keys are set
_BEARER = "bearer "
_LEAST_CHARACTERS = 4  # of a key; shorter ones are mistakes


class Keys:
    """The keys that may send requests.

    Args:
        keys: Keys by the name of the holder; only digests of the keys are kept. None lets anybody in.
        share_prefixes: If True, requests with different keys reuse the KV of each other's prompts.
            `usage.cached_tokens` then reveals to a client that another one has sent a prompt with the same beginning.
    """

    def __init__(self, keys: Mapping[str, str] | None, share_prefixes: bool = False) -> None:
        self._file: Path | None = None
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
            ConfigError: There are no keys, two entries have the same name or key, or a key cannot be one.
        """
        entries = [line.strip() for line in text.removeprefix("\ufeff").split("\n")]  # editors put a mark there
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
            if len(key) < _LEAST_CHARACTERS or ":" in key or not (key.isascii() and key.isprintable()) or " " in key:
                raise ConfigError(
                    f"has an entry, number {number}, whose key has fewer than {_LEAST_CHARACTERS} characters, or holds "
                    "a colon, a space or what is not printable ASCII: take what `openssl rand -hex 24` prints",
                    where,
                )
            if key in keys.values():
                raise ConfigError(f"has an entry, number {number}, with the key of an earlier one: keep one", where)
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
            keys = cls.read(path.read_text(encoding="utf-8"), "keys_file", share_prefixes)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"is {str(path)!r}, which cannot be read: {error}", "keys_file") from error
        keys._file = path
        return keys

    def reread(self) -> Keys:
        """The keys that their file holds now; the same keys if they come from elsewhere.

        Raises:
            ConfigError: The file cannot be read, or holds no keys.
        """
        return self if self._file is None else Keys.in_file(self._file, self.share_prefixes)

    def holder(self, authorization: str) -> str:
        """Return the name of the key's holder from an `Authorization` header; keys are compared in constant time.

        Raises:
            ApiError: There is no key, or it is unknown.
        """
        if self._digests is None:
            return ANYBODY
        if not authorization.lower().startswith(_BEARER):
            raise ApiError(401, "the request has no key: send the header Authorization: Bearer KEY", "missing_api_key")
        digest = _digest(authorization[len(_BEARER) :].strip())
        holders = [name for name, own in self._digests.items() if hmac.compare_digest(own, digest)]
        if not holders:
            raise ApiError(401, "unknown key: ask the server's operator for one", "invalid_api_key")
        return holders[0]

    def cache_salt(self, holder: str) -> str | None:
        """Salt that separates the holder's KV in workers, derived from the key; None if all holders share KV."""
        if self._digests is None or self.share_prefixes:
            return None
        return hmac.new(self._digests[holder], b"cache_salt", "sha256").hexdigest()


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
