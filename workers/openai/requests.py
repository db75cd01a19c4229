"""Tasks as request bodies: each field is sent under the flavor's name for it, or refused by name."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from scaffolding_ext.answers.stop_strings import StopStrings, stop_strings
from scaffolding_ext.errors import ConfigError, InvalidTaskError
from scaffolding_ext.prompts.sampling_params import GUIDED_DECODING
from scaffolding_ext.prompts.tokenizers import load_tokenizer
from scaffolding_ext.protocol import ChatTask, GenerationTask, Task
from scaffolding_ext.protocol.branching import VerifyTask
from scaffolding_ext.protocol.meta import is_urgent, meta_of
from scaffolding_ext.request.program import cache_salt_of, current_program, record
from scaffolding_ext.workers.openai.flavors import COMMON_FIELDS, Flavor, Guide
from scaffolding_ext.workers.openai.responses import LostIds
from scaffolding_ext.workers.shared.id_stops import IdStops, special_ids
from scaffolding_ext.workers.shared.sampling_defaults import GreedyWatch
from scaffolding_ext.workers.shared.task_reading import NEUTRAL, TaskReader, integer, is_set, number, refuse

WORKER = "OpenAIWorker"
_PER_UNIT = 1000  # a policy's 1.0 in the server's integers
_MOST_INTERVAL = 64  # tokens: what is decoded behind a cancelled stream's last piece is lost
_MAX_VOCAB = 1 << 31  # the server refuses ids beyond its vocabulary


class _Tokenizer:
    """Rust backend of a tokenizer, loaded on first use: prompts of token ids do not need it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(load_tokenizer(self._name).backend_tokenizer, name)


class RequestBodies:
    """Builds request bodies from tasks, or reports their errors.

    Args:
        flavor: Kind of the server.
        model: The server's name for the model.
        tokenizer: Name of its tokenizer, loaded on first use.
        max_seq_len: Maximum prompt and generated tokens; None if unknown.
        chat: True if requests go to `/chat/completions`.
        prioritize: If True, send the order of tasks.

    Raises:
        ConfigError: The server has no priorities.
    """

    def __init__(
        self, flavor: Flavor, model: str, tokenizer: str, max_seq_len: int | None, chat: bool, prioritize: bool = False
    ) -> None:
        if prioritize and flavor.priority is None:
            raise ConfigError(
                f"is True, but servers of flavor {flavor.name!r} take no priority: leave it out", "prioritize"
            )
        self.flavor = flavor
        self._model = model
        self.tokenizer_name = tokenizer
        self.reader = TaskReader(_Tokenizer(tokenizer), _MAX_VOCAB, max_seq_len)
        self._watch = GreedyWatch(tokenizer)
        self._chat = chat
        self._prioritize = prioritize
        fields = {*COMMON_FIELDS, *flavor.fields, *(flavor.chat.fields if chat else ())}
        self._forwarded = tuple(sorted(fields))
        self._refused = tuple(sorted(NEUTRAL.keys() - fields - {"num_logprobs"}))

    @property
    def gives_ids(self) -> bool:
        return self.flavor.ids.ask is not None and (self.flavor.ids.on_chat or not self._chat)

    @property
    def max_num_logprobs(self) -> int:
        """Maximum alternatives per token that a task may request.

        A chat's list begins with the drawn token and counts it, so the request asks for one more.
        """
        return max(0, self.flavor.logprobs.most - self._chat) if self.gives_ids else 0

    @property
    def unserved(self) -> frozenset[str]:
        """Task types that servers of this kind cannot serve on this endpoint."""
        is_served = self.flavor.logprobs.given_field is not None and not self._chat
        return frozenset(() if is_served else ("VerifyTask",))

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return list(self.reader.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: list[int]) -> str:
        """Decode token ids, skipping special tokens."""
        return str(self.reader.tokenizer.decode(token_ids, skip_special_tokens=True))

    def generation(self, task: GenerationTask, stream: bool) -> dict[str, Any]:
        """Build the body of a generation task.

        Raises:
            InvalidTaskError: A field is unusable or not supported by the server.
        """
        refuse(task, self._refused, WORKER, (GUIDED_DECODING,) if self.guide is not None else ())
        says_all = task.temperature is not None  # then unset fields are off; otherwise the server's defaults apply
        body: dict[str, Any] = {"model": self._model, **(self.flavor.neutral if says_all else {}), **self._prompt(task)}
        if self._chat:
            body.update(self.flavor.chat.neutral)
        if says_all:
            body["temperature"] = number("temperature", task.temperature, 1.0)
            self._watch.see(task, body["temperature"])
        for name in self._forwarded:
            if is_set(task, name) and name != "temperature":
                body[name] = getattr(task, name)
        if "stop" in body:
            body["stop"] = list(stop_strings(task.stop))
            end_ids = self._end_ids(task)
            if end_ids and self.flavor.takes_end_ids:
                body["stop_token_ids"] = sorted(end_ids)
        if task.seed is not None:
            body["seed"] = integer("seed", task.seed, None, 0) & ((1 << self.flavor.seed_bits) - 1)
        if not self._chat or task.max_tokens is not None:  # of a chat's prompt only the server knows the length
            body["max_tokens"] = self._max_tokens(task, body)
        if self.gives_ids:
            body.update(self.flavor.ids.ask or {})
        body.update(self._logprobs(task))
        body.update(self._hints(task))
        body.update(self._thinking(task))
        body.update(self._special())
        body.update(self._guided(task))
        if stream:
            body["stream_options"] = {"include_usage": True, **self.flavor.stream_usage}
            if self.flavor.takes_interval and not task.streaming_output_flag:
                # The first piece has one token, so the piece that ends a step of n tokens comes after n - 1 more.
                step = (getattr(task, "streaming_step", None) or 1) - 1
                body["stream_interval"] = max(1, min(step, _MOST_INTERVAL))
        return body

    def lost_ids(self, task: GenerationTask) -> LostIds | None:
        """Restorer of token ids if the server loses some. Chats continue as text and need none."""
        if self._chat or not self.flavor.ids.loses:
            return None
        encode = functools.partial(self.encode, add_special_tokens=False)
        return LostIds(encode, self.decode, needs_logprobs=bool(task.num_logprobs))

    def stops(self, task: GenerationTask) -> IdStops | None:
        """A task's stop strings if the server sends only ids and cannot match them."""
        if not self.gives_ids or self.flavor.ids.with_text or not is_set(task, "stop"):
            return None
        strings = stop_strings(task.stop)
        return IdStops(StopStrings(strings), self.decode, self._end_ids(task)) if strings else None

    def _end_ids(self, task: GenerationTask) -> frozenset[int]:
        """Ids of a task's stop strings that are one special token; none for chats, whose tokenizer is unknown."""
        return frozenset() if self._chat else special_ids(stop_strings(task.stop), self.reader.tokenizer)

    def is_streamed(self, task: GenerationTask) -> bool:
        """True if an answer must be streamed, because a whole one would be wrong or because it is cut here."""
        fields = {*(("stop",) if is_set(task, "stop") else ()), *(self._turn(task) if self._chat else ())}
        return bool(fields & {*self.flavor.streamed_for}) or self.stops(task) is not None

    def verdict(self, piece: GenerationTask, task: VerifyTask) -> dict[str, Any]:
        """Body of a piece of a lowered task, with the log-probabilities of both words, likely or not."""
        return {
            **self.generation(piece, stream=False),
            str(self.flavor.logprobs.given_field): [task.yes_token, task.no_token],
        }

    def echo(self, prompt: list[int], task: Task | None = None) -> dict[str, Any]:
        """Body of a request for the log-probabilities of a prompt's tokens; `task` adds its hints."""
        fixed = {"echo": True, "max_tokens": self.flavor.scores.num_drawn, "logprobs": 1, "temperature": 0.0}
        hints = {} if task is None else self._hints(task)
        return {"model": self._model, "prompt": prompt, **fixed, **hints}

    def _sent(self, ids: list[int], text: str | None) -> list[int] | str:
        """A prompt of token ids in the form that the server takes; `text` is the task's text for it."""
        if self.flavor.ids.in_prompts:
            return ids
        for candidate in (text, self.reader.tokenizer.decode(ids, skip_special_tokens=False)):
            if candidate and self.encode(candidate, True) == ids:
                return str(candidate)
        raise InvalidTaskError(
            f"the server (flavor {self.flavor.name!r}) takes text prompts, but no text encodes to the {len(ids)} token "
            "ids of this prompt: send input_str without input_tokens, or use a server that takes token ids"
        )

    def _hints(self, task: Task) -> dict[str, Any]:
        """Request fields that help the server order requests and separate KV that must not be shared.

        Tasks that others wait for go first. The rest follow the order of their programs: the host policy's, or the
        oldest program first, so one program's requests stay together.
        """
        fields: dict[str, Any] = {}
        salt = cache_salt_of(task)
        if salt is not None and (self.flavor.chat.takes_salt if self._chat else self.flavor.takes_salt):
            fields["cache_salt"] = salt
        elif salt is not None:
            reason = f"servers of flavor {self.flavor.name!r} take no cache_salt on this endpoint"
            record("fallback", what="cache_salt", reason=reason)
        if self._prioritize and self.flavor.priority is not None:
            program = current_program()
            place = 0 if program is None else program.identity.number
            if program is not None and program.place.order is not None:
                place = max(0, round(_PER_UNIT * program.place.priority))
            place = -1 if is_urgent(task) else place
            priority = self.flavor.priority(place) if place else None
            fields |= {} if priority is None else {"priority": priority}
        return fields

    @property
    def unordered(self) -> str | None:
        """Reason why the server does not follow the host policy's order; None if it does."""
        if self.flavor.priority is None:
            return f"servers of flavor {self.flavor.name!r} take no priority"
        if self.flavor.priority(1) is None:
            return f"servers of flavor {self.flavor.name!r} only take urgency of single tasks, not the whole order"
        if self._prioritize:
            return None
        return "the order is not sent: set prioritize, and start the server with priority scheduling"

    @property
    def guide(self) -> Guide | None:
        """Request fields for an answer in JSON; None if the server has none on this endpoint."""
        return self.flavor.chat.guide if self._chat else self.flavor.guide

    def _guided(self, task: GenerationTask) -> Mapping[str, Any]:
        guide = (task.custom_input_params or {}).get(GUIDED_DECODING)
        if not guide or self.guide is None:
            return {}
        if not isinstance(guide, Mapping) or len(guide) != 1 or not guide.keys() <= {"json", "json_object"}:
            raise InvalidTaskError(f"guided_decoding is {guide!r}; {WORKER} takes {{'json': SCHEMA}} or json_object")
        return self.guide(guide)

    @property
    def no_thinking_budget(self) -> str | None:
        """Reason why no thinking budget can be requested; None if it can."""
        fields = self.flavor.chat.thinking if self._chat else self.flavor.thinking
        if fields is not None:
            return None
        return f"servers of flavor {self.flavor.name!r} take no thinking budget on this endpoint"

    def _special(self) -> Mapping[str, Any]:
        """Fields that make the text show the model's marks, if these are special tokens."""
        program = current_program()
        prompting = None if program is None else program.question.prompting
        if prompting is None or not prompting.shows_special or self.flavor.shows_special is None:
            return {}
        return self.flavor.shows_special

    def _thinking(self, task: GenerationTask) -> Mapping[str, Any]:
        budget = meta_of(task).thinking
        fields = self.flavor.chat.thinking if self._chat else self.flavor.thinking
        return {} if budget is None or fields is None else fields(budget)

    def _prompt(self, task: GenerationTask) -> dict[str, Any]:
        if self._chat:
            return {"messages": self._messages(task), **self._turn(task), **(meta_of(task).tools or {})}
        if task.input_tokens is not None:
            return {"prompt": self._sent(self.reader.prompt(task), task.input_str)}
        if not task.input_str:
            raise InvalidTaskError(
                "input_tokens is None, and input_str is None or empty: set one of them to the prompt"
            )
        return {"prompt": task.input_str}

    def _messages(self, task: GenerationTask) -> list[dict[str, Any]]:
        if isinstance(task, ChatTask):
            return list(task.messages_to_dict_content())
        if task.input_str is None:
            raise InvalidTaskError(
                "input_str is None, but a chat server only takes text: set controller.prompting to None"
            )
        start = meta_of(task).turn_start
        last = {"role": "user", **(meta_of(task).last_turn or {}), "content": task.input_str[:start]}
        messages = [*map(dict, meta_of(task).turns), last]
        if start is not None:
            messages.append({"role": "assistant", "content": task.input_str[start:]})
        return messages

    def _turn(self, task: GenerationTask) -> Mapping[str, Any]:
        if meta_of(task).turn_start is None:
            return {}
        if self.flavor.chat.continue_turn is None:
            raise InvalidTaskError(
                f"the task continues an unfinished answer, but chat servers of flavor {self.flavor.name!r} cannot "
                "continue one: set endpoint='completions'"
            )
        return self.flavor.chat.continue_turn

    def _max_tokens(self, task: GenerationTask, body: Mapping[str, Any]) -> int:
        has_ids = task.input_tokens is not None
        if "prompt" in body and (has_ids or task.max_tokens is None):
            return self.reader.max_tokens(task, len(self.reader.prompt(task)))
        return integer("max_tokens", task.max_tokens, 1, 1)

    def _logprobs(self, task: GenerationTask) -> dict[str, Any]:
        wanted = integer("num_logprobs", task.num_logprobs, 0, 0)
        if not wanted:
            return {}
        if wanted > self.max_num_logprobs:
            raise InvalidTaskError(
                f"num_logprobs is {wanted}; servers of flavor {self.flavor.name!r} return at most "
                f"{self.max_num_logprobs} on this endpoint: lower it, or leave it out"
            )
        if self._chat:
            return {"logprobs": True, "top_logprobs": wanted + 1, **self.flavor.logprobs.by_ids}
        return {self.flavor.logprobs.field: wanted, **self.flavor.logprobs.by_ids}
