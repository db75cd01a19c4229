"""Five hundred hostile bodies: each is refused by name, none breaks anything, and none hangs."""

from __future__ import annotations

import http.client
import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

WAIT = 30.0
GOOD = {"model": "model", "messages": [{"role": "user", "content": "2+2?"}]}
DEEP = '{"model": "model", "messages": ' + "[" * 50_000 + "]" * 50_000 + "}"
SMILES = "\U0001f600" * 50
WRONG = [
    *("true", '"x"', "[]", "{}", "-1", "0", "1.5", "1e400", "-1e400", "NaN", "Infinity", "9" * 400, '"\\ud800"', '""'),
    *('"\\u0000"', "[null]", '[{"role": "user"}]', '"../../etc/passwd"', f'"{SMILES}"', "9223372036854775808"),
]
NUMBERS = ["n", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "seed", "top_logprobs"]
FIELDS = [
    *NUMBERS,
    *("model", "messages", "stop", "stream", "stream_options", "logprobs", "reasoning_effort", "scaffolding"),
    *("frequency_penalty", "presence_penalty", "logit_bias", "tools", "tool_choice", "functions", "response_format"),
    *("audio", "modalities", "prediction", "store", "service_tier", "thinking_token_budget", "web_search_options"),
]
# What is right, however odd it looks: texts that say something are prompts and stop strings, `{}` turns no knob.
FINE = {
    *(("stop", value) for value in ('"x"', "[]", '"\\u0000"', '"../../etc/passwd"', f'"{SMILES}"')),
    *(("stream", "true"), ("stream_options", "{}"), ("scaffolding", "{}"), ("logit_bias", "{}"), ("tools", "[]")),
    *(("functions", "[]"), ("max_tokens", "9" * 4)),
    *(
        (name, "0")
        for name in ("temperature", "frequency_penalty", "presence_penalty", "seed", "top_k", "top_logprobs")
    ),
    *((name, "-1") for name in ("frequency_penalty", "presence_penalty", "seed", "top_k")),
    *((name, "1.5") for name in ("temperature", "frequency_penalty", "presence_penalty")),
}


def with_field(name: str, value: str) -> str:
    """A good request with one field of its own JSON text."""
    fields = {key: json.dumps(each) for key, each in GOOD.items()} | {name: value}
    return "{" + ", ".join(f"{json.dumps(key)}: {each}" for key, each in fields.items()) + "}"


def hostile() -> Iterator[bytes]:
    rng = random.Random(0)
    for body in ("", " ", "null", "[]", '"x"', "{", '{"model"', "\x00", DEEP, '{"a":' * 20_000, "{}" * 3, "NaN"):
        yield body.encode()
    yield b"\xff\xfe\x00"
    yield json.dumps(GOOD).encode("utf-16")
    for length in (1, 100, 10_000):
        yield with_field("x" * length, "1").encode()
    for model in ("../model", "/etc/passwd", "model/..", "MODEL", "model\\u0000", "%2e%2e", "' OR 1=1", "${jndi:x}"):
        yield with_field("model", f'"{model}"').encode()
    roles = [{"role": role, "content": "x"} for role in ("tool", "root", "", "assistant", "system")]
    contents = [[{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}], 5, [], None, " ", {"type": "text"}]
    for message in [*roles, *({"role": "user", "content": content} for content in contents), {"role": "user", "x": 1}]:
        yield with_field("messages", json.dumps([message])).encode()
    for knobs in (
        {"trace": 1},
        {"trace": "yes"},
        {"default_sample_num": 1},
        {"__class__": "x"},
        {"": 1},
        {"a.b.c": 1},
    ):
        yield with_field("scaffolding", json.dumps(knobs)).encode()
    good = json.dumps(GOOD).encode()
    for position in rng.sample(range(len(good)), 40):  # cut, or scrambled
        yield rng.choice([good[:position], good[:position] + bytes([rng.randrange(0x80, 0x100)]) + good[position:]])
    grid = [pair for pair in itertools.product(FIELDS, WRONG) if pair not in FINE]
    for name, value in rng.sample(grid, len(grid)):
        yield with_field(name, value).encode()


def test_hostile_bodies_are_refused_by_name(serve: Any) -> None:
    served = serve()
    host, port = served.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=WAIT)
    unnamed = []
    for body in itertools.islice(hostile(), 500):
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        error = json.loads(answer.read()).get("error", {})
        named = error.get("code") and error.get("message") and error["type"] == "invalid_request_error"
        if not (400 <= answer.status < 500 and named):
            unnamed.append((answer.status, body[:200]))
    assert unnamed == []
    connection.close()
    assert not served.worker.tasks
    with served.client() as client:
        assert client.chat.completions.create(**GOOD).choices  # it goes on as before


def test_paths_and_methods_that_nobody_serves(serve: Any) -> None:
    served = serve()
    host, port = served.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=WAIT)
    for method, path, status in [
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v1/models/../../etc/passwd", 404),
        ("GET", "/", 404),
    ]:
        connection.request(method, path)
        answer = connection.getresponse()
        assert (answer.status, bool(json.loads(answer.read())["error"]["code"])) == (status, True)
    connection.close()
