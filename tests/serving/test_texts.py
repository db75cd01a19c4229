"""What a client sees of a text that grows."""

from __future__ import annotations

from typing import Any

import pytest

from scaffolding_ext.answers.stop_strings import StopStrings
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.serving.thinking import Reading


@pytest.mark.parametrize("family", ["instruct", "deepseek_r1"])
@pytest.mark.parametrize("stops", [("END OF ANSWER", "OF"), ("OF", "END OF ANSWER"), ("ANSWER", "R"), ("<end", "<")])
def test_what_was_shown_of_a_text_is_never_taken_back(family: str, stops: tuple[str, ...]) -> None:
    text = ("Well.</think>\n" if family == "deepseek_r1" else "") + "It is 4. END OF ANSWER <end>"
    reading = Reading(family_named(family), None, StopStrings(stops))
    whole, splitter = reading.split(text), reading.splitter()
    for character in text:
        splitter.feed(character)
        assert whole.thinking.startswith(splitter.reading.thinking)
        assert whole.answer.startswith(splitter.reading.answer)
    assert whole.is_stopped


def test_a_stream_with_overlapping_stop_strings_ends_well(serve: Any) -> None:
    controller = NativeGenerationController()
    controller.prompting = Prompting.for_model("tinylm/target")
    text = "I think.</think>\n" + "It is 4. END OF ANSWER"
    served = serve(text, controller)
    asked: Any = {"model": "model", "messages": [{"role": "user", "content": "2+2?"}], "stop": ["END OF ANSWER", "OF"]}
    with served.client() as client:
        whole = client.chat.completions.create(**asked).choices[0].message.content
        chunks = list(client.chat.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole == "It is 4. END "
