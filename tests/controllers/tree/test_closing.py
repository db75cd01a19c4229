"""Answers that are forced from branches."""

import pytest

from scaffolding_ext.controllers.tree import closing
from scaffolding_ext.controllers.tree.branch import Branch
from scaffolding_ext.controllers.tree.closing import Closings
from scaffolding_ext.protocol import GenerationTask


def test_a_branch_whose_answer_the_deadline_cut_off_may_be_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    branch, closings = Branch(GenerationTask(input_str="4+5?"), (0,), 50), Closings()
    monkeypatch.setattr(closing, "seconds_left", lambda: 0.0)
    assert len(list(closings.close([branch]))) == 1  # the step comes back without an output
    assert closings.missing([branch]) == [branch]
    for step in closings.close([branch]):
        step[0].output_str = "9}"
    assert (branch.answer, closings.missing([branch])) == ("9", [])
