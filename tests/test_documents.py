"""Documents of others are bounded before they are built, and files are written whole."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from scaffolding_ext.documents import parse_json, plain, write_text
from scaffolding_ext.errors import OutputError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "invalid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": {"b": 1, "b": 1}}', "the key 'b' appears twice"),
    ],
)
def test_json_that_would_hurt_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(text)


# ---- writing


def test_a_file_is_replaced_once_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_text(path, "one")
    write_text(path, "two")
    assert (path.read_text(), os.listdir(tmp_path)) == ("two", ["a"])


def test_files_that_are_written_at_a_time_into_a_folder_do_not_mix(tmp_path: Path) -> None:
    def parts() -> Iterator[str]:
        yield "first, "
        write_text(tmp_path / "other", "other")
        yield "last"

    write_text(tmp_path / "mine", parts())
    assert (tmp_path / "mine").read_text() == "first, last"
    assert (tmp_path / "other").read_text() == "other"


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("target")
    write_text(link, "one")
    assert link.is_symlink()
    assert (tmp_path / "target").read_text() == "one"


@pytest.mark.parametrize("name", ["/dev/full", "folder", "none/a", "n" * 300])
def test_what_cannot_be_written_is_named_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match=f"cannot write .*{name}: "):
        write_text(tmp_path / name, "text")
    assert os.listdir(tmp_path) == ["folder"]
    assert not Path("/dev/full").is_file()


class Pair(NamedTuple):
    low: float
    high: float


@dataclasses.dataclass
class Found:
    pairs: list[Pair]
    by_k: dict[int, Pair | None]


def test_what_json_can_hold_is_made_of_tuples_and_dataclasses() -> None:
    found = Found([Pair(0.5, float("inf"))], {1: None, 2: Pair(float("nan"), 1.0)})
    document = {"pairs": [{"low": 0.5, "high": None}], "by_k": {"1": None, "2": {"low": None, "high": 1.0}}}
    assert plain(found) == document
    assert json.loads(json.dumps(plain(found), allow_nan=False)) == document
