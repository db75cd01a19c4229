"""The package on TensorRT-LLM's own classes and host (a fake of them in `fake_upstream`), and without them."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.protocol import standins

FAKE = Path(__file__).parents[1] / "fake_upstream"
SCRIPT = FAKE / "scripts" / "scenarios.py"
WAIT = 120.0  # seconds until a hanging process fails its test
CASES = (
    "native",
    "native_streaming",
    "dynasor_stream",
    "dynasor_stream_budget",
    "dynasor_chunk",
    "dynasor_chunk_in_turn",
    "budget_short",
    "budget_long",
)


RELEASES = ("1.2", "1.2.1", "1.3.0rc", "newest")


def run_python(
    folder: Path, *arguments: str, path: Path = FAKE, standins: bool = False, release: str = "1.2.1"
) -> subprocess.CompletedProcess[str]:
    """Run the `python` of a folder, with `path` first."""
    environment = {name: value for name, value in os.environ.items() if name != "SCAFFOLDING_EXT_STANDINS"}
    found = os.pathsep.join(filter(None, (str(path), os.environ.get("PYTHONPATH"))))
    environment |= {"PYTHONPATH": found, "OMP_NUM_THREADS": "1", "FAKE_UPSTREAM_RELEASE": release}
    if standins:
        environment["SCAFFOLDING_EXT_STANDINS"] = "1"
    return subprocess.run(
        [folder / "python", *arguments], env=environment, capture_output=True, text=True, timeout=WAIT, check=False
    )


Python = Callable[..., "subprocess.CompletedProcess[str]"]
Scenario = Callable[..., Any]


def scenarios(python: Python) -> Scenario:
    """Gives what a scenario of `fake_upstream/scripts/scenarios.py` gives under a host."""

    @functools.cache
    def give(name: str, host: str, *, path: Path = FAKE, standins: bool = False, release: str = "1.2.1") -> Any:
        process = python("-W", "error", str(SCRIPT), name, host, path=path, standins=standins, release=release)
        assert process.returncode == 0, process.stderr
        return json.loads(process.stdout)

    return give


@pytest.fixture(scope="session")
def python(warm_python: Path) -> Python:
    """Runs Python beside the fake."""
    return functools.partial(run_python, warm_python)


@pytest.fixture(scope="session")
def scenario(python: Python) -> Scenario:
    """Scenarios that need no model."""
    return scenarios(python)


@pytest.fixture(scope="session")
def model_scenario(warm_torch: Path) -> Scenario:
    """Scenarios on an embedded model."""
    return scenarios(functools.partial(run_python, warm_torch))


def altered_fake(folder: Path, file: str, old: str, new: str) -> Path:
    """A copy of the fake with one text of one of its files replaced."""
    shutil.copytree(FAKE / "tensorrt_llm", folder / "tensorrt_llm")
    target = folder / "tensorrt_llm" / "scaffolding" / file
    text = target.read_text()
    assert old in text
    target.write_text(text.replace(old, new))
    return folder


# ---- upstream's classes are the protocol


def test_upstreams_classes_are_the_protocol_where_they_import(scenario: Scenario) -> None:
    classes = scenario("classes", "upstream")
    assert classes["upstream"] is True
    assert all(module.startswith("tensorrt_llm.scaffolding") for module in classes["modules"].values())


def test_our_controllers_and_workers_are_subclasses_of_upstreams(scenario: Scenario) -> None:
    classes = scenario("classes", "upstream")
    for modules in classes["controllers"].values():
        assert "tensorrt_llm.scaffolding.controller" in modules
        assert "scaffolding_ext.protocol.standins" not in modules
    assert "tensorrt_llm.scaffolding.worker" in classes["worker"]


def test_what_upstream_prints_at_its_import_stays_out_of_stdout(python: Python) -> None:
    """A real release prints its version, and warns: `run --json` must begin with our document all the same."""
    process = python("-W", "error", "-c", "from scaffolding_ext import protocol; print(protocol.UPSTREAM)")
    assert (process.returncode, process.stdout) == (0, "True\n"), process.stderr
    assert "TensorRT LLM version" in process.stderr


def test_the_environment_forces_the_stand_ins(scenario: Scenario) -> None:
    classes = scenario("classes", "ours", standins=True)
    assert classes["upstream"] is False
    assert set(classes["modules"].values()) == {"scaffolding_ext.protocol.standins"}


# ---- the same controllers under upstream's host and under ours


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("case", CASES)
def test_a_controller_gives_the_same_under_upstreams_host_and_ours(scenario: Scenario, case: str, release: str) -> None:
    upstream = scenario("scripted", "upstream", release=release)[case]
    assert upstream == scenario("scripted", "ours", standins=True)[case]
    assert upstream["text"]
    assert upstream["ledger"]["total"]["decoded"] > 0


@pytest.mark.parametrize("case", CASES)
def test_our_host_runs_on_upstreams_classes_too(scenario: Scenario, case: str) -> None:
    assert scenario("scripted", "ours")[case] == scenario("scripted", "upstream")[case]


@pytest.mark.parametrize("release", RELEASES)
def test_votes_give_the_same_under_upstreams_host_and_ours(scenario: Scenario, release: str) -> None:
    upstream = scenario("voting", "upstream", release=release)
    assert upstream == scenario("voting", "ours", standins=True)
    assert {vote["answer"] for vote in upstream.values()} == {"17"}
    assert upstream["rounds"]["exit_reason"] == upstream["of_streams"]["exit_reason"] == "certain"
    assert upstream["of_streams"]["votes"][0]["num_samples"] < 5
    assert len(upstream["of_votes"]["votes"]) > 1


@pytest.mark.parametrize("release", ["1.2", "newest"])
def test_votes_on_a_worker_of_upstreams_have_one_trace_under_both_hosts(scenario: Scenario, release: str) -> None:
    upstream = scenario("on_upstreams_worker", "upstream", release=release)
    ours = scenario("on_upstreams_worker", "ours", release=release)
    if release == "1.2":  # its host does not say in which branch somebody runs
        for found in (*upstream.values(), *ours.values()):
            found["trace"] = [{**event, "branch": []} for event in found["trace"]]
    assert upstream == ours
    assert {event["event"] for event in ours["all"]["trace"]} >= {"probe", "stop", "vote"}


def test_unbound_under_upstreams_host_streams_become_chunks_and_the_trace_says_so(scenario: Scenario) -> None:
    unbound = scenario("unbound", "upstream")
    assert unbound["task_types"] == ["GenerationTask"]
    assert unbound["trace"][0]["event"] == "fallback"
    assert unbound["answer"] == "17"


@pytest.mark.parametrize("release", RELEASES)  # the oldest has no execution scopes
def test_queued_requests_have_programs_of_their_own(scenario: Scenario, release: str) -> None:
    """Upstream starts a waiting request in the context of the one that ended, well or not, whose program is there."""
    queued = scenario("queued", "upstream", release=release)
    ours = scenario("queued", "ours", standins=True)
    assert (queued["texts"][2], ours["texts"][2]) == ("NoOutputError", "TaskError")  # only ours says what failed
    assert queued | {"texts": ours["texts"]} == ours
    assert queued["texts"][:2] + queued["texts"][3:] == ours["texts"][:2] + ours["texts"][3:]
    assert queued["num_programs"] == 4


@pytest.mark.parametrize("host", ["ours", "upstream"])
def test_workers_keyed_by_upstreams_enum_are_found_under_either_host(scenario: Scenario, host: str) -> None:
    assert scenario("upstreams_tags", host) == ["x", "x", "x"]


@pytest.mark.parametrize("release", ["1.2", "newest"])
@pytest.mark.parametrize("host", ["ours", "upstream"])
def test_tasks_that_only_upstream_knows_reach_a_worker_of_upstreams(
    scenario: Scenario, host: str, release: str
) -> None:
    """In a `BudgetedWorker`, too, and under a tag that no role of ours has."""
    assert scenario("tools", host, release=release) == {"plain": "<3 + 4 = 7>", "budgeted": "<3 + 4 = 7>"}


def test_our_hosts_seed_reaches_upstreams_controllers(scenario: Scenario) -> None:
    """Every sample of a vote, and every call of a task that is sent again, has a seed of its own; a run repeats."""
    for first, again in scenario("seeds", "ours").values():
        assert first == again
        assert None not in first
        assert len(set(first)) == len(first) >= 4


def test_a_stack_file_may_name_upstreams_controllers(scenario: Scenario) -> None:
    named = scenario("stack", "ours")
    assert named == {"module": "tensorrt_llm.scaffolding.controller", "text": "x"}


def test_our_host_runs_upstreams_majority_vote_over_our_controller(scenario: Scenario) -> None:
    ours, upstream = scenario("majority", "ours"), scenario("majority", "upstream")
    assert ours["texts"] == upstream["texts"] == ["\\boxed{7}", "\\boxed{7}"]
    assert ours["tasks"] == upstream["tasks"] == 8
    first, second = ours["ledgers"]
    assert first == second
    assert first["total"] == {"decoded": 4 * len("\\boxed{7}"), "prefilled": 4, "reused": 0}


def test_upstreams_task_collections_see_our_tasks_and_the_ledger_still_counts(scenario: Scenario) -> None:
    upstream = scenario("collections", "upstream")
    assert (upstream["before"], upstream["after"]) == (3, 3)
    assert upstream == scenario("collections", "ours") == scenario("collections", "ours", standins=True)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("release", RELEASES)
def test_a_silent_failure_raises_under_upstreams_host(scenario: Scenario, case: str, release: str) -> None:
    failed = scenario("failing", "upstream", release=release)[case]
    assert set(failed["output"]) - {"data", "metadata"} == {"text", "token_ids"}
    assert (failed["output"]["text"], failed["output"]["token_ids"]) == ("", [])
    assert failed["told"] == "NoOutputError"
    assert failed["error"] == "NoOutputError"
    assert "left no output" in failed["message"]


def test_the_transformers_worker_gives_the_same_under_both_hosts(model_scenario: Scenario) -> None:
    pytest.importorskip("torch")
    upstream, ours = model_scenario("embedded", "upstream"), model_scenario("embedded", "ours", standins=True)
    for name in ("native", "dynasor"):
        assert upstream[name] == ours[name]
    # A stream runs on while it is probed: how far is a matter of time, and only what is counted as discarded shows it.
    streams = [host["dynasor_stream"] | {"ledger": None} for host in (upstream, ours)]
    for stream in streams:  # so are the pauses of a stream that is far ahead
        stream["trace"] = [event for event in stream["trace"] if event["event"] not in ("paused", "late")]
    assert streams[0] == streams[1]
    assert upstream["native"]["ledger"]["total"]["decoded"] == 60
    assert upstream["dynasor"]["ledger"]["by_purpose"]["probe"]["decoded"] > 0


@pytest.mark.parametrize("release", RELEASES)
def test_the_integration_tests_pass_on_the_fake_and_end_without_a_warning_of_what_is_left(
    python: Python, release: str
) -> None:
    tests = Path(__file__).parents[1] / "integration" / "test_tensorrt_llm.py"
    process = python("-m", "pytest", "-q", "-m", "integration", "-p", "no:cacheprovider", str(tests), release=release)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "ExceptionGroup" not in process.stdout + process.stderr


# ---- hosts that cannot be used


def why_standins(python: Python, path: Path) -> str:
    """The warning of an import that takes the stand-ins."""
    process = python("-c", "import scaffolding_ext.protocol as p; assert not p.UPSTREAM and p.WHY_STANDINS", path=path)
    assert process.returncode == 0, process.stderr
    assert "RuntimeWarning: tensorrt_llm is installed, but its Scaffolding cannot be used" in process.stderr
    return process.stderr


def test_a_host_without_result_fields_on_the_task_gives_the_stand_ins_with_a_word(
    scenario: Scenario, python: Python, tmp_path: Path
) -> None:
    """As 1.0 and 1.1, whose results are properties."""
    path = altered_fake(tmp_path, "task.py", "    output_str: str | None = None\n", "")
    assert "its GenerationTask has no field output_str: that is a release below 1.2" in why_standins(python, path)
    assert scenario("classes", "ours", path=path, standins=True)["upstream"] is False


def test_a_host_that_lacks_a_module_says_which(python: Python, tmp_path: Path) -> None:
    path = altered_fake(tmp_path, "__init__.py", '"""The fake\'s public names."""', "import mcp_of_nobody")
    assert "it needs the module 'mcp_of_nobody', which is not installed: pip install mcp_of_nobody" in why_standins(
        python, path
    )
    tests = Path(__file__).parents[1] / "integration" / "test_tensorrt_llm.py"
    process = python("-m", "pytest", "-q", "-m", "integration", "-p", "no:cacheprovider", str(tests), path=path)
    assert process.returncode != 0, "the tests were skipped in silence"
    assert "mcp_of_nobody" in process.stdout + process.stderr


@pytest.mark.parametrize("failure", ["OSError('libcuda.so.1: no such file')", "RuntimeError('no driver')"])
def test_a_host_that_fails_to_import_gives_the_stand_ins_with_a_warning(
    python: Python, tmp_path: Path, failure: str
) -> None:
    path = altered_fake(tmp_path, "__init__.py", '"""The fake\'s public names."""', f"raise {failure}")
    assert failure.split("'")[1] in why_standins(python, path)


@pytest.mark.parametrize("release", ["1.2", "newest"])
def test_the_migration_guides_lines_put_prompts_into_the_models_template(
    model_scenario: Scenario, release: str
) -> None:
    pytest.importorskip("transformers")
    asked = model_scenario("migrating", "upstream", release=release)
    assert asked["prompt"].startswith("<|user|>")
    assert asked["printed"]


# ---- the stand-ins' fields are those of the real classes


def test_chats_are_made_as_upstream_makes_them() -> None:
    chat = standins.ChatTask.create_from_prompt("How?", [standins.SystemMessage("Be short.")], tools=["t"])
    assert (type(chat), chat.tools, chat.input_str) == (standins.ChatTask, ["t"], None)
    assert [(each.role, each.content) for each in chat.messages] == [("system", "Be short."), ("user", "How?")]
    assert chat.last_assistant_content() == ""
    chat.add_messages([standins.AssistantMessage("So."), standins.ToolMessage("7", "call-1", trace_stderr="slow")])
    assert chat.last_assistant_content() == "So."
    assert chat.messages_to_dict_content(3) == [
        {"role": "tool", "content": "7", "tool_call_id": "call-1", "trace_stderr": "slow"}
    ]
    assert standins.ChatTask.create_from_prompt(None).messages == []


def test_tools_are_described_and_called_as_upstream_does() -> None:
    tool = standins.OpenAIToolDescription("add", "Add.", {"a": {"type": "integer"}})
    assert tool.to_dict()["function"]["parameters"] == {"type": "object", "properties": {"a": {"type": "integer"}}}
    call = standins.MCPCallTask.create_mcptask("call-1", "add", {"a": 1}, "mcp")
    assert (call.worker_tag, call.tool_call_id, call.tool_name, call.args) == ("mcp", "call-1", "add", {"a": 1})


def test_a_streaming_task_takes_over_a_plain_ones_fields() -> None:
    plain = standins.GenerationTask(input_str="a", max_tokens=3, temperature=0.5)
    stream = standins.StreamGenerationTask.create_from_generation_task(plain, 8)
    assert (stream.input_str, stream.max_tokens, stream.temperature, stream.streaming_step) == ("a", 3, 0.5, 8)


def test_the_stand_ins_process_what_upstreams_controllers_yield() -> None:
    class Fork(standins.Controller):
        def process(self, tasks: list[Any], **kwargs: Any) -> standins.ControllerGenerator:
            yield tasks

    controllers = [Fork(), Fork()]
    fork = standins.ParallelProcess(controllers, [[standins.Task()], []], [{}, {}], branch_paths=[(0,), (1,)])
    assert [next(iter(branch)) for branch in fork.sub_gens] == [[standins.Task()], []]
    assert fork.branch_paths == [(0,), (1,)]
    with pytest.raises(ValueError):
        standins.ParallelProcess(controllers, [[]], [{}, {}])


def test_a_worker_serves_the_exact_type_only() -> None:
    class Plain(standins.Worker):
        async def serve(self, task: Any) -> standins.TaskStatus:
            return standins.TaskStatus.SUCCESS

        task_handlers = {standins.GenerationTask: serve}  # noqa: RUF012  (as upstream)

    status = asyncio.run(Plain().run_task(standins.StreamGenerationTask()))
    assert status is standins.TaskStatus.WORKER_NOT_SUPPORTED
    assert asyncio.run(Plain().run_task(standins.GenerationTask())) is standins.TaskStatus.SUCCESS
