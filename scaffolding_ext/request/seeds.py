"""Derives each seed from its purpose, so that no seed depends on earlier work."""

from __future__ import annotations

import hashlib
import threading


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from any parts; equal parts give equal seeds."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class RequestSeeds:
    """Gives requests their seeds, so that a run repeats whatever the order in which its requests arrive.

    A request that the caller names (by `sample_id`) has the run's seed, and its program makes a seed of its own from
    name and epoch. One without a name gets its seed from its prompt and from how often that prompt was given before:
    asking the same again samples again, as a vote made by hand needs it, and in the next run everything repeats.

    Args:
        seed: Seed of the run; None gives no seeds.
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self._num_given: dict[int, int] = {}
        self._lock = threading.Lock()

    def of_request(self, prompt: str, sample_id: str | None, epoch: int, own_seed: int | None) -> int | None:
        """The seed for a request's `Program`.

        Args:
            prompt: The user's prompt.
            sample_id: As the caller gave it.
            epoch: As the caller gave it; each epoch counts its prompts for itself.
            own_seed: Takes the place of the run's; then nothing is counted, and the same request has the same seed.
        """
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
