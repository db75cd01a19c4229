"""Derives each seed from its purpose, so that no seed depends on earlier work."""

from __future__ import annotations

import hashlib
import threading

import numpy as np

from scaffolding_ext.protocol import current_scope


def branch_path() -> tuple[int, ...]:
    """The numbers of the branches from the request to the calling code; empty outside any branch."""
    scope = current_scope.get()
    return () if scope is None else tuple(scope.branch_path)


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from any parts; equal parts give equal seeds."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class BranchSeeds:
    """The seeds of one request: each branch draws its own, whatever other branches draw and in any order.

    Attributes:
        seed: The request's seed; None draws no seeds, and each worker uses its own randomness.
    """

    __slots__ = ("_num_draws", "seed")

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self._num_draws: dict[tuple[int, ...], int] = {}

    def next(self) -> int | None:
        """The branch's next seed: it depends on the request's seed, the branch path, and the branch's earlier draws."""
        if self.seed is None:
            return None
        path = branch_path()
        draw = self._num_draws.get(path, 0)
        self._num_draws[path] = draw + 1
        return derive_seed(self.seed, path, draw)

    def generator(self) -> np.random.Generator:
        """A numpy generator from the branch's next seed; without a seed, from fresh entropy."""
        return np.random.default_rng(self.next())

    def clear(self) -> None:
        self._num_draws.clear()


class RequestSeeds:
    """Gives requests their seeds, so that a run repeats in whatever order its requests arrive.

    A request with a `sample_id` has the run's seed; its program derives a seed from name and epoch. The seed of another
    request derives from its prompt and from how often the prompt came before: a second request samples anew.
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self._num_given: dict[int, int] = {}
        self._lock = threading.Lock()

    def of_request(self, prompt: str, sample_id: str | None, epoch: int, own_seed: int | None) -> int | None:
        """The seed for a request's `Program`; with `own_seed` instead of the run's, equal requests have equal seeds."""
        seed = self.seed if own_seed is None else own_seed
        if seed is None or sample_id is not None:
            return seed
        if own_seed is not None:
            return derive_seed(seed, prompt)
        key = derive_seed(prompt, epoch)  # in place of the prompt, which may be long
        with self._lock:
            num_before = self._num_given.get(key, 0)
            self._num_given[key] = num_before + 1
        return derive_seed(seed, prompt, num_before)
