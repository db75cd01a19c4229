"""Prices of tokens are read strictly, from the command line and from a stack file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from scaffolding_ext.cli.main import main

STACK = {
    "controller": {"type": "NativeGenerationController"},
    "workers": {"generation": {"type": "ScriptedWorker", "args": {"respond": "1"}}},
    "dataset": "tinylm:held_out",
}


def checked(folder: Path, *options: str, price: dict[str, float] | None = None) -> Result:
    (folder / "stack.yaml").write_text(json.dumps(STACK | ({"evaluation": {"price": price}} if price else {})))
    return CliRunner().invoke(main, ["eval", "--config", str(folder / "stack.yaml"), "--dry_run", "--json", *options])


def test_prices_are_by_kind(tmp_path: Path) -> None:
    result = checked(tmp_path, "--set", "evaluation.price={decoded: 2, prefilled: 0.5, reused: 0}")
    assert json.loads(result.stdout)["price"] == {"decoded": 2.0, "prefilled": 0.5, "reused": 0.0}


@pytest.mark.parametrize("given", ["thought=1", "decoded=-1", "decoded=.nan", "decoded=cheap"])
def test_other_prices_are_refused(tmp_path: Path, given: str) -> None:
    result = checked(tmp_path, "--set", f"evaluation.price.{given}")
    assert result.exit_code == 2
    assert f"evaluation.price.{given.partition('=')[0]}" in result.stderr


def test_prices_of_a_stack_file_are_checked_too(tmp_path: Path) -> None:
    assert "evaluation.price.thought" in checked(tmp_path, price={"thought": 1.0}).stderr
