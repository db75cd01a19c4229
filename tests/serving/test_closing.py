"""A thinking model that says nothing is made to answer, once, and counted; else the client gets an error by name."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.errors import EngineError
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol.meta import CONTINUED_TURNS
from scaffolding_ext.serving.thinking import closing_of
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.workers.openai.worker import OpenAIWorker
from tests.servers.openai_server import OpenAIServer

MODEL = "tinylm/target"
QUESTION = "What is 6 * 7?"
THINKING = "Okay, by columns first. " * 13
SAID = "It is \\boxed{42}."
PLAIN = {"max_tokens": 200}


@pytest.fixture(scope="module")
def prompting() -> Prompting:
    return Prompting.for_model(MODEL)


class Speaking(ScriptedWorker):
    """Writes a chain in the model's tokens, and an answer where its thinking has been closed for it."""

    model = MODEL  # type: ignore[misc, assignment]

    def __init__(self, prompting: Prompting, chain: str, said: str = SAID, boxed: str = "42}.") -> None:
        self._prompting, self._chain, self._said, self._boxed = prompting, chain, said, boxed
        super().__init__(self._reply)

    def _reply(self, task: Any) -> list[int]:
        read = task.input_str or self._prompting.decode(task.input_tokens)
        if read.endswith("boxed{"):
            return self._prompting.encode(self._boxed)
        is_closed = read.rstrip().endswith("</think>")
        return self._prompting.encode(self._said if is_closed else self._chain)

    def _write(self, task: Any, generation: Any, num_tokens: int) -> None:
        super()._write(task, generation, num_tokens)
        task.output_str = self._prompting.decode(task.output_tokens)


class Read:
    """The response to a client: a status, the text said, the thinking, and the end."""

    def __init__(self, url: str, endpoint: str, stream: bool, **fields: Any) -> None:
        body: dict[str, Any] = {"model": "model", "stream": stream, **fields}
        is_chat = endpoint == "chat"
        body |= {"messages": [{"role": "user", "content": QUESTION}]} if is_chat else {"prompt": QUESTION}
        path = "chat/completions" if is_chat else "completions"
        head = {"content-type": "application/json"}
        asked = urllib.request.Request(f"{url}/v1/{path}", json.dumps(body).encode(), head)
        try:
            with urllib.request.urlopen(asked, timeout=60) as reply:
                self.status, text = reply.status, reply.read().decode()
        except urllib.error.HTTPError as failure:
            with failure:
                self.status, text = failure.code, failure.read().decode()
        self.content, self.reasoning = "", ""
        self.error: Any = None
        self.extras: dict[str, Any] = {}
        if stream and self.status == 200:
            lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
            assert lines[-1] == "[DONE]"
            documents = [json.loads(line) for line in lines[:-1]]
        else:
            documents = [json.loads(text)]
        for document in documents:
            self.error = document.get("error", self.error)
            for choice in document.get("choices", ()):
                part = choice.get("message") or choice.get("delta") or choice
                self.content += part.get("content") or part.get("text") or ""
                self.reasoning += part.get("reasoning_content") or ""
                self.extras = choice.get("scaffolding") or self.extras


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("chain", "fields", "cause"),
    [
        ("I think of columns.", {}, "open_thinking"),
        (THINKING, {"max_tokens": 30}, "length"),
        ("", {}, "empty"),
    ],
)
def test_a_chat_that_says_nothing_is_closed_once(
    serve: Any, prompting: Prompting, chain: str, fields: dict[str, int], cause: str, stream: bool
) -> None:
    worker = Speaking(prompting, chain)
    served = serve(controller=NativeGenerationController(PLAIN), model_worker=worker)
    read = Read(served.url, "chat", stream, **fields)
    assert read.status == 200
    assert read.content.endswith(SAID)
    assert "</think>" not in read.content
    assert read.reasoning.strip() == (prompting.decode(prompting.encode(chain)[:30]).partition("</think>")[0].strip())
    assert read.extras["forced_answers"] == {cause: 1}
    assert read.extras["answer"] == "42"
    assert len(worker.tasks) == 2
    assert served.metric("scaffolding_forced_answers_total", cause=cause, model="model") == 1
    assert served.metric("scaffolding_forced_answers_total") == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("chain", "said", "num_tasks"),
    [("I think.</think>", SAID, 2), ("I think.", "", 3)],
)
def test_where_it_says_nothing_freely_the_answer_is_begun_for_it(
    serve: Any, prompting: Prompting, chain: str, said: str, num_tasks: int, stream: bool
) -> None:
    worker = Speaking(prompting, chain, said)
    served = serve(controller=NativeGenerationController(PLAIN), model_worker=worker)
    read = Read(served.url, "chat", stream)
    assert read.content == "The answer is \\boxed{42}."
    assert read.extras["answer"] == "42"
    assert len(worker.tasks) == num_tasks
    assert served.metric("scaffolding_forced_answers_total") == 1


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_there_is_left_alone(serve: Any, prompting: Prompting, endpoint: str, stream: bool) -> None:
    worker = Speaking(prompting, f"I think.</think>{SAID}")
    served = serve(controller=NativeGenerationController(PLAIN), model_worker=worker)
    read = Read(served.url, endpoint, stream)
    assert read.content.endswith(SAID)
    assert "forced_answers" not in read.extras
    assert len(worker.tasks) == 1
    assert served.metric("scaffolding_forced_answers_total") == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("endpoint", "chain"), [("chat", "I think of columns."), ("completions", "")])
def test_where_even_that_says_nothing_the_client_gets_an_error_by_name(
    serve: Any, prompting: Prompting, endpoint: str, chain: str, stream: bool
) -> None:
    worker = Speaking(prompting, chain, said=" \n", boxed="")
    served = serve(controller=NativeGenerationController(PLAIN), model_worker=worker)
    read = Read(served.url, endpoint, stream)
    assert read.error is not None
    assert read.error["code"] == "no_answer"
    assert read.content == ""
    assert read.status == (200 if stream and read.reasoning else 502)
    assert len(worker.tasks) == 3  # its chain, and both ways of asking
    assert served.metric("scaffolding_forced_answers_total") == 0
    assert served.metric("scaffolding_exits_total", reason="no_answer") == 1
    assert served.metric("scaffolding_tokens_total", how="prefilled") > 0  # a failed request has cost tokens, too


def test_a_worker_that_fails_when_it_is_asked_is_an_error_by_name(serve: Any, prompting: Prompting) -> None:
    class Failing(Speaking):
        def _reply(self, task: Any) -> list[int]:
            if len(self.tasks) > 1:
                raise EngineError("the server is gone")
            return super()._reply(task)

    served = serve(controller=NativeGenerationController(PLAIN), model_worker=Failing(prompting, "I think."))
    read = Read(served.url, "chat", False)
    assert (read.status, read.error["code"]) == (502, "engine_error")


def test_a_worker_that_cannot_go_on_with_an_answer_is_not_asked(serve: Any, prompting: Prompting) -> None:
    worker = Speaking(prompting, "I think.")
    worker.refused = {CONTINUED_TURNS: "its server cannot"}  # type: ignore[attr-defined]
    served = serve(controller=NativeGenerationController(PLAIN), model_worker=worker)
    read = Read(served.url, "chat", False)
    assert (read.status, read.error["code"]) == (502, "no_answer")
    assert "its server cannot" in read.error["message"]


CONTROLLERS: dict[str, Callable[[], Any]] = {
    "dynasor": lambda: DynasorCoTController(200, 99),
    "budget": lambda: BudgetForcingController(40),
    "vote": lambda: MajorityVoteController(NativeGenerationController({"temperature": 0.7, **PLAIN}), 2),
}


@pytest.mark.parametrize("chain", ["", THINKING * 3])
@pytest.mark.parametrize("name", CONTROLLERS)
def test_every_controller_gives_an_answer(serve: Any, prompting: Prompting, name: str, chain: str) -> None:
    served = serve(controller=CONTROLLERS[name](), model_worker=Speaking(prompting, chain))
    read = Read(served.url, "chat", False)
    assert read.status == 200
    assert "42" in read.content
    assert served.metric("scaffolding_forced_answers_total") >= 1


@pytest.mark.filterwarnings("ignore:the model's chat template has no <think>")
@pytest.mark.parametrize(
    ("family", "text", "cause"),
    [
        ("smollm2", "It is Tokyo.", "no_answer"),
        ("qwen3", "<think>It is Tokyo.", "open_thinking"),
        ("qwen3", "It is Tokyo.", "no_answer"),
    ],
)
def test_the_chat_template_decides_whether_a_text_without_an_answer_counts_as_thinking(
    serve: Any, saved_model: Any, family: str, text: str, cause: str
) -> None:
    class Capital(ScriptedWorker):
        model = saved_model(family)

    worker = Capital(lambda task: "Tokyo}" if (task.input_str or "").endswith("boxed{") else text)
    served = serve(controller=DynasorCoTController(200, 99, mode="chunk"), model_worker=worker)
    read = Read(served.url, "chat", False)
    assert served.stack.thinks is (family == "qwen3")
    assert (read.extras["answer"], read.extras["forced_answers"]) == ("Tokyo", {cause: 1})
    assert served.metric("scaffolding_forced_answers_total", cause=cause, model="model") == 1


def test_a_stop_string_that_leaves_nothing_is_what_the_client_asked_for(serve: Any, prompting: Prompting) -> None:
    worker = Speaking(prompting, f"I think.</think>{SAID}")
    served = serve(controller=NativeGenerationController(PLAIN), model_worker=worker)
    read = Read(served.url, "chat", False, stop=["It"])
    assert (read.status, read.content) == (200, "")
    assert len(worker.tasks) == 1


def test_a_model_that_does_not_think_may_say_nothing(serve: Any) -> None:
    served = serve("")
    read = Read(served.url, "chat", False)
    assert (read.status, read.content) == (200, "")


def test_a_chain_that_loops_is_counted(serve: Any, prompting: Prompting) -> None:
    served = serve(
        controller=NativeGenerationController({"max_tokens": 1000}), model_worker=Speaking(prompting, THINKING * 10)
    )
    read = Read(served.url, "chat", True)
    assert read.extras["exit_reason"] == "loop"
    assert "42" in read.content
    assert served.metric("scaffolding_forced_answers_total", cause="loop") == 1
    assert served.metric("scaffolding_exits_total", reason="loop") == 1


# ---- budgets of thinking


@pytest.fixture
def over_server(prompting: Prompting, serve: Any) -> Iterator[Callable[..., Any]]:
    """Serves a stack over a double of a server."""
    with contextlib.ExitStack() as stack:

        def start(chain: str, flavor: str = "vllm", **options: Any) -> Any:
            server = stack.enter_context(
                OpenAIServer(
                    Speaking(prompting, chain, **options),
                    MODEL,
                    flavor=flavor,
                    encode=prompting.encode,
                    decode=prompting.decode,
                )
            )
            worker = stack.enter_context(
                OpenAIWorker(server.url, MODEL, flavor=flavor, max_seq_len=2048, max_retries=0)
            )
            return serve(controller=NativeGenerationController(PLAIN), model_worker=worker)

        yield start


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("flavor", ["vllm", "trtllm"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_budget_that_the_server_ignored_is_kept_and_told(
    over_server: Any, flavor: str, stream: bool, endpoint: str
) -> None:
    served = over_server(f"{THINKING}</think>{SAID}", flavor)
    read = Read(served.url, endpoint, stream, thinking_budget=20)
    assert "42" in read.content
    events = read.extras["thinking_budget"]
    assert events[0]["overran_by"] > 8
    kept = events[-1] if endpoint == "chat" else events[0]  # of a raw prompt nobody knows what of it is thinking
    assert kept["by"] == ("serve" if endpoint == "chat" else "controller")
    assert kept["asked"] == kept["num_thinking"] == 20
    assert served.metric("scaffolding_forced_answers_total", cause="budget_ignored") == 1


@pytest.mark.parametrize("name", ["thinking_budget", "thinking_token_budget"])
def test_a_budget_that_is_kept_is_verified(over_server: Any, prompting: Prompting, name: str) -> None:
    thinking = prompting.decode(prompting.encode(THINKING)[:18])
    served = over_server(f"{thinking}</think>{SAID}")
    read = Read(served.url, "chat", False, **{name: 20})
    assert read.content == SAID
    last = read.extras["thinking_budget"][-1]
    assert (last["by"], last["num_thinking"], last["overran_by"]) == ("serve", 18, 0)


def test_one_name_of_the_budget_is_enough(over_server: Any) -> None:
    served = over_server(SAID)
    read = Read(served.url, "chat", False, thinking_budget=20, thinking_token_budget=20)
    assert (read.status, read.error["param"]) == (400, "thinking_token_budget")
    read = Read(served.url, "chat", False, thinking_budget=20, reasoning_effort="low")
    assert (read.status, read.error["param"]) == (400, "reasoning_effort")


@pytest.mark.parametrize(
    ("name", "closing"),
    [
        ("deepseek_r1", "\n\n...</think>"),
        ("magistral", "\n\n...[/THINK]"),
        ("gpt_oss", "\n\n...<|end|><|start|>assistant<|channel|>final<|message|>"),
    ],
)
def test_thinking_is_closed_as_its_family_closes_it(name: str, closing: str) -> None:
    assert closing_of(family_named(name)) == closing
