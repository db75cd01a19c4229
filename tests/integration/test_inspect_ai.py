"""inspect_ai itself runs tasks on an embedded stack, and its log holds our ledger."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("inspect_ai")

pytestmark = pytest.mark.integration
SCRIPT = """
import sys
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate
from scaffolding_ext.evaluation.run.datasets import load_dataset
from scaffolding_ext.plugins.inspect_ai import STORE, stack

DRAFT = ["workers.generation.args.model=tinylm/draft"]
boxed = "boxed{{{}}}".format
problems = load_dataset("tinylm:held_out", num_samples=2)
samples = [Sample(input=one.prompt, target=boxed(one.target), id=one.id) for one in problems]
for solver, arguments in ((generate(), {"overrides": DRAFT}), (stack("configs:dynasor_cot", DRAFT), {})):
    task = Task(dataset=samples, solver=solver, scorer=includes(), epochs=2)
    model = "scaffolding_ext/configs:dynasor_cot" if arguments else "mockllm/model"
    (log,) = eval(task, model=model, model_args=arguments, log_dir=sys.argv[1], display="none")
    assert log.status == "success", log.error
    assert len(log.samples) == 4
    told = [sample.output.metadata for sample in log.samples]
    assert len({one["seed"] for one in told}) == 4
    for sample, one in zip(log.samples, told):
        assert one["ledger"]["by_purpose"]["probe"]["decoded"] > 0
        assert sample.output.usage.output_tokens == one["ledger"]["total"]["decoded"]
        assert any(event["event"] == "probe" for event in one["trace"])
        assert (sample.scores["includes"].value == "C") == (boxed(one["answer"]) == sample.target)
        assert arguments or sample.store[STORE]["ledger"] == one["ledger"]
print("both ran")
"""


def test_a_model_and_a_solver_leave_their_ledgers_in_its_log(tmp_path: Path) -> None:
    environment = os.environ | {"INSPECT_TRACE_FILE": str(tmp_path / "trace")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("both ran\n")
