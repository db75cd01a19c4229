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

UNTIL = """
import sys
from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ModelOutput
from inspect_ai.scorer import match
from inspect_ai.solver import solver
from scaffolding_ext.plugins.inspect_ai import Until

@solver
def answers(every):
    async def solve(state, generate):
        state.output = ModelOutput.from_content("none", "7" if state.sample_id % every else "8")
        return state
    return solve

def run(every, until=None, shuffles=True):
    questions = MemoryDataset([Sample(input=f"q{number}", target="7", id=number) for number in range(300)])
    if shuffles:
        questions.shuffle(1)
    task = Task(questions, solver=answers(every), scorer=match(), early_stopping=until)
    (log,) = eval(task, model="mockllm/model", log_dir=sys.argv[1], display="none", max_samples=4)
    return log

stopping = run(5, Until("±7")).results.early_stopping
assert stopping.metadata["conclusion"] == "known"
assert len(stopping.early_stops) == stopping.metadata["num_spared"] > 100
plain = run(5)
compared = run(2, Until(f"vs {plain.location}")).results.early_stopping.metadata
assert compared["conclusion"] == "worse" and compared["num_spared"] > 200
refused = run(5, Until("±7"), shuffles=False)
assert refused.status == "error" and "random order" in refused.error.message
print("stopped")
"""


def test_a_task_ends_when_its_result_is_known(tmp_path: Path) -> None:
    environment = os.environ | {"INSPECT_TRACE_FILE": str(tmp_path / "trace")}
    done = subprocess.run(
        [sys.executable, "-c", UNTIL, str(tmp_path)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout.endswith("stopped\n"), done.stderr


def test_a_model_and_a_solver_leave_their_ledgers_in_its_log(tmp_path: Path) -> None:
    environment = os.environ | {"INSPECT_TRACE_FILE": str(tmp_path / "trace")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("both ran\n")
