"""A stack as a model of the server: turns requests into arguments of its controller, or refuses them."""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from scaffolding_ext.answers.stop_strings import StopStrings
from scaffolding_ext.controllers.base import BaseController, attributes_of, checked_task_type, honoured_by
from scaffolding_ext.controllers.repetition import Loops
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.families import DEFAULT_FAMILY, UNTHINKING_FAMILY, PromptFamily, family_named
from scaffolding_ext.prompts.prompting import Prompting, Turn
from scaffolding_ext.prompts.sampling_params import GUIDED_DECODING
from scaffolding_ext.prompts.served_model import declared_inside, served_model
from scaffolding_ext.prompts.tool_calls import RequiredCall
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask
from scaffolding_ext.protocol.meta import CONTINUED_TURNS
from scaffolding_ext.protocol.relay import Watch, relay
from scaffolding_ext.protocol.worker import WorkerTag, declared, worker_for
from scaffolding_ext.request.program import current_program
from scaffolding_ext.request.results import ScaffoldingResult
from scaffolding_ext.request.seeds import derive_seed
from scaffolding_ext.serving.bodies import Body, ChatBody, CompletionBody, Extras
from scaffolding_ext.serving.refusals import ApiError, unsupported, wait_and_retry
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.serving.thinking import Closing, Reading
from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.stats.watching import LossWatch

# Fields of a controller's request by the names that clients use.
_FIELDS = {
    **{name: name for name in ("temperature", "top_p", "top_k", "max_tokens", "frequency_penalty", "presence_penalty")},
    "logit_bias": "logit_bias",
    "thinking_budget": "thinking_budget",
    "tool_choice": "tool_choice",
    GUIDED_DECODING: "response_format",
}
_INSTEAD = {"response_format": "Leave it out and ask for JSON in the prompt", "tool_choice": "Give 'auto'"}
_SEED_BITS = 53  # exact in every JSON reader
_MOST_CHARACTERS = 32  # of a prompt, for each token that it may have; longer ones are not tokenised to be counted


class StackRequest(NamedTuple):
    """A request in a stack's terms.

    Attributes:
        prompts: Prompts, each with its earlier turns. Each prompt gets `num_samples` choices.
        num_samples: Choices per prompt.
        kwargs: Keyword arguments of its `generate`.
        seed: Seed of the request; None if the stack has no seeds.
        reading: Splits its texts into thinking and answer.
        closing: Requests an answer if the controller gives none; None if the model does not think.
        num_prompt_tokens: Tokens of all prompts; None if they cannot be counted.
        deadline: Seconds within which the client wants the answer, for the stack's scheduling; None if unknown.
        trace_parent: The client's span, from its header `traceparent`, or None.
        guides_call: True if guided decoding makes the answer a call.
        sent: The client's names of the body's fields, by ours; an error about one of them is the client's.
    """

    prompts: list[tuple[str, list[Turn]]]
    num_samples: int
    kwargs: dict[str, Any]
    seed: int | None
    reading: Reading
    closing: Closing | None
    num_prompt_tokens: int | None
    deadline: float | None = None
    trace_parent: str | None = None
    guides_call: bool = False
    sent: Mapping[str, str] = MappingProxyType({})

    @property
    def num_choices(self) -> int:
        """Choices of all prompts."""
        return len(self.prompts) * self.num_samples


class ServedStack:
    """A running stack under its model name for clients.

    Args:
        name: Its `model`.
        llm: Host of the stack. It must run nothing else, since its controller is replaced.
        limits: Limits of its requests.
        config: Stack file of the host, if it has one.

    Attributes:
        num_open: Choices that run or wait.
        watch: Compares audits with the promised share of changed answers; None without such a promise. A promise of
            accuracy cannot be watched, since a server does not know the right answers.
    """

    def __init__(self, name: str, llm: ScaffoldingLlm, limits: Limits, *, config: StackConfig | None = None) -> None:
        self.name = name
        self.num_open = 0
        self.llm = llm
        tuned = None if config is None else config.tuned
        promised = None if tuned is None or tuned.measure != "agreement" else tuned.max_loss
        self.watch = None if promised is None else LossWatch(promised)
        self.controller: Any = llm.prototype_controller
        llm.prototype_controller = _Bounded()
        self._limits = limits
        own: Any = self.controller
        is_open = isinstance(own, BaseController) and own.loops is None and (config is None or config.loops is None)
        if is_open and self.thinks and self._cannot_go_on is None:  # nobody chose, and a looping chain can be ended
            own.loops = Loops()  # unlike in other places on by default: thinking that repeats itself is cut
        self._numbers = itertools.count()  # numbers requests without a seed; thread-safe
        served = served_model(self.llm.workers)
        self.context_len: int | None = None if served is None else getattr(served.worker, "max_seq_len", None)
        self._server_renders = served is not None and declared_inside(served.worker, "takes_messages")
        is_bounded = any(needs.max_tokens for needs in attributes_of(own).needs_by_tag().values())
        self._is_unbounded = not (is_bounded or self.context_len or self._server_renders)

    @property
    def prompting(self) -> Prompting | None:
        prompting: Prompting | None = attributes_of(self.controller).prompting
        return prompting

    @property
    def tokenized(self) -> Prompting | None:
        """The prompting, if the tokenizer is known."""
        return self.prompting if self.prompting is not None and self.prompting.has_tokenizer else None

    @property
    def thinks(self) -> bool:
        """True if the stack's model thinks, unless the history of a request or its tools say otherwise."""
        return self.prompting is not None and self.prompting.family.thinks and not self.prompting.closes_thinking

    def document(self) -> dict[str, Any]:
        """Its entry in `/v1/models`."""
        about: dict[str, Any] = {"controller": type(self.controller).__name__}
        if types := attributes_of(self.controller).task_types():
            about["task_types"] = list(types)
        entry = {"id": self.name, "object": "model", "created": 0, "owned_by": "scaffolding_ext", "scaffolding": about}
        return entry if self.context_len is None else entry | {"max_model_len": self.context_len}

    def read(self, body: Body) -> StackRequest:
        """Convert a request's body to the stack's terms.

        Raises:
            ApiError: The stack cannot honour a field, or the request exceeds a limit.
        """
        extras = body.scaffolding or Extras()
        controller = self.controller
        task_type = _task_type(controller, extras.task_type, body.metadata)
        is_raw = isinstance(body, CompletionBody)
        num = body.num_samples * (len(body.prompts) if isinstance(body, CompletionBody) else 1)
        if num > self._limits.max_samples:
            message = f"asks for {num} choices; the server gives at most {self._limits.max_samples}"
            raise ApiError(400, f"n {message}", "invalid_value", "n")
        prompts: list[tuple[str, list[Turn]]] = (
            [(self._text(prompt), []) for prompt in body.prompts]
            if isinstance(body, CompletionBody)
            else [self._turns(body)]
        )
        kwargs = self._kwargs(body, controller)
        if task_type is not None:
            kwargs["task_type"] = task_type
        if is_raw and isinstance(controller, BaseController):
            kwargs["raw"] = True
        num_prompt_tokens, family, is_open = self._count(prompts, is_raw, kwargs)
        guides_call = "tool_choice" in kwargs and not self._passes_tools
        guided = GUIDED_DECODING if GUIDED_DECODING in kwargs else "tool_choice" if guides_call else None
        if guided is not None and family is not None and family.thinks:
            message = f"would hold for the thinking of {self.name!r}, too: leave it out, or serve it without thinking"
            raise unsupported(_FIELDS[guided], message)
        read_by = family_named(UNTHINKING_FAMILY) if is_raw or family is None else family
        if body.stops and not read_by.thinks and "stop" in honoured_by(controller):
            kwargs["stop"] = list(body.stops)  # otherwise the front cuts the answer's text at them
        if self._server_renders and not read_by.thinks:  # it may separate thinking, which the worker then marks
            read_by, is_open = family_named(DEFAULT_FAMILY), False
        reading = Reading(read_by, is_open, StopStrings(tuple(body.stops)))
        seed = body.seed if body.seed is not None else self._next_seed()
        return StackRequest(
            *(prompts, body.num_samples, kwargs, seed, reading, self._closing(reading, kwargs, family)),
            num_prompt_tokens,
            deadline=extras.deadline,
            guides_call=guides_call,
            sent={
                name: body.token_limit_name if name == "max_tokens" else name
                for name in ("prompt", "history", *body.model_fields_set, *kwargs)
            },
        )

    def admit(self, num: int) -> None:
        """Admit this many choices, or refuse all of them. The caller calls `leave` when choices have ended.

        Raises:
            ApiError: The queue is full.
        """
        room = self.llm.max_parallel_requests + self._limits.max_queue - self.num_open
        if num > room:
            message = (
                f"{self.num_open} choices run or wait, and the server has room for {room} more: send the request again "
                "later"
            )
            raise wait_and_retry(message, "queue_full", self.num_open / self.llm.max_parallel_requests)
        self.num_open += num

    def leave(self, num: int) -> None:
        """Release the room of this many choices."""
        self.num_open -= num

    def submit(self, wanted: StackRequest) -> list[ScaffoldingResult]:
        """Start the choices; choices of one prompt are its epochs, as in `generate_async`."""
        results = []
        for text, history in wanted.prompts:
            turns: dict[str, Any] = {"history": history} if history else {}
            results += [
                self.llm.generate_async(
                    text,
                    epoch=epoch,
                    seed=wanted.seed,
                    timeout=self._limits.max_seconds,
                    controller=self.controller,
                    most_tokens=self._limits.max_request_tokens,
                    closing=wanted.closing,
                    deadline=wanted.deadline,
                    trace_parent=wanted.trace_parent,
                    **turns,
                    **wanted.kwargs,
                )
                for epoch in range(wanted.num_samples)
            ]
        return results

    def _next_seed(self) -> int | None:
        """Derive a seed for a request without one. The host's seeds would keep a counter for every prompt forever."""
        seed, number = self.llm.seed, next(self._numbers)
        return None if seed is None else derive_seed(seed, number) >> (63 - _SEED_BITS)

    def _turns(self, body: Body) -> tuple[str, list[Turn]]:
        assert isinstance(body, ChatBody)
        *before, last = body.messages
        if not last.text.strip():
            raise unsupported("messages", "must end with a turn that is not empty")
        history: list[Turn] = [message.turn() for message in before]
        if (history or last.role != "user") and self.prompting is None:
            raise unsupported(
                "messages",
                f"has several turns, and {self.name!r} has no prompting that renders them: set `prompt`, or send one "
                "user turn",
            )
        return last.text, history

    def _text(self, prompt: str | list[int]) -> str:
        """Return a prompt as text; token ids are refused if their text would encode to other ids."""
        if isinstance(prompt, str):
            return prompt
        if self.tokenized is None:
            raise unsupported(
                "prompt", f"holds token ids, but {self.name!r} has no tokenizer to read them: send a text"
            )
        if len(prompt) > self._most_prompt_tokens:
            raise self._too_long(f"{len(prompt)} tokens")
        text = self.tokenized.text_of(prompt)
        if text is None:
            raise unsupported("prompt", f"holds {len(prompt)} token ids that no text encodes to: send the text")
        return text

    def _closing(self, reading: Reading, kwargs: Mapping[str, Any], family: PromptFamily | None) -> Closing | None:
        if family is None or self._tag is None or not family.thinks:
            return None
        budget, most = kwargs.get("thinking_budget"), self._limits.answer_tokens
        return Closing(reading, family, self._tag, most, budget, self._cannot_go_on)

    @property
    def _passes_tools(self) -> bool:
        return self.prompting is not None and self.prompting.chat

    @property
    def _tag(self) -> WorkerTag | None:
        """Tag of the worker whose model reads the prompts."""
        tags = (WorkerTag.GENERATION, WorkerTag.TARGET, WorkerTag.DRAFT)
        return next((tag for tag in tags if worker_for(self.llm.workers, tag) is not None), None)

    @property
    def _worker(self) -> Any:
        return None if self._tag is None else worker_for(self.llm.workers, self._tag)

    @property
    def _cannot_go_on(self) -> str | None:
        """Reason why the worker cannot continue an unfinished answer; None if it can."""
        refused: Mapping[str, str] = declared(self._worker).refused
        return refused.get(CONTINUED_TURNS)

    def _kwargs(self, body: Body, controller: Any) -> dict[str, Any]:
        """Keyword arguments of the controller for the body's fields."""
        honoured = honoured_by(controller)
        fields = body.sampling_fields()
        budget = self._thinking_budget(body)
        if budget is not None:
            fields["thinking_budget"] = budget
        guide = body.response_format.guide if isinstance(body, ChatBody) and body.response_format else None
        if guide is not None:
            self._check_guide("response_format")
            fields[GUIDED_DECODING] = guide
        if isinstance(body, ChatBody) and body.required is not None:
            if not self._passes_tools:
                self._check_guide("tool_choice")
            try:
                RequiredCall.of(body.offered, body.required)
            except ConfigError as error:
                raise unsupported("tool_choice", error.message) from None
            fields["tool_choice"] = body.required
        for name in sorted(fields.keys() - honoured):
            able = ", ".join(shown for own, shown in _FIELDS.items() if own in honoured) or "none of these fields"
            message = f"is not a field that {self.name!r} ({type(controller).__name__}) takes; it takes: {able}"
            raise unsupported(body.token_limit_name if name == "max_tokens" else _FIELDS[name], message)
        limit = self._limits.max_request_tokens
        if fields.get("max_tokens", 0) > limit:
            name, most = body.token_limit_name, min(limit, self.context_len or limit)
            of_model = ", the model's context" if most == self.context_len else ""
            raise ApiError(400, f"{name}: must be at most {most}{of_model}", "invalid_value", name)
        tools = body.offered if isinstance(body, ChatBody) else []
        last = body.messages[-1] if isinstance(body, ChatBody) else None
        if last is not None and last.role != "user":
            if not isinstance(controller, BaseController):
                raise unsupported(
                    "messages",
                    f"ends with a turn of the {last.role}, which {type(controller).__name__} cannot read: send a user "
                    "turn",
                )
            fields["last_turn"] = {key: value for key, value in last.turn().items() if key != "content"}
        if tools:
            self._check_tools(controller, fields)
            fields["tools"] = tools
        if self._is_unbounded and "max_tokens" in honoured:
            fields.setdefault("max_tokens", limit)
        if body.stream and isinstance(controller, BaseController):
            fields["streaming"] = True
        return fields

    def _check_guide(self, name: str) -> None:
        """Refuse a form of answers that nothing would keep.

        Args:
            name: The field that gives it.

        Raises:
            ApiError: The worker cannot keep it.
        """
        worker = self._worker
        if not declared(worker).guides_json:
            raise unsupported(
                name,
                f"is not served: {type(worker).__name__} of {self.name!r} writes free text. {_INSTEAD[name]}, or serve "
                "the stack on an OpenAIWorker whose server has response_format",
            )

    def _check_tools(self, controller: Any, fields: dict[str, Any]) -> None:
        """Refuse tools that the stack cannot call.

        Raises:
            ApiError: Nothing would read the calls, the controller reads none, or another field excludes tools.
        """
        try:
            (self.prompting or Prompting(chat=self._server_renders)).check_tools("tool_choice" in fields)
        except ConfigError as error:
            raise unsupported("tools", error.message) from error
        if "tools" not in honoured_by(controller):
            name = type(controller).__name__
            message = f"cannot be used with {self.name!r} ({name}): only plain generation and votes over it read calls"
            raise unsupported("tools", message)
        other = next((name for name in ("thinking_budget", GUIDED_DECODING) if name in fields), None)
        if other is not None:
            raise unsupported(_FIELDS[other], "cannot be given with tools: leave out one of them")

    def _thinking_budget(self, body: Body) -> int | None:
        effort = body.reasoning_effort if isinstance(body, ChatBody) else None
        if body.thinking_budget is not None and body.thinking_token_budget is not None:
            raise unsupported("thinking_token_budget", "is another name of thinking_budget: give one of the two")
        budget = body.thinking_token_budget if body.thinking_budget is None else body.thinking_budget
        if effort is None:
            return budget
        if budget is not None:
            raise unsupported("reasoning_effort", "sets thinking_budget: give one of the two")
        if effort not in self._limits.efforts:
            known = ", ".join(self._limits.efforts) or "none"
            raise unsupported("reasoning_effort", f"is an unknown effort; this server knows: {known}")
        return self._limits.efforts[effort]

    def _count(
        self, prompts: list[tuple[str, list[Turn]]], is_raw: bool, how: Mapping[str, Any]
    ) -> tuple[int | None, PromptFamily | None, bool | None]:
        """Check each prompt.

        Returns:
            The tokens of the prompts, None if no tokenizer is known. The family behind a chat's prompt, None without a
            prompting. True if that prompt ends in open thinking, None if that is not known.
        """
        lengths, is_open = [], None
        family = None if self.prompting is None else self.prompting.family
        for text, history in prompts:
            if not text.strip():
                raise ApiError(400, "prompt: is empty: send a text", "invalid_value", "prompt")
            num_characters = len(text) + sum(len(turn["content"]) for turn in history)
            if num_characters > _MOST_CHARACTERS * self._most_prompt_tokens:
                raise self._too_long(f"{num_characters} characters")
            if self.prompting is None:
                length = len(text.encode())
            else:
                task = GenerationTask(input_str=text)
                try:
                    self.prompting.apply(task, history, is_raw, tools=how.get("tools"), last_turn=how.get("last_turn"))
                except ConfigError as error:
                    raise unsupported("messages", error.message) from error
                length = len(text.encode()) if task.input_tokens is None else len(task.input_tokens)
                if not is_raw:
                    family = self.prompting.family_behind(task.input_str or "")
                    is_open = self.prompting.is_open(task.input_str or "")
            if length > self._most_prompt_tokens:
                raise self._too_long(f"{length} tokens")
            lengths.append(length)
        return None if self.tokenized is None else sum(lengths), family, is_open

    @property
    def _most_prompt_tokens(self) -> int:
        return min(self._limits.max_prompt_tokens, self.context_len or self._limits.max_prompt_tokens)

    def _too_long(self, size: str) -> ApiError:
        message = f"the prompt has {size}; it may have at most {self._most_prompt_tokens} tokens: shorten it"
        return ApiError(400, message, "context_length_exceeded", "messages")


class _Bounded(Controller):
    """Runs the controller that a request names (the stack's, or an audit's twin of it) within the request's limits."""

    def clone(self) -> _Bounded:
        """Return itself: it holds no state of a request."""
        return self

    def generate(self, prompt: str, **kwargs: Any) -> ControllerGenerator:
        """Run a clone of `controller` with the other arguments.

        `closing` ensures that the outcome has an answer; None leaves it as it is.

        Raises:
            ApiError: The clone has decoded more than `most_tokens`, or the outcome has no answer.
        """
        controller, most_tokens = kwargs.pop("controller"), kwargs.pop("most_tokens")
        closing: Closing | None = kwargs.pop("closing", None)
        work = controller.clone().generate(prompt, **kwargs)
        work = work if closing is None else closing.close(work)
        completion = yield from relay(work, watch=_TokenLimit(most_tokens))
        if GUIDED_DECODING in kwargs and completion.exit_reason != "length":
            _check_json(completion.text or "")
        return completion


class _TokenLimit(Watch):
    """Ends a request that has decoded more tokens than allowed."""

    def __init__(self, most_tokens: int) -> None:
        super().__init__()
        self._most_tokens = most_tokens

    def count(self, work: Any, began: float) -> None:
        """Called after each step of the request's work."""
        program = current_program()
        if program is not None and program.ledger.num_decoded > self._most_tokens:
            raise ApiError(
                400,
                f"the request has decoded {program.ledger.num_decoded} tokens; the limit is {self._most_tokens}: ask "
                "for fewer tokens or samples",
                "token_limit_exceeded",
                "max_tokens",
            )


def _check_json(text: str) -> None:
    """Refuse an answer that its engine should have kept to JSON."""
    try:
        json.loads(text)
    except ValueError as error:
        message = (
            f"the model's answer is not JSON, though response_format asks for it ({error}): send the request again"
        )
        raise ApiError(502, message, "no_answer") from None


def _task_type(controller: Any, named: Any, metadata: Any) -> str | None:
    """The task type of a request, from `scaffolding` or `metadata`; a stack without types ignores the latter.

    Raises:
        ApiError: The stack has no plan for the type, or the request names two types.
    """
    has_types = bool(attributes_of(controller).task_types())
    noted = metadata.get("task_type") if isinstance(metadata, Mapping) and has_types else None
    given = {key: value for key, value in (("scaffolding", named), ("metadata", noted)) if value is not None}
    for key, value in given.items():
        name = f"{key}.task_type"
        if not isinstance(value, str):
            raise ApiError(400, f"{name}: must be a text", "invalid_value", name)
        try:
            checked_task_type(controller, value)
        except ConfigError as error:
            raise ApiError(400, f"{name}: {error.message}", "invalid_value", name) from None
    if len(set(given.values())) > 1:
        message = f"scaffolding.task_type is {named!r} and metadata.task_type is {noted!r}: give one of them"
        raise ApiError(400, message, "invalid_value", "scaffolding.task_type")
    return next(iter(given.values()), None)


def name_of(source: str) -> str:
    """Default model name of a stack file: the file's name."""
    stem = source.rpartition(":")[2].replace("\\", "/").rpartition("/")[2]
    return stem.rpartition(".")[0] or stem


def new_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(12)}"
