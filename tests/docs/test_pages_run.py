"""Pages whose files and commands run as they stand, in their order, and give what the page shows."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from scaffolding_ext import MajorityVoteController, NativeGenerationController, ScaffoldingLlm, plain_yaml
from scaffolding_ext.cli.main import main
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule
from scaffolding_ext.evaluation.run.records import read_records
from scaffolding_ext.registry import allocation_rules
from scaffolding_ext.request.program import Progress, StepCounts
from scaffolding_ext.stack.build import check_stack
from scaffolding_ext.stack.load import load_config
from scaffolding_ext.testing import ScriptedWorker
from tests.docs.pages import DOCS, ROOT, blocks, files, run
from tests.rounds import replay

AFTERWARDS = """
import threading
for thread in threading.enumerate():
    if thread.name in ("generation-engine", "scaffolding-llm"):
        thread.join(60)
        assert not thread.is_alive(), f"{thread.name} runs on"
"""


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def written(text: str, folder: Path) -> dict[str, str]:
    """The files of a page's text, which are now in the folder."""
    found = files(text)
    for name, content in found.items():
        (folder / name).write_text(content, encoding="utf-8")
    return found


def num_records(folder: Path) -> int:
    return len((folder / "samples.jsonl").read_text(encoding="utf-8").splitlines())


def test_the_python_example_of_the_readme_ends_well_with_samples_that_differ(tmp_path: Path, warm_torch: Path) -> None:
    pytest.importorskip("torch")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = (block.text for block in blocks(readme, "python") if "HuggingFaceWorker" in block.text)
    outcome, answers = run(["python", "-W", "error", "-c", code + AFTERWARDS], tmp_path, warm_torch).stdout.splitlines()
    shown = re.search(r"^```\n(\S+ \S+ \d+)\n(\[.*\])\n```$", readme, re.MULTILINE)
    assert shown is not None
    assert outcome.split()[0] == shown[1].split()[0] == "14"
    assert len(set(ast.literal_eval(answers))) > 1


def test_getting_started(tmp_path: Path, warm_torch: Path) -> None:
    pytest.importorskip("torch")
    text = page("getting_started.md")
    written(text, tmp_path)
    done = run("".join(each.text for each in blocks(text, "bash") if "pip " not in each.text), tmp_path, warm_torch)
    assert re.search(r"^answer +12$", done.stdout, re.MULTILINE)
    assert re.search(r"^answer +6$", done.stdout, re.MULTILINE)
    assert re.search(r"^[\d.]+ of 16 answers, \d+ % saved; all 16 would take about [\d,]+ tokens$", done.stdout, re.M)
    assert re.search(r"^vote .* % saved \(", done.stdout, re.MULTILINE)
    assert [num_records(tmp_path / "runs" / name) for name in ("plain", "mine", "vote", "all")] == [3] * 4
    assert (tmp_path / "report.html").exists()


def test_evaluating(tmp_path: Path, warm_torch: Path) -> None:
    pytest.importorskip("torch")
    text = page("evaluating.md")
    lessons = written(text, tmp_path)["lessons.yaml"]
    (section,) = (block.text for block in blocks(text, "yaml") if "controller" not in block.text)
    assert load_config({**plain_yaml.parse(lessons, "lessons"), **plain_yaml.parse(section, "section")})
    done = run("".join(block.text for block in blocks(text, "bash")), tmp_path, warm_torch)
    assert "stack and dataset are fine: 2 questions, 2 requests" in done.stdout
    assert "Warning: lessons.jsonl: 1 of 3 rows are skipped: line 3: no field 'solution'" in done.stderr
    records = {record.id: record for record in read_records(tmp_path / "runs" / "native" / "samples.jsonl")}
    assert {name: record.target for name, record in records.items()} == {"a": "The answer is 6", "b": "7"}
    table = run(["python", "-W", "error", "compare_runs.py"], tmp_path, warm_torch).stdout
    assert re.search(r"^chains: [0-4] of 4 right, ", table, re.MULTILINE)
    assert re.search(r"^dynasor: [0-4] of 4 right, ", table, re.MULTILINE)


def test_scheduling_by_a_policy_of_your_own() -> None:
    (own,) = blocks(page("scheduling.md").partition("\n## Budgets by type")[0], "python")
    names: dict[str, Any] = {}
    exec(own.text, names)
    assert names["FewestSteps"]().priority(Progress(0, 0.0, steps=StepCounts("vote", 3, 5))) == 5


def test_planning_budgets_by_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = page("scheduling.md").partition("\n## Budgets by type")[2]
    _, types = blocks(text, "yaml")
    Path("types.yaml").write_text(types.text, encoding="utf-8")
    _, commands = blocks(text, "bash")
    for line in commands.text.replace("\\\n", " ").splitlines():
        result = CliRunner().invoke(main, shlex.split(line)[1:])
        assert result.exit_code == 0, result.output
    assert set(check_stack(load_config("planned.yaml")).plan.budgets) == {"sums", "proofs"}


def test_a_vote_by_a_rule_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page("algorithms/majority_vote.md")
    (code,) = blocks(text, "python")
    (tmp_path / "lead_rule.py").write_text(code.text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    kind: type[AllocationRule] = importlib.import_module("lead_rule").Lead
    rule = kind(lead=2)  # type: ignore[call-arg]
    assert replay(rule, [0, 1, -1, 0, 0, 0, 1, 1]).num_samples == 6
    answers = iter(["7", "8", "7", "7", "9", "9"])
    worker = ScriptedWorker(lambda task: rf"\boxed{{{next(answers)}}}")
    with ScaffoldingLlm(
        MajorityVoteController(NativeGenerationController(), 6, allocation=rule), {"generation": worker}
    ) as llm:
        result = llm.generate("Question")
    assert (result.answer, result.exit_reason, len(worker.tasks)) == ("7", "certain", 4)
    (shown,) = re.findall(r"`allocation: (\{.*?\}\})`", text)
    config = load_config("configs:majority_vote", [f"controller.args.allocation={shown}"])
    assert allocation_rules.build(config.controller.args["allocation"]) == rule
