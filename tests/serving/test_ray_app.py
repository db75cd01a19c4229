"""The application for Ray Serve, as far as it can be seen without a cluster."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.errors import ConfigError, ShutdownError


def test_without_ray_the_error_says_how_it_is_installed() -> None:
    code = (
        "import sys\n"
        "sys.modules['ray'] = None\n"
        "from scaffolding_ext.errors import MissingDependencyError\n"
        "try:\n"
        "    import scaffolding_ext.serving.ray_app\n"
        "except MissingDependencyError as error:\n"
        "    assert str(error).endswith(\"pip install '.[ray]'\"), error\n"
        "else:\n"
        "    raise SystemExit('nothing was raised')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.fixture
def stack(tmp_path: Path) -> str:
    path = tmp_path / "stack.yaml"
    path.write_text(
        "controller: {type: NativeGenerationController}\n"
        "workers: {generation: {type: ScriptedWorker, args: {respond: '\\boxed{7}'}}}\n"
    )
    return str(path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"stacks": {}}, "args.stacks: "),
        ({"stack": {}}, "args.stack"),
        ({"limits": {"max_second": 3}}, "limits: has max_second; it takes: max_body_bytes"),
        ({"limits": {"max_seconds": 0}}, "max_seconds: is 0"),
        ({"overrides": {"max_parallel_requests": 0}}, "max_parallel_requests"),
        ({"allow": ["a<=b"]}, "allow: is 'a<=b'"),
    ],
)
def test_wrong_arguments_are_named_before_a_replica_starts(stack: str, changed: Any, message: str) -> None:
    ray_app = pytest.importorskip("scaffolding_ext.serving.ray_app", exc_type=ImportError)
    with pytest.raises(ConfigError) as caught:
        ray_app.application({"stacks": {"said": stack}} | changed)
    assert message in str(caught.value)


def test_a_replica_serves_its_stacks_and_is_unhealthy_once_one_has_stopped(stack: str) -> None:
    ray_app = pytest.importorskip("scaffolding_ext.serving.ray_app", exc_type=ImportError)
    from scaffolding_ext.stack.load import load_config

    arguments = ray_app.Arguments(stacks={"said": stack})
    replica = ray_app.Replica({"said": load_config(stack)}, arguments)
    asyncio.run(replica.check_health())
    front = ray_app.Replica.current
    assert list(front.stacks) == ["said"]
    front.stacks["said"].llm.shutdown()
    with pytest.raises(ShutdownError, match="the stacks said have stopped"):
        asyncio.run(replica.check_health())
