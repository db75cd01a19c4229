"""YAML of others is bounded before anything is built of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaffolding_ext import plain_yaml
from scaffolding_ext.errors import ConfigError


def bomb(opening: str, closing: str) -> str:
    """Nine levels of ten aliases each, in lists or by merge keys."""
    lines = ["l0: &l0 {a: 1, b: 2}"]
    lines += [f"l{i}: &l{i} {opening}{', '.join([f'*l{i - 1}'] * 10)}{closing}" for i in range(1, 10)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (bomb("[", "]"), "line 6: holds more than 100,000 values, its aliases"),
        (bomb("{<<: [", "]}"), "line 6: holds more than 100,000 values, its aliases"),
        ("a: &a [*a]", "line 1: refers to itself"),
        ("l0: &l0 [1]\n" + "".join(f"l{i}: &l{i} [*l{i - 1}]\n" for i in range(1, 80)), "line 61: is nested deeper"),
        ("a: " + "[" * 70 + "]" * 70, "line 1: is nested deeper than 64 levels"),
        ("[" * 100_000, "is nested deeper than 64 levels"),
        ("a: 1\nb: 2\na: 3", 'line 3: found duplicate key "a"; keep one of the two'),
        ("seed: 2001-01-01", "line 1: 'timestamp' is no plain data; write text"),
        ("a: !!python/name:os.system x", "is no plain data"),
        ("a: " + "9" * 5000, "is no valid YAML: Exceeds the limit"),
        ('a: "\\ud800"', "line 1: half of a surrogate pair is no text"),
        ("a: \udcff", "holds bytes that are no text"),
        ("a: [", "is no valid YAML"),
    ],
)
def test_yaml_that_would_hurt_is_refused(text: str, message: str) -> None:
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
    with pytest.raises(ConfigError, match="line 2: the byte 0xe9 is no UTF-8"):
        plain_yaml.read(path)
    path.write_bytes("a: 1".encode("utf-16"))
    with pytest.raises(ConfigError, match="is UTF-16; save it as UTF-8"):
        plain_yaml.read(path)
