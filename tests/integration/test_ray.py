"""An evaluation on Ray actors of which one is killed, or is gone for good: the records of one process, each once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from scaffolding_ext.evaluation.run.records import Record, read_records

pytest.importorskip("ray")
pytestmark = [pytest.mark.integration, pytest.mark.slow]

NUM_SAMPLES, PARALLEL = 40, 4
HELPERS = """
import asyncio, os, signal
from scaffolding_ext.testing import ScriptedWorker

async def before(task):
    line = f"{os.getpid()} {task.input_str.split()[-1]}\\n"
    os.write(os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), line.encode())
    await asyncio.sleep(0.01)
    for order in ("kill", "kill for good"):
        if os.path.exists(order) and task.input_str.endswith(" 17"):
            os.rename(order, order + "ed")
            os.kill(os.getpid(), signal.SIGKILL)

class Logged(ScriptedWorker):
    def __init__(self):
        if os.path.exists("kill for gooded"):
            raise MemoryError("no room for the model")
        super().__init__(lambda task: f"It is \\\\boxed{{{task.input_str.split()[-1]}}}.", before=before)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ray_helpers.py").write_text(HELPERS)
    stack = {
        "controller": {"type": "NativeGenerationController", "args": {"sampling_params": {"temperature": 1.0}}},
        "workers": {"generation": {"type": "ray_helpers:Logged"}},
        "max_parallel_requests": PARALLEL,
        "seed": 5,
        "dataset": "data.jsonl",
    }
    (tmp_path / "stack.yaml").write_text(json.dumps(stack))
    rows = [{"question": f"say {i}", "answer": i if i % 2 else -1} for i in range(NUM_SAMPLES)]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def run_eval(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "scaffolding_ext", "eval", "--config", "stack.yaml", *options]
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "RAY_ADDRESS": "local"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def outcomes(path: Path) -> list[Record]:
    records = sorted(read_records(path), key=lambda record: int(record.id))
    for record in records:
        record.seconds.clear()
    return records


def test_a_killed_actor_costs_only_what_it_had_in_flight(folder: Path) -> None:
    run_eval(folder, "--output_path", "local")
    (folder / "log").unlink()
    (folder / "kill").touch()
    actors = ["--set", "evaluation.num_actors=2", "--output_path", "ray"]
    run_eval(folder, *actors, "--limit", "30")
    assert (folder / "killed").exists()
    begun = [line.split() for line in (folder / "log").read_text().splitlines()]
    times = Counter(number for _, number in begun)
    assert times["17"] == 2
    assert sum(times.values()) <= 30 + PARALLEL  # what was in flight with it is repeated, and nothing else
    assert len({pid for pid, _ in begun}) == 3  # two actors, and the one that took the place of the killed
    summary = json.loads(run_eval(folder, *actors, "--resume", "--json"))["summary"]
    assert (summary["num_failed"], summary["num_correct"]) == (0, NUM_SAMPLES // 2)
    assert outcomes(folder / "ray" / "samples.jsonl") == outcomes(folder / "local" / "samples.jsonl")


def test_an_actor_that_is_gone_for_good_loses_nothing_and_repeats_nothing(folder: Path) -> None:
    run_eval(folder, "--output_path", "local")
    (folder / "log").unlink()
    (folder / "kill for good").touch()
    summary = json.loads(run_eval(folder, "--set", "evaluation.num_actors=3", "--output_path", "ray", "--json"))[
        "summary"
    ]
    assert (folder / "kill for gooded").exists()
    begun = [line.split() for line in (folder / "log").read_text().splitlines()]
    assert len({pid for pid, _ in begun}) == 3
    assert len(begun) <= NUM_SAMPLES + PARALLEL  # what was in flight with it is repeated, and nothing else
    assert (summary["num_failed"], summary["num_correct"]) == (0, NUM_SAMPLES // 2)
    assert outcomes(folder / "ray" / "samples.jsonl") == outcomes(folder / "local" / "samples.jsonl")
