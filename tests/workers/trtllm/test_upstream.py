"""TRTLLMWorker where TensorRT-LLM's own classes are the protocol (a fake of them), under its host and ours."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")
FAKE = Path(__file__).parents[2] / "fake_upstream"
WAIT = 120.0  # seconds until a hanging process fails its test


@pytest.mark.parametrize("release", ["1.2", "1.3.0rc", "newest"])
def test_upstreams_tasks_and_host(release: str, warm_torch: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SCAFFOLDING_EXT_STANDINS"}
    path = os.pathsep.join(filter(None, (str(FAKE), os.environ.get("PYTHONPATH"))))
    environment |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "FAKE_UPSTREAM_RELEASE": release}
    process = subprocess.run(
        [warm_torch / "python", str(FAKE / "scripts" / "trtllm_worker.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    found = json.loads(process.stdout)
    assert found["upstream"]
    chat = found["chat"]
    assert chat["roles"] == ["user", "assistant"]
    assert chat["content"] == chat["output"]
    assert chat["output"]
    assert chat["counted"] == chat["tokens"]
    assert chat["tools"].startswith("tools is set")
    assert chat["dropped"] == ["success", ["ignored"]]
    assert (found["counted"] or 0) > 0 or release != "newest"
    ours, theirs = found["hosts"]
    assert ours["text"] == theirs["text"]
    assert ours["answer"] == theirs["answer"]
    assert ours["decoded"] > 0
