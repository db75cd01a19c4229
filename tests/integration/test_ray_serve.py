"""The application for Ray Serve of docs/serving.md, as it stands there: two replicas behind Ray's proxy."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import free_port, running

pytest.importorskip("ray.serve")
openai = pytest.importorskip("openai")
pytestmark = [pytest.mark.integration, pytest.mark.slow]

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
QUESTION = {"role": "user", "content": "Start with 5. Apply a+3,b-2. Find the total."}


def test_the_application_of_the_page_answers_whole_and_streamed(tmp_path: Path) -> None:
    example = re.search(r"```python\n(# stacks\.py\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    (tmp_path / "stacks.py").write_text(example[1])
    port, file = free_port(), tmp_path / "serve.yaml"
    document = {"http_options": {"port": port}, "applications": [{"name": "stacks", "import_path": "stacks:app"}]}
    file.write_text(json.dumps(document))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"}
    command = [str(Path(sys.executable).with_name("serve")), "run", str(file)]
    with (
        running(lambda _: command, tmp_path / "log", environment, port) as server,
        openai.OpenAI(base_url=server.url, api_key="none", timeout=240.0) as client,
    ):
        assert [model.id for model in client.models.list()] == ["vote"]
        ask = {"model": "vote", "messages": [QUESTION], "seed": 1}
        whole = client.chat.completions.create(**ask).choices[0]
        assert whole.scaffolding["answer"] == "6"
        chunks = list(client.chat.completions.create(**ask, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.message.content
