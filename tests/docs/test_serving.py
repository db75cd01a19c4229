"""docs/serving.md: its curl lines run, and its dashboard names metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.server import FrontThread
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.stack.build import build_stack
from scaffolding_ext.stack.load import load_config
from tests.docs.pages import DOCS, blocks, run

CURL = blocks((DOCS / "serving.md").read_text(encoding="utf-8"), "bash")[0].text
WORKERS = json.dumps({"generation": {"type": "ScriptedWorker", "args": {"respond": "It is \\boxed{6}."}}})


@pytest.fixture
def url() -> Iterator[str]:
    limits = Limits()
    stacks = []
    for name, packaged in (("dynasor_cot", "dynasor_cot"), ("vote", "majority_vote")):
        own = ["controller.args.rule=consecutive"] if name == "dynasor_cot" else []  # the worker has no probabilities
        config = load_config(f"configs:{packaged}", [f"workers={WORKERS}", "prompt=null", *own])
        stacks.append(ServedStack(name, build_stack(config), limits, config=config))
    with FrontThread(Front(stacks, limits)) as running:
        yield running.url


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_curl_lines_run(url: str, tmp_path: Path) -> None:
    commands = re.split(r"\n(?=curl )", CURL.strip())
    answers = [run(command, tmp_path, Path("/usr/bin"), URL=url).stdout for command in commands]
    models, chat, stream, knobs, text, ready, metrics = answers
    assert [model["id"] for model in json.loads(models)["data"]] == ["dynasor_cot", "vote"]
    assert json.loads(chat)["choices"][0]["scaffolding"]["exit_reason"]
    assert stream.rstrip().endswith("data: [DONE]")
    told = json.loads(knobs)["choices"][0]["scaffolding"]
    assert told["trace"]
    assert told["thinking_budget"][0]["asked"] == 64
    assert json.loads(text)["object"] == "text_completion"
    assert json.loads(ready)["status"] == "ready"
    names = set(re.findall(r"scaffolding_[a-z_]+", (DOCS / "grafana_dashboard.json").read_text(encoding="utf-8")))
    assert names <= set(re.findall(r"^(?:# TYPE )?(scaffolding_[a-z_]+)", metrics, re.MULTILINE))
