"""The warm Python of the tests is a Python: what it is given, says and ends with, and that it ends with its caller."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

SHOW = (
    "import os, sys; print(sys.argv, sys.path[:2], os.getcwd(), os.environ['GIVEN'], sys.stdin.read(), sys.warnoptions)"
)


@pytest.mark.parametrize(("ending", "code"), [("", 0), ("; sys.exit(7)", 7), ("; raise ValueError('why')", 1)])
def test_it_gives_what_python_gives(warm_python: Path, tmp_path: Path, ending: str, code: int) -> None:
    environment = {**os.environ, "PYTHONPATH": "/first:/second", "GIVEN": "this"}
    told = [
        subprocess.run(
            [python, "-W", "error", "-c", SHOW + ending, "an", "argument"],
            cwd=tmp_path,
            env=environment,
            input="what is read",
            capture_output=True,
            text=True,
            check=False,
        )
        for python in (warm_python / "python", sys.executable)
    ]
    warm, cold = ((each.returncode, each.stdout, each.stderr.splitlines()[-1:]) for each in told)
    assert warm == cold
    assert warm[0] == code
    assert "what is read" in warm[1]


def test_files_and_modules_run_as_the_main_one(warm_python: Path, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("NUMBER = 3")
    (tmp_path / "script.py").write_text("import sys, beside\nprint(__name__, sys.argv[1:], beside.NUMBER)")
    for how in (["script.py"], ["-m", "script"]):
        done = subprocess.run(
            [warm_python / "python", *how, "x"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout == "__main__ ['x'] 3\n"


def test_it_ends_with_its_caller(warm_python: Path) -> None:
    code = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
    read, write = os.pipe()  # nobody writes into it, and it is never at its end
    with subprocess.Popen(
        [warm_python / "python", "-c", code], stdin=read, stdout=subprocess.PIPE, text=True
    ) as caller:
        assert caller.stdout is not None
        process = os.pidfd_open(int(caller.stdout.readline()))
        caller.kill()
        assert select.select([process], [], [], 60.0)[0]  # it has ended
    for file in (read, write, process):
        os.close(file)
