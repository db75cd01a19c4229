"""A prompting whose tokens are characters, as those of a `ScriptedWorker` are, and one that ends a text."""

from __future__ import annotations

from collections.abc import Sequence

from tests import recorded_worker

END = 0  # ends a text, and has none


class Characters(recorded_worker.Characters):
    """Decodes without the token that ends a text."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return super().decode([token for token in token_ids if token != END])
