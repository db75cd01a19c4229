"""What a client sees of a text that grows."""

from __future__ import annotations

from typing import Any

import pytest

from scaffolding_ext.answers.stop_strings import StopStrings
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.serving.thinking import Growing, Reading


@pytest.mark.parametrize("think_close", [None, "</think>"])
@pytest.mark.parametrize("stops", [("END OF ANSWER", "OF"), ("OF", "END OF ANSWER"), ("ANSWER", "R"), ("<end", "<")])
def test_what_was_shown_of_a_text_is_never_taken_back(think_close: str | None, stops: tuple[str, ...]) -> None:
    text = "Well.</think>\nIt is 4. END OF ANSWER <end>" if think_close else "It is 4. END OF ANSWER <end>"
    reading = Reading(think_close, StopStrings(stops))
    whole, growing = reading.whole(text), Growing(reading)
    for end in range(len(text) + 1):
        now = growing.shown(text[:end])
        assert whole.reasoning.startswith(now.reasoning)
        assert whole.content.startswith(now.content)
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
