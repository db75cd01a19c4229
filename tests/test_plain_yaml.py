"""A file of settings is read, or refused with the reason and the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaffolding_ext import plain_yaml
from scaffolding_ext.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "is nested too deeply"),
        ("a: 1\nb: 2\na: 3", 'line 3: found duplicate key "a"; keep one of the two'),
        ("a: !!python/name:os.system x", "is not valid YAML: could not determine a constructor"),
        ("a: " + "9" * 5000, "is not valid YAML: Exceeds the limit"),
        ("a: \udcff", "holds bytes that are not text"),
        ("a: [", "is not valid YAML"),
    ],
)
def test_what_is_no_yaml_of_plain_data_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plain_yaml.parse(text, "it")


def test_aliases_and_merge_keys_of_an_ordinary_size_are_fine() -> None:
    text = "base: &base {max_tokens: 5, items: [1, 2]}\na: {<<: *base, max_tokens: 7}\nb: [*base, *base]\n"
    base = {"max_tokens": 5, "items": [1, 2]}
    assert plain_yaml.parse(text, "it") == {"base": base, "a": {**base, "max_tokens": 7}, "b": [base, base]}


def test_yaml_files_have_a_greatest_length_and_one_encoding(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is longer than 1,048,576 bytes"):
        plain_yaml.read("/dev/zero")
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: caf\xc3\xa9\n")
    assert plain_yaml.read(path) == {"a": "caf\u00e9"}
    path.write_bytes(b"a: 1\nb: caf\xe9\n")
    with pytest.raises(ConfigError, match="line 2: the byte 0xe9 is not UTF-8"):
        plain_yaml.read(path)
    path.write_bytes("a: 1".encode("utf-16"))
    with pytest.raises(ConfigError, match="is UTF-16; save it as UTF-8"):
        plain_yaml.read(path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'{"a": "nice \ud83d\udc4d"}', {"a": "nice \U0001f44d"}),
        (r'{"\ud83d\udc4d": ["x", "\ud83d\udc4d\ud83d\udc4d"]}', {"\U0001f44d": ["x", "\U0001f44d\U0001f44d"]}),
        (r'a: "\U0001f44d"', {"a": "\U0001f44d"}),
        (r"a: '\ud83d\udc4d'", {"a": r"\ud83d\udc4d"}),  # no escapes in single quotes
        (r'a: "\u00e9 \\ud83d"', {"a": r"é \ud83d"}),
    ],
)
def test_a_pair_of_escapes_is_one_character(text: str, value: object) -> None:
    assert plain_yaml.parse(text, "it") == value


@pytest.mark.parametrize("text", [r'"\ud83d"', r'{"a": ["\udc4d\ud83d"]}', r'"\ud83d" : 1'])
def test_half_a_pair_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="it holds half of a surrogate pair"):
        plain_yaml.parse(text, "it")
