"""Worker over an OpenAI-compatible server: trtllm-serve, vLLM, SGLang, llama.cpp, or a hosted one."""

from __future__ import annotations

import functools
import logging
import os
import time
import urllib.parse
import warnings
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from scaffolding_ext import require
from scaffolding_ext.errors import (
    ConfigError,
    EngineError,
    InvalidTaskError,
    ServerDownError,
    ServerTimeoutError,
    WorkerError,
)
from scaffolding_ext.prompts.tokenizers import has_tokenizer, load_tokenizer, may_have_tokenizer
from scaffolding_ext.protocol import GenerationTask, TaskStatus
from scaffolding_ext.protocol.branching import VerifyTask
from scaffolding_ext.protocol.lowering import lower_verify, run_pieces, write_back_verify
from scaffolding_ext.protocol.meta import meta_of, note
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.protocol.worker import ServerBudget
from scaffolding_ext.workers.openai.connection import NO_KEY, Connection
from scaffolding_ext.workers.openai.flavors import described, flavor_named
from scaffolding_ext.workers.openai.requests import RequestBodies
from scaffolding_ext.workers.openai.self_test import (
    proven,
    refusals,
    refused_priority,
    refused_scores,
    separates_thinking,
    tells_cached_tokens,
)
from scaffolding_ext.workers.openai.stream import ServerStream, read_answer, scores_of
from scaffolding_ext.workers.shared.streaming import StreamingWorker

if TYPE_CHECKING:
    from scaffolding_ext.protocol.standins import TaskHandler

DEFAULT_KEY = "OPENAI_API_KEY"
ENDPOINTS = ("completions", "chat", "auto")
_CHAT_FLAVORS = ("openai", "scaffolding_ext")  # may lack completions, or render prompts themselves
_LEAST = {"max_seq_len": 1, "max_concurrency": 1, "max_retries": 0}
_SECONDS = ("timeout_seconds", "start_seconds", "deadline_seconds")
_SILENT_REUSE = (
    "{} does not tell how many tokens of a prompt it took from its cache, so computed tokens and their price are not "
    "reported: start it with {} (and with its prefix cache)"
)
_log = logging.getLogger(__name__)


def api_key(variable: str) -> str:
    """Read the key from an environment variable; a placeholder if the default variable is not set.

    Raises:
        ConfigError: Another variable is named but not set.
    """
    key = (os.environ.get(variable) or "").strip()  # a key read from a file may end in a line break
    if not key and variable != DEFAULT_KEY:
        raise ConfigError(
            f"names the environment variable {variable}, which is not set: run `export {variable}=...`", "api_key_env"
        )
    return key or NO_KEY


def check_arguments(**given: Any) -> None:
    """Refuse wrong arguments of `OpenAIWorker` without asking its server, as a dry run of a stack does.

    Raises:
        ConfigError: An argument is unusable; `key` names it.
    """
    if "base_url" in given:
        _check_address(given["base_url"])
    if "endpoint" in given:
        require.one_of("endpoint", given["endpoint"], ENDPOINTS)
    if given.get("flavor", "auto") != "auto":
        flavor_named(given["flavor"])
    for key, least in _LEAST.items():
        if given.get(key) is not None:
            require.whole(key, given[key], least)
    for key in _SECONDS:
        if key in given:
            require.number(key, given[key], above=0)


def _check_address(base_url: str) -> None:
    try:
        parts = urllib.parse.urlsplit(base_url)
        secret = "a user name or password" if "@" in parts.netloc else "a query" if "?" in base_url else ""
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number
        secret, is_address = "", False
    if secret:
        raise ConfigError(
            f"contains {secret}, but errors show the address: remove it, and name the key's variable with api_key_env",
            "base_url",
        )
    if not is_address:
        raise ConfigError(f"is {base_url!r}; it must be an address such as http://localhost:8000/v1", "base_url")


class ServerWarning(UserWarning):
    """The server works, but some of its figures or settings are not what a user would expect."""


class OpenAIWorker(StreamingWorker):
    """Serves generation, streaming and scoring from a server with OpenAI's HTTP interface.

    With `flavor="auto"` the worker asks the server for its kind and tests the known weaknesses of that kind. A stack
    that needs a missing ability is refused when it is built; `refused` has the reason. A named flavor is trusted; only
    scores are tested then, before the first `ScoreTask`.

    If a task has no temperature, none is sent and the server's defaults apply, which it may take from the model's
    `generation_config.json`. If a task has one, the server's defaults for top-p, top-k and penalties are switched off.
    `input_tokens` take precedence over `input_str`. The key is read from the environment; no log, record or error
    contains it.

    A request that fails before its answer begins (429, 5xx, resets, time-outs) is retried with exponential back-off and
    jitter; the trace shows retries. A stream that breaks off after its first token fails.

    Args:
        base_url: Address of the interface, such as `http://host:8000/v1`.
        model: The server's name for the model.
        api_key_env: Environment variable with the key; not needed if the server requires no key.
        flavor: `"auto"`, or the kind of server: `"vllm"`, `"sglang"`, `"trtllm"`, `"llama_cpp"`, `"scaffolding_ext"`
            (this package's), `"openai"` for any other.
        endpoint: `"completions"` takes prompts as the stack renders them, `"chat"` as texts that the server renders;
            `"auto"` takes `"chat"` if the kind of server is unknown or the tokenizer cannot be loaded.
        tokenizer: Folder, hub name or `tinylm/NAME` of the model's tokenizer; required if neither `model` nor, with
            `flavor="auto"`, the name that the server tells behind an alias (`root`) is one.
        max_seq_len: Maximum prompt and generated tokens of one request; None takes the server's limit.
        max_concurrency: Concurrent requests, including open streams; further requests wait.
        max_retries: Maximum retries per request.
        timeout_seconds: Seconds of silence after which an attempt fails.
        start_seconds: Maximum seconds for all of the constructor's requests.
        deadline_seconds: Maximum seconds per request over all attempts.
        prioritize: If True, the server is told which tasks others wait for. It must schedule by priority, see
            `docs/servers.md`; one that refuses a priority at the start is sent none, with a warning.

    Raises:
        MissingDependencyError: openai is not installed.
        ConfigError: An argument is outside its range, or the server does not serve the model.
        EngineError: With `flavor="auto"`, the server cannot be reached.

    Attributes:
        model: Name of the tokenizer that prompts are rendered for; None on the chat endpoint, whose server renders
            messages, and for `"openai"` and `"scaffolding_ext"` if the model's name cannot name a tokenizer.
        max_seq_len: Maximum prompt and generated tokens of one request, or None.
        max_num_logprobs: Maximum alternatives per token for `num_logprobs`.
        flavor: Kind of the server.
        server_budget: State of the server's own thinking budgets.
        guides_json: True if the server keeps an answer to JSON or a schema.
        refused: Abilities that this server lacks although its kind could have them, with reasons: `"ScoreTask"`,
            `"continued turns"`.
    """

    check_arguments = staticmethod(check_arguments)

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key_env: str = DEFAULT_KEY,
        flavor: str = "auto",
        endpoint: Literal["completions", "chat", "auto"] = "completions",
        tokenizer: str | None = None,
        max_seq_len: int | None = None,
        max_concurrency: int = 256,
        max_retries: int = 2,
        timeout_seconds: float = 600.0,
        start_seconds: float = 120.0,
        deadline_seconds: float = 3600.0,
        prioritize: bool = False,
    ) -> None:
        self.check_arguments(**{name: value for name, value in locals().items() if name not in ("self", "__class__")})
        super().__init__()
        named = None if flavor == "auto" else flavor_named(flavor)
        self._connection = Connection(
            base_url,
            api_key(api_key_env),
            api_key_env,
            max_retries=max_retries,
            timeout_seconds=timeout_seconds,
            deadline_seconds=deadline_seconds,
            max_concurrency=max_concurrency,
        )
        weakref.finalize(self, self._connection.close)
        with self._connection.starting(start_seconds):
            served = None
            if named is None:
                served = described(self._connection.run_blocking(self._connection.models), model, base_url)
                named, max_seq_len = served.flavor, max_seq_len or served.max_seq_len
            root = None if served is None else served.root
            own_name = tokenizer or (root if root is not None and may_have_tokenizer(root) else model)
            if endpoint == "auto":
                needs_chat = named.name in _CHAT_FLAVORS or not has_tokenizer(own_name)
                endpoint = "chat" if needs_chat else "completions"
            self._path = endpoint
            lacking: Mapping[str, str] = {}
            if served is not None and self._path != "chat":
                named, lacking = self._connection.run_blocking(proven, self._connection, named, model)
            if served is not None and self._path == "chat":
                ask_for = separates_thinking, self._connection, named, model
                self.separates_thinking = self._connection.run_blocking(*ask_for)
            if served is not None and named.reuse_option is not None:
                ask = tells_cached_tokens, self._connection, named, model, max_seq_len, self._path == "chat"
                if not self._connection.run_blocking(*ask):
                    named = named._replace(tells_reuse=False)
                    warnings.warn(_SILENT_REUSE.format(base_url, named.reuse_option), ServerWarning, stacklevel=2)
            if served is not None and prioritize:
                try_one = refused_priority, self._connection, named, model, self._path == "chat"
                if (reason := self._connection.run_blocking(*try_one)) is not None:
                    prioritize = False
                    warnings.warn(
                        f"{base_url} takes no priority, so none is sent: {reason}", ServerWarning, stacklevel=2
                    )
            self.flavor = named.name
            self.takes_messages = endpoint == "chat"
            takes_text = named.name in _CHAT_FLAVORS and not may_have_tokenizer(own_name)
            self.model = None if self.takes_messages or takes_text else own_name
            self.max_seq_len = max_seq_len
            self._bodies = RequestBodies(named, model, own_name, max_seq_len, self._path == "chat", prioritize)
            self.unordered = self._bodies.unordered
            self.max_num_logprobs = self._bodies.max_num_logprobs
            self.server_budget = ServerBudget(self._bodies.no_thinking_budget)
            self.guides_json = self._bodies.guide is not None
            self._refuse_what_fails(lacking, tested=served is not None)

    @functools.cached_property
    def tokenizer_fingerprint(self) -> str:  # type: ignore[override]  # hashed on first use
        """Equal for workers whose token ids mean the same, so controllers may pass them on."""
        return self._bodies.reader.tokenizer_fingerprint

    @property
    def num_requests(self) -> int:
        """Requests in flight or waiting, and open streams."""
        return self._connection.num_tasks

    @property
    def num_written(self) -> int:
        """Tokens of all answers so far, including open streams."""
        return self._connection.num_decoded

    async def is_up(self) -> bool:
        """Return True if the server generates a token, or refuses to; some list their models without an engine."""
        task = GenerationTask(input_str="1", max_tokens=1)
        try:
            await self._connection.run(
                self._connection.complete, self._path, self._bodies.generation(task, stream=False), bool
            )
        except (ServerDownError, ServerTimeoutError):
            return False
        except WorkerError:
            return True
        return True

    def shutdown(self) -> None:
        """Close the connections; tasks in flight fail with an EngineError."""
        self._connection.close()

    def _refuse_what_fails(self, lacking: Mapping[str, str], tested: bool) -> None:
        """Test the server's abilities, and remove unserved task types from `task_handlers`."""
        self.refused = {**refusals(self._connection, self._bodies, self._path == "chat", tested), **lacking}
        self._scores_tested = tested
        served = type(self).task_handlers
        unserved = self.refused.keys() | self._bodies.unserved
        handlers = {kind: served[kind] for kind in served if kind.__name__ not in unserved}
        self.task_handlers = handlers  # type: ignore[misc]  # looked up on the instance, see `BaseWorker`
        for name, reason in self.refused.items():
            _log.debug("%s is not served by %s: %s", name, self._connection.base_url, reason)

    def chat_tokenizer(self) -> Any:
        return None if self._path == "chat" else load_tokenizer(self._bodies.tokenizer_name)

    async def _generate(self, task: GenerationTask, kv: Any = None) -> TaskStatus:
        notes = meta_of(task)
        try:
            return await self._generate_once(task)
        except InvalidTaskError as error:
            if notes.thinking is None:
                raise
            note(task, thinking=None)
            status = await self._generate_once(task)  # fails again if the budget was not the reason
            assert self.server_budget is not None
            self.server_budget.reason = f"the server refused the thinking budget: {error}"
            return status

    async def _generate_once(self, task: GenerationTask) -> TaskStatus:
        if task.streaming_output_flag or self._bodies.is_streamed(task):
            return await super()._generate(task)
        body = self._bodies.generation(task, stream=False)
        started_at = time.monotonic()
        read = functools.partial(read_answer, self._bodies, task)
        answer = await self._connection.run(self._connection.complete, self._path, body, read)
        self._connection.num_decoded += answer.counts.decoded
        answer._replace(latency_s=time.monotonic() - started_at).fill(task)
        return TaskStatus.SUCCESS

    def _open(self, task: GenerationTask, end_at: int | None = None, kv: Any = None) -> ServerStream:
        return ServerStream(self._connection, self._path, self._bodies, task, end_at)

    async def _score(self, task: ScoreTask) -> TaskStatus:
        scored = self._bodies.reader.scored(task)
        if not self._scores_tested:
            reason = await self._connection.run(refused_scores, self._connection, self._bodies)
            if reason is not None:
                raise EngineError(f"{self._connection.base_url} cannot serve a ScoreTask: {reason}")
            self._scores_tested = True
        ask = scores_of, self._connection, self._bodies, scored.token_ids, scored.start, task
        task.logprobs, counts = await self._connection.run(*ask)
        note(task, counts=counts)
        return TaskStatus.SUCCESS

    async def _verify(self, task: VerifyTask) -> TaskStatus:
        """Request P(yes) of each branch; exact if the release reports the log-probabilities of given tokens."""
        if task.layer_exit is not None:
            raise InvalidTaskError(
                f"layer_exit is {task.layer_exit}; a server reads only its last layer: leave it None"
            )
        self._bodies.reader.verified(task)

        async def ask(piece: GenerationTask) -> None:
            body, read = self._bodies.verdict(piece, task), functools.partial(read_answer, self._bodies, piece)
            answer = await self._connection.run(self._connection.complete, "completions", body, read)
            answer.fill(piece)
            note(task, uncounted=answer.uncounted or meta_of(task).uncounted)

        pieces = lower_verify(task)
        await run_pieces(task, pieces, [ask(piece) for piece in pieces], decodes=False)
        write_back_verify(task, pieces)
        return TaskStatus.SUCCESS

    task_handlers: ClassVar[dict[type[Any], TaskHandler]] = {
        **StreamingWorker.task_handlers,
        GenerationTask: _generate,
        ScoreTask: _score,
        VerifyTask: _verify,
    }
