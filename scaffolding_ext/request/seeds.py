"""Derive each seed from its purpose, so that no seed depends on earlier work."""

from __future__ import annotations

import hashlib
import threading

import numpy as np

from scaffolding_ext.protocol import current_scope


def branch_path() -> tuple[int, ...]:
    """Return the branch numbers from the request to the calling code; empty outside any branch."""
    scope = current_scope.get()
    return () if scope is None else tuple(scope.branch_path)


def derive_seed(*parts: object) -> int:
    """Derive a 63-bit seed; equal parts give equal seeds."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class BranchSeeds:
    """Seeds of one request; each branch's draws are independent of other branches and their order.

    Attributes:
        seed: The request's seed; None draws no seeds, and workers use their default randomness.
    """

    __slots__ = ("_num_draws", "seed")

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self._num_draws: dict[tuple[int, ...], int] = {}

    def next(self) -> int | None:
        """Draw a seed that depends on the request's seed, the branch path, and the branch's earlier draws."""
        if self.seed is None:
            return None
        path = branch_path()
        draw = self._num_draws.get(path, 0)
        self._num_draws[path] = draw + 1
        return derive_seed(self.seed, path, draw)

    def generator(self) -> np.random.Generator:
        return np.random.default_rng(self.next())

    def clear(self) -> None:
        self._num_draws.clear()


class RequestSeeds:
    """Seeds of requests, such that a run repeats if its requests arrive in another order.

    A request with a `sample_id` has the run's seed; its program derives a seed from name and epoch. Any other request's
    seed derives from its prompt and the number of earlier requests with that prompt, so a repeated request samples
    anew.
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self._num_given: dict[int, int] = {}
        self._lock = threading.Lock()

    def of_request(self, prompt: str, sample_id: str | None, epoch: int, own_seed: int | None) -> int | None:
        """Return the seed of a request's `Program`; with `own_seed`, equal requests have equal seeds."""
        seed = self.seed if own_seed is None else own_seed
        if seed is None or sample_id is not None:
            return seed
        if own_seed is not None:
            return derive_seed(seed, prompt)
        key = derive_seed(prompt, epoch)  # instead of the prompt, which may be long
        with self._lock:
            num_before = self._num_given.get(key, 0)
            self._num_given[key] = num_before + 1
        return derive_seed(seed, prompt, num_before)
