from __future__ import annotations

import re
from collections.abc import Sequence

from scaffolding_ext import require
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.controllers.chain.probing import ProbeNeeds
from scaffolding_ext.controllers.chain.stopping.base import StoppingRule
from scaffolding_ext.errors import ConfigError


class PatternStop(StoppingRule):
    r"""A regular expression appears in the chain's text; no probe is needed.

    Each probe reads the text since the previous probe, and `max_match_len` characters before that. The chain is left at
    the probe that saw the pattern. Such probes cost nothing, so they can be frequent.

    Args:
        pattern: Regular expression that ends thinking, such as `r"(?i)\bfinal answer\b"`.
        max_match_len: Length in characters of the longest match that is found across two probes.

    Raises:
        ConfigError: The pattern is not a regular expression, or matches everywhere.
    """

    needs = ProbeNeeds(answer=False)
    exit_reason = "pattern"
    stops_when = "{0.pattern.pattern!r} appears"

    def __init__(self, pattern: str, max_match_len: int = 200) -> None:
        try:
            self.pattern = re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ConfigError(f"is {pattern!r}, which is not a regular expression: {error}", "pattern") from error
        if self.pattern.search(""):
            raise ConfigError(f"is {pattern!r}, which matches everywhere; it must need some text", "pattern")
        self.max_match_len = require.whole("max_match_len", max_match_len)

    def __call__(self, probes: Sequence[Probe]) -> bool:
        num_seen = len(probes[-2].prefix.text) if len(probes) > 1 else 0
        return self.pattern.search(probes[-1].prefix.text, max(0, num_seen - self.max_match_len)) is not None
