"""Six faults of TensorRT-LLM, shown on its own text; `upstream_faults.md` beside it describes each with its remedy.

Each test takes the functions that it is about out of the sources and runs them alone, or reads them, so that neither a
GPU nor an installation is needed. A test that fails says that the fault is mended.

    SCAFFOLDING_UPSTREAM_SOURCES=~/TensorRT-LLM pytest -m integration tests/integration/test_upstream_faults.py
"""

from __future__ import annotations

import ast
import asyncio
import collections
import os
import threading
import typing
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SOURCE = "SCAFFOLDING_UPSTREAM_SOURCES"
WAIT = 5.0  # seconds; a reader that is woken answers in some milliseconds
pytestmark = pytest.mark.integration
if not os.environ.get(SOURCE):
    pytest.skip(f"{SOURCE} names no checkout of TensorRT-LLM", allow_module_level=True)
PACKAGE = Path(os.environ.get(SOURCE, "")) / "tensorrt_llm"


def tree(path: str) -> ast.Module:
    file = PACKAGE / path
    assert file.is_file(), f"{SOURCE} must hold {file}"
    return ast.parse(file.read_text(encoding="utf-8"))


def named(node: ast.AST, *names: str) -> Any:
    """A class or function inside the node, by the names on the way to it."""
    for name in names:
        node = next(
            each
            for each in ast.walk(node)
            if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and each.name == name
        )
    return node


def made(node: Any, **names: Any) -> Any:
    """What the definition makes, with these global names; annotations stay text."""
    node.decorator_list = []
    future = ast.parse("from __future__ import annotations").body
    space = {**vars(typing), "asyncio": asyncio, "collections": collections, **names}
    exec(compile(ast.fix_missing_locations(ast.Module([*future, node], [])), "upstream", "exec"), space)
    return space[node.name]


def fields_of(classes: ast.Module, name: str) -> set[str]:
    """The fields that a dataclass and its bases declare."""
    own = named(classes, name)
    found = {
        each.target.id for each in own.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    found |= {each.name for each in own.body if isinstance(each, ast.FunctionDef)}
    bases = [base.id for base in own.bases if isinstance(base, ast.Name) and base.id.endswith("Task")]
    return found.union(*(fields_of(classes, base) for base in bases))


class Reader:
    """Waits on an event loop of its own thread for one item of a queue that is made there."""

    def __init__(self, make_queue: Callable[[], Any]) -> None:
        self._make, self._ready, self.got = make_queue, threading.Event(), threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._read()), daemon=True).start()
        assert self._ready.wait(WAIT)

    async def _read(self) -> None:
        self.queue = self._make()
        self._ready.set()
        await self.queue.get()
        self.got.set()


def test_1_readers_on_another_loop_are_not_woken() -> None:
    utils = tree("llmapi/utils.py")
    sync_queue = made(named(utils, "_SyncQueue"), AsyncQueue=None)
    async_queue = made(named(utils, "AsyncQueue"), _SyncQueue=sync_queue)
    deliver = made(
        named(tree("executor/base_worker.py"), "AwaitResponseHelper", "handle_for_worker"),
        _SyncQueue=sync_queue,
        _maybe_wrap_response=lambda worker, response, *_: response,
        global_tracer=lambda: SimpleNamespace(log_instant=lambda name: None),
    )
    readers = [Reader(async_queue) for _ in range(2)]
    worker = SimpleNamespace(
        return_queue=lambda number: readers[number].queue.sync_q,
        _is_pytorch_backend=True,
        _pop_result=lambda number: None,
    )
    responses = [
        SimpleNamespace(client_id=number, has_error=lambda: False, result=SimpleNamespace(is_final=True))
        for number in range(2)
    ]
    deliver(SimpleNamespace(worker=worker), responses)
    assert readers[0].got.wait(WAIT)
    assert not readers[1].got.wait(WAIT), "the reader on the other loop was woken"


def test_2_an_abort_after_a_shutdown_raises() -> None:
    abort = made(named(tree("executor/result.py"), "GenerationResult", "abort"))
    executor = type("Executor", (), {})()
    result = SimpleNamespace(_executor=weakref.ref(executor), request_id=0, _aborted=False)
    del executor
    with pytest.raises(AttributeError, match="abort_request"):
        abort(result)


def test_3_a_clone_that_raises_leaves_its_caller_waiting() -> None:
    submit = named(tree("scaffolding/scaffolding_llm.py"), "ScaffoldingLlm", "generate_async")
    handlers = [handler for each in ast.walk(submit) if isinstance(each, ast.Try) for handler in each.handlers]
    texts = [ast.unparse(statement) for handler in handlers for statement in handler.body]
    assert "self.task_queue.put(None)" in texts  # a coroutine that nobody awaits
    assert not any("set_output" in text for text in texts)


def test_4_no_task_has_the_queue_that_a_stream_is_written_to() -> None:
    handler = named(tree("scaffolding/worker.py"), "TRTLLMWorker", "stream_generation_handler")
    read = {each.attr for each in ast.walk(handler) if isinstance(each, ast.Attribute)}
    assert "streaming_output_queue" in read
    assert "streaming_output_queue" not in fields_of(tree("scaffolding/task.py"), "StreamGenerationTask")


def test_5_best_of_n_ends_with_a_field_that_tasks_do_not_have() -> None:
    process = named(tree("scaffolding/controller.py"), "BestOfNController", "process")
    assert "task.result = best_task.result" in [
        ast.unparse(each) for each in ast.walk(process) if isinstance(each, ast.Assign)
    ]
    assert "result" not in fields_of(tree("scaffolding/task.py"), "GenerationTask")


def test_6_the_import_prints_to_stdout() -> None:
    printed = [
        each
        for each in ast.walk(tree("__init__.py"))
        if isinstance(each, ast.Call) and ast.unparse(each.func) == "print" and "__version__" in ast.unparse(each)
    ]
    assert printed
    assert not any(keyword.arg == "file" for each in printed for keyword in each.keywords)
