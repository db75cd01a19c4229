"""Server-sent events are read as the standard says, however the bytes are cut into chunks."""

import asyncio
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaffolding_ext.workers.openai import events as events_module
from scaffolding_ext.workers.openai.events import TooLongError, events

SEPARATORS = "\u2028\u2029\u0085\x0b\x0c\x1c"  # ends of lines for `str.splitlines`, but not for the standard


def read(chunks):
    async def source():
        for chunk in chunks:
            yield chunk

    async def collected():
        return [event async for event in events(source())]

    return asyncio.run(collected())


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n")), min_size=1),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(0, 400)),
)
def test_events_do_not_depend_on_the_chunks(texts, end, cuts):
    body = "".join(f": alive{end}{end}event: piece{end}data: {text}{end}{end}" for text in texts).encode() + b"\n"
    places = [0, *sorted({cut for cut in cuts if cut < len(body)}), len(body)]
    chunks = [body[a:b] for a, b in itertools.pairwise(places)]
    assert read(chunks) == texts[: next((n for n, text in enumerate(texts) if text.startswith("[DONE]")), None)]


def test_separators_within_json_are_text():
    text = json.dumps({"text": SEPARATORS}, ensure_ascii=False)
    assert read([f"data:{text}\n\n".encode()]) == [text]


def test_lines_of_one_event_are_joined_and_what_follows_the_end_is_not_read():
    assert read([b"\xef\xbb\xbfdata: {\ndata: }\n\n", b"data: [DONE]\n\ndata: late\n\n"]) == ["{\n}"]


def test_an_unfinished_event_is_dropped():
    assert read([b"data: 1\n\ndata: 2\n"]) == ["1"]


@pytest.mark.parametrize("line", [b"data: xx\n", b"x"])
def test_an_event_without_end_is_given_up(line, monkeypatch):
    monkeypatch.setattr(events_module, "_MOST_EVENT", 100)
    assert read([b"data: 1\n\n"] * 1000) == ["1"] * 1000
    with pytest.raises(TooLongError, match="an event of more than 100 bytes"):
        read([line] * 101)
