"""Answers that served votes drew of those that they could: in the answer, in the log and in the metrics."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController

ASK: dict[str, Any] = {"model": "model", "messages": [{"role": "user", "content": "2+2?"}]}


def vote(num: int, inner: Any = None, **options: Any) -> MajorityVoteController:
    return MajorityVoteController(inner or NativeGenerationController({"temperature": 0.7}), num, **options)


def ask(served: Any, caplog: pytest.LogCaptureFixture, **more: Any) -> tuple[list[Any], str]:
    """The field `scaffolding` of each choice, and the log's line of the request."""
    caplog.set_level(logging.INFO, "scaffolding_ext.serving")
    with served.client() as client:
        answer = client.chat.completions.create(**ASK, **more)
    (line,) = [each.getMessage() for each in caplog.records if each.getMessage().startswith(f"{answer.id}, model: ")]
    return [each.scaffolding for each in answer.choices], line


def test_a_vote_that_stops_says_what_it_drew_and_saved(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    served = serve(controller=vote(16))
    choices, line = ask(served, caplog, n=2)
    drawn = choices[0]["drawn"]["answers"]
    assert 1 < drawn < 16
    assert [each["drawn"] for each in choices] == [{"answers": drawn, "most": 16}] * 2
    assert f" tokens, {2 * drawn} of 32 answers, {1 - drawn / 16:.0%}".replace("%", " % saved, ok") in line
    assert served.metric("scaffolding_drawn_answers_total", model="model") == 2 * drawn
    assert served.metric("scaffolding_most_answers_total", model="model") == 32


def test_only_the_outermost_vote_counts(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    served = serve(controller=vote(3, vote(2, allocation=None), allocation=None))
    choices, line = ask(served, caplog)
    assert choices[0]["drawn"] == {"answers": 3, "most": 3}
    assert line.endswith(" tokens, 3 of 3 answers, ok")
    assert served.metric("scaffolding_drawn_answers_total") == 3


def test_a_stack_without_a_vote_says_nothing_of_answers(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    served = serve()
    choices, line = ask(served, caplog)
    assert "drawn" not in choices[0]
    assert line.endswith(" tokens, ok")
    assert served.metric("scaffolding_most_answers_total") == 0
