"""A rule for chains that repeat themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scaffolding_ext.controllers.chain.looking import Needs
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.controllers.chain.stopping.base import StoppingRule
from scaffolding_ext.controllers.repetition import Loop, Loops


class LoopStop(StoppingRule):
    """The chain repeats itself; no probe is needed.

    A stack's key `loops` watches the chains of every controller in the same way; this rule is for
    `DynasorCoTController` alone, and for `any` and `all`.

    Reference: see `controllers.repetition.Loops`.

    Args:
        repeats: How often a cycle of tokens must stand at the chain's end in a row, the first time included.
        max_period: Tokens of the longest cycle.
        min_tokens: Tokens that all repeats together have at least.
        line_repeats: The same for cycles of lines that differ in their numbers alone; 0 looks for none.
        max_lines: Lines of the longest cycle of lines.
    """

    needs = Needs(answer=False)
    exit_reason = "loop"

    def __init__(
        self,
        repeats: int = 4,
        max_period: int = 1024,
        min_tokens: int = 64,
        *,
        line_repeats: int = 24,
        max_lines: int = 8,
    ) -> None:
        self.loops = Loops(repeats, max_period, min_tokens, line_repeats=line_repeats, max_lines=max_lines)

    def __call__(self, probes: Sequence[Probe]) -> bool:
        return self._found(probes) is not None

    def figures(self, probes: Sequence[Probe]) -> Mapping[str, float]:
        found = self._found(probes)
        return {} if found is None else {"period": found.period, "num_repeats": found.num_repeats}

    def _found(self, probes: Sequence[Probe]) -> Loop | None:
        prefix = probes[-1].prefix
        return self.loops.find(prefix.text, prefix.token_ids)
