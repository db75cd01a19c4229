"""Extract an answer from text, and decide whether two answers are equal.

One definition of equality serves votes, probes and scoring. `extract`, `equal` and `group` are synchronous, for
scripts. `equal` and `group` may take seconds, so a controller yields a `CompareTask` instead; `compare` decides at
once, from the text only.
"""

from scaffolding_ext.answers.comparison import Verdict, compare
from scaffolding_ext.answers.equality import Equality, equal, group
from scaffolding_ext.answers.extraction import begun_box, extract, up_to_brace

__all__ = ["Equality", "Verdict", "begun_box", "compare", "equal", "extract", "group", "up_to_brace"]
