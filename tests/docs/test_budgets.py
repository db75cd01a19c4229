"""What `docs/scheduling.md` shows of budgets by type runs as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from scaffolding_ext import plain_yaml
from scaffolding_ext.cli.main import main
from scaffolding_ext.stack.build import check_stack
from scaffolding_ext.stack.load import load_config

PAGE = (
    (Path(__file__).parents[2] / "docs" / "scheduling.md")
    .read_text(encoding="utf-8")
    .partition("\n## Budgets by type")[2]
)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_commands_take_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stack, types = blocks("yaml")
    Path("types.yaml").write_text(types, encoding="utf-8")
    sweep, commands = blocks("bash")
    lines = commands.replace("\\\n", " ").splitlines()
    assert [shlex.split(line)[:2] for line in lines] == [["scaffolding-ext", "plan"]] * 3
    for line in lines:
        result = CliRunner().invoke(main, shlex.split(line)[1:])
        assert result.exit_code == 0, result.output
    assert load_config(plain_yaml.parse(stack, "stack"))
    controller = check_stack(load_config("planned.yaml"))
    assert set(controller.plan.budgets) == {"sums", "proofs"}
    known = {option for parameter in main.commands["plan"].params for option in parameter.opts}
    assert set(re.findall(r"--\w+", sweep.partition(" plan ")[2])) <= known
