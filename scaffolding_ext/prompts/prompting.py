"""Render prompts for a model.

A `Prompting` is applied once when a request starts. It holds the tokenizer by reference: cloning a controller copies
the reference, never the tokenizer.
"""

from __future__ import annotations

import copy
import functools
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from scaffolding_ext.answers.reading import SplitText
from scaffolding_ext.errors import ConfigError, ScaffoldingExtError
from scaffolding_ext.prompts.chat_template import check_variables
from scaffolding_ext.prompts.encoding import Continuation, prompt_ids, special_texts, thinking_tokens, token_ids
from scaffolding_ext.prompts.families import DEFAULT_FAMILY, UNTHINKING_FAMILY, PromptFamily, family_named
from scaffolding_ext.prompts.model_files import FamilyChoice, chosen_family
from scaffolding_ext.prompts.tokenizers import collection_of, load_tokenizer, model_folder
from scaffolding_ext.prompts.tool_calls import as_value
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import meta_of, note
from scaffolding_ext.protocol.task_results import output_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


_log = logging.getLogger(__name__)
Turn = Mapping[str, Any]  # `role`, `content` and whatever else the chat template reads


class TurnEnd(NamedTuple):
    """The end of the assistant's turn up to the user's next.

    Attributes:
        token_id: The special token it begins with; None without one.
        shown: All of it as decoded text, without special tokens.
    """

    token_id: int | None
    shown: str


_CUT = f"cut{secrets.token_hex(8)}"  # inside special tokens that users spell out; the pieces are encoded one by one
_ANSWER = "(the answer so far)"  # placeholder, to render what follows it


class Prompting:
    """The prompts of a stack: system prompt, chat template and prompt family.

    Without a tokenizer prompts are text, and chat turns are messages.

    Args:
        tokenizer: A fast tokenizer; None if it is unknown. If it has a chat template, prompts are rendered with it,
            opened for the assistant; otherwise the prompt is used unchanged.
        family: A name in `FAMILIES`; None takes the default one, or without a tokenizer one that does not think.
        system_prompt: Precedes the user's prompt, or None.
        chat_template: If False, prompts are used unchanged even if the tokenizer has a template.
        prompt_suffix: Follows every user prompt, such as the request to put the answer into a box.
        chat_template_kwargs: Further variables of the chat template, such as `enable_thinking` or `reasoning_effort`.
        assistant_prefix: Beginning of the assistant's turn, such as `"<think>\\n"`; left out if the chat template
            already wrote it.
        chat: If True, there is no tokenizer, and the worker takes messages, which its server renders.
        separates_thinking: True if that server separates thinking; the worker then puts the family's marks around it.

    Raises:
        ConfigError: The family is unknown.
        ConfigError: A system prompt, template variables or an assistant prefix are given without a chat template, or
            the chat template reads no such variable.

    Attributes:
        shows_special: True if the model's marks are special tokens, which texts must show.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast | None = None,
        family: str | None = None,
        system_prompt: str | None = None,
        chat_template: bool = True,
        prompt_suffix: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        assistant_prefix: str | None = None,
        *,
        chat: bool = False,
        separates_thinking: bool = False,
    ) -> None:
        reason = "named" if family or tokenizer else "unknown tokenizer; prompt.family selects another"
        name = family or (UNTHINKING_FAMILY if tokenizer is None else DEFAULT_FAMILY)
        if separates_thinking and not family_named(name).thinks:
            name, reason = DEFAULT_FAMILY, "the server separates thinking from the answer"
        self.family = family_named(name)
        self.choice = FamilyChoice(name, reason, is_guess=reason != "named")
        self.prompt_suffix = prompt_suffix or ""
        self.chat = chat
        self.separates_thinking = separates_thinking
        self._tokenizer: Any = tokenizer
        self._system_prompt = system_prompt
        self._variables = dict(chat_template_kwargs or {})
        self._prefix = assistant_prefix or ""
        self._templated = chat_template and tokenizer is not None and tokenizer.chat_template is not None
        for key, value in (
            ("chat_template_kwargs", chat_template_kwargs),
            ("assistant_prefix", assistant_prefix),
            ("system_prompt", None if chat else system_prompt),
        ):
            if value is not None and not self._templated:
                also = ", or use endpoint: chat" if key == "system_prompt" else ""
                raise ConfigError(
                    f"needs a chat template: name a tokenizer that has one, leave chat_template on{also}", key
                )
        if self._variables and tokenizer is not None:
            check_variables(self._variables, tokenizer.chat_template)
        shown: frozenset[str] = getattr(tokenizer, "shown_marks", frozenset())
        self.shows_special = bool(shown)
        if tokenizer is not None:
            self._continuation = Continuation(tokenizer.backend_tokenizer)
            backend = tokenizer.backend_tokenizer
            self._special = special_texts(backend, shown)
            self._control = special_texts(backend, shown | thinking_tokens(backend))  # in texts that others wrote
            self._whole_ids = functools.lru_cache(maxsize=32)(
                self._read_whole
            )  # a server counts a prompt before it runs
            self._encode = functools.lru_cache(maxsize=256)(self._encode_uncached)
        if system_prompt and self._templated and self._skips_system():
            _log.warning("the chat template skips system turns: the model never sees system_prompt %r", system_prompt)

    def _skips_system(self) -> bool:
        try:
            return _ANSWER not in self._rendered({"role": "system", "content": _ANSWER}, *_turns("?"))
        except ConfigError:  # it refuses system turns, and says so at each prompt
            return False

    @property
    def has_tokenizer(self) -> bool:
        return self._tokenizer is not None

    @classmethod
    def for_model(
        cls,
        model: str,
        family: str | None = None,
        trust_remote_code: bool = False,
        tokenizer: Any = None,
        **options: Any,
    ) -> Prompting:
        """Build the prompting of a model folder, hub name or `tinylm/NAME`; a given `tokenizer` is used as it is.

        Without a `family`, the model's collection decides, else its config and chat template (`chosen_family`).
        `choice` has the reason.

        Raises:
            MissingDependencyError: transformers is not installed.
            ConfigError: The model has no loadable tokenizer, or an option is invalid; `key` names the argument.
        """
        try:
            tokenizer = tokenizer or load_tokenizer(model, trust_remote_code)
        except ConfigError as error:
            where = f"the tokenizer of {model!r} cannot be loaded: the model " if error.key == "model" else ""
            raise type(error)(where + error.message, "model") from error
        except ScaffoldingExtError:
            raise
        except Exception as error:  # transformers raises many types for a model it cannot load
            message = f"the tokenizer of {model!r} cannot be loaded ({type(error).__name__}: {error})"
            raise ConfigError(f"{message}; name a model folder, a hub name or tinylm/NAME", "model") from error
        if family is not None:
            return cls(tokenizer, family, **options)
        collection = collection_of(model)
        if collection is not None:
            choice = FamilyChoice(collection, f"the family of the models {collection}/NAME", is_guess=False)
        else:
            choice = chosen_family(model_folder(model), tokenizer)
        prompting = cls(tokenizer, choice.name, **options)
        prompting.choice = choice
        if choice.is_guess:
            _log.info("prompt family of %s: %s", model, choice)
        if choice.doubt:
            _log.warning(
                "prompt family of %s: %s, but %s: check it with `scaffolding-ext check`, or set prompt.family",
                *(model, choice, choice.doubt),
            )
        return prompting

    @property
    def closes_thinking(self) -> bool:
        """True if the prompt ends with closed thinking, so the model answers at once."""
        return self._templated and self.family.marks.closed_by(self._shown_prompt())

    @property
    def opens_thinking(self) -> bool:
        """True if the prompt ends with open thinking, so the completion begins inside it."""
        return self._templated and self.family.marks.opened_by(self._shown_prompt())

    def family_behind(self, prompt: str) -> PromptFamily:
        """The family's texts behind a rendered prompt: those of answering if the prompt closes thinking."""
        is_closed = self._templated and self.family.marks.closed_by(self.family.as_shown(prompt))
        return self.family.answering if is_closed else self.family

    def is_open(self, prompt: str, family: PromptFamily | None = None) -> bool | None:
        """True if a rendered prompt ends in open thinking of a family; None if that cannot be known."""
        if self.separates_thinking:  # the worker's text opens it
            return False
        marks = (family or self.family).marks
        if not self._templated or not marks.think_open:
            return None
        return marks.opened_by(self.family.as_shown(prompt))

    def split(self, prompt: str, text: str) -> SplitText:
        """Split a complete text by the end of the rendered prompt that it answers."""
        return self.family_behind(prompt).split(text, self.is_open(prompt))

    @property
    def changes_unfinished_turns(self) -> bool:
        """True if a chat server that continues an unfinished answer would change its text."""
        if not self._templated:
            return False
        begun = self._rendered(*_turns("?"))
        answer = _ANSWER if self.opens_thinking else f"{self.family.think_open}\n{_ANSWER}"
        return any(
            self._continued(answer + more) != begun + answer + more for more in ("", self.family.close.rstrip("{"))
        )

    def _continued(self, answer: str) -> str | None:
        """A conversation that ends in an unfinished answer, as chat servers render it; None if the template refuses."""
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    self._messages(_turns("?", answer)), tokenize=False, continue_final_message=True, **self._variables
                )
            )
        except Exception:  # a template may raise anything
            return None

    def turn_end(self) -> TurnEnd | None:
        """End of the assistant's turn in the chat template; None without a template or further turns."""
        try:
            rest = self._rendered(*_turns("?", _ANSWER, "?")).partition(_ANSWER)[2] if self._templated else ""
        except ConfigError:
            return None
        ids = self.encode(rest.partition("?")[0])
        return TurnEnd(None if self.decode(ids[:1]) else ids[0], str(self.decode(ids))) if ids else None

    def _shown_prompt(self) -> str:
        return self.family.as_shown(self._rendered(*_turns("?")))

    def check_tools(self, is_required: bool) -> None:
        """Refuse tools whose calls nothing would read.

        Args:
            is_required: True if guided decoding makes the answer a call.

        Raises:
            ConfigError: No chat server takes them, and no call is required.
        """
        if not self.chat and not is_required:
            raise ConfigError(
                "need a chat server (OpenAIWorker with endpoint: chat), or a tool_choice that requires a call and a "
                "worker with guided decoding: leave them out, or change the stack",
                "tools",
            )

    def without_suffix(self) -> Prompting:
        """Return one that adds no suffix, for answers whose form is guided."""
        twin = copy.copy(self)
        twin.prompt_suffix = ""
        return twin

    def apply(
        self,
        task: GenerationTask,
        history: Sequence[Turn] = (),
        raw: bool = False,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        last_turn: Turn | None = None,
    ) -> None:
        """Replace the user's prompt in `input_str` by the rendered prompt, and set `input_tokens`.

        Without a tokenizer the prompt gets its suffix, and the earlier turns are noted for the worker. Special tokens
        that turns and tools spell out are encoded as plain text, so they open and close no turn.

        Args:
            task: Its prompt is the user's last message.
            history: Earlier turns, as `{"role", "content"}`. A leading system turn is appended to the stack's system
                prompt.
            raw: If True, the prompt is used as it is, without template and suffix.
            tools: Tools that the model may call, in OpenAI's format.
            last_turn: Fields of the last turn beside its content, if it is not the user's: for a tool's result, `role`
                and `tool_call_id`.

        Raises:
            ConfigError: There is history or a tool without a chat template for it, or the template refuses such turns.
        """
        templated = self._templated and not raw
        takes_turns = templated or (self.chat and not raw)
        text = task.input_str or ""
        if (history or last_turn) and not takes_turns:
            raise ConfigError(
                "holds earlier turns, but no chat template is known to render them: send one turn, or use "
                "endpoint: chat",
                "history",
            )
        if tools and not takes_turns:
            raise ConfigError(
                "are given, but this prompt has no chat template that shows them: leave them out", "tools"
            )
        if not raw and last_turn is None:
            text += self.prompt_suffix
        if self._tokenizer is None:
            task.input_str = text
            turns = [] if raw else self._messages(history)
            if turns or last_turn is not None:
                note(task, turns=tuple(turns), last_turn=last_turn)
            return
        if templated:
            last = {"role": "user", **(last_turn or {}), "content": text}
            text = self._rendered(*map(self._cut_turn, history), self._cut_turn(last), tools=self._cut(tools))
        task.input_str = text.replace(_CUT, "")
        task.input_tokens = list(self._whole_ids(text, templated))

    def _read_whole(self, text: str, templated: bool) -> tuple[int, ...]:
        """Token ids of a whole prompt whose users' special tokens are cut."""
        first, *pieces = text.split(_CUT)
        backend = self._tokenizer.backend_tokenizer
        ids = token_ids(backend, first, False) if templated else prompt_ids(backend, first)
        return (*ids, *(token for piece in pieces for token in self._continuation.ids(piece)))

    def next_turn(self, task: GenerationTask, prompt: str) -> GenerationTask:
        """Return a task with the conversation's next question, from the task with the previous answer.

        The text so far is kept, including thinking, so a worker can reuse its KV; some templates would drop the
        thinking of earlier turns. Without a template the prompt follows as a new paragraph.

        Args:
            task: Its input is the conversation so far, its output the answer.
            prompt: The user's next message.
        """
        answer, notes = output_of(task), meta_of(task)
        if self.chat:
            text, further = task.input_str or "", prompt + self.prompt_suffix
            found = GenerationTask(worker_tag=task.worker_tag, input_str=further)
            begun = "" if notes.turn_start is None else text[notes.turn_start :]
            note(found, turns=(*notes.turns, *_turns(text[: notes.turn_start], begun + answer)))
            return found
        opening = f"\n\n{prompt}{self.prompt_suffix}\n\n"
        if self._templated:
            turns = _turns("?", _ANSWER, self._cut(prompt + self.prompt_suffix))
            opening = self._rendered(*turns).partition(_ANSWER)[2]
        pieces = opening.split(_CUT)
        whole = None if task.input_str is None else "".join((task.input_str, answer, *pieces))
        ids = None
        if self.has_tokenizer and task.input_tokens is not None and task.output_tokens is not None:
            written = task.output_tokens
            if written and not self.decode(written[-1:]):  # an end token; the opening brings one
                written = written[:-1]
            ids = task.input_tokens + written + [token for piece in pieces for token in self._encode(piece)]
        return GenerationTask(worker_tag=task.worker_tag, input_str=whole, input_tokens=ids)

    def _cut_turn(self, turn: Turn) -> Any:
        return self._cut(turn, self._special if turn.get("role") == "assistant" else self._control)

    def _cut(self, value: Any, tokens: re.Pattern[str] | None = None) -> Any:
        """Cut the tokens that the texts of a turn or tool spell out, each behind its first character.

        Args:
            tokens: Of the model's own turns only the special tokens, since templates read their thinking; None: of
                others its marks of thinking, too.
        """
        pattern = self._control if tokens is None else tokens
        if isinstance(value, str):
            return pattern.sub(lambda found: f"{found[0][0]}{_CUT}{found[0][1:]}", value)
        if isinstance(value, Mapping):
            return {key: self._cut(each, pattern) for key, each in value.items()}
        return [self._cut(each, pattern) for each in value] if isinstance(value, Sequence) else value

    def _messages(self, turns: Sequence[Turn]) -> list[dict[str, Any]]:
        """Turns with the system prompt before them."""
        messages = [dict(turn) for turn in turns]
        if self._system_prompt and messages and messages[0]["role"] == "system":
            messages[0]["content"] = f"{self._system_prompt}\n\n{messages[0]['content']}"
        elif self._system_prompt:
            messages.insert(0, {"role": "system", "content": self._system_prompt})
        return messages

    def _rendered(self, *turns: Turn, tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        """Render a conversation with the chat template, opened for the assistant."""
        messages = [_with_objects(message) for message in self._messages(turns)]
        try:
            text = str(
                self._tokenizer.apply_chat_template(
                    messages,
                    tokenize=False,
                    add_generation_prompt=True,
                    **({"tools": list(tools)} if tools else {}),
                    **self._variables,
                )
            )
        except Exception as error:  # a template may raise anything
            roles = ", ".join(message["role"] for message in messages)
            raise ConfigError(f"the chat template refuses these turns ({roles}): {error}", "history") from error
        return text if text.rstrip().endswith(self._prefix.rstrip()) else text + self._prefix

    def encode(self, text: str) -> list[int] | None:
        """Token ids of text that continues a chain, without special tokens; None without a tokenizer."""
        return None if self._tokenizer is None else list(self._encode(text))

    def decode(self, token_ids: list[int]) -> str | None:
        return (
            None
            if self._tokenizer is None
            else str(self._tokenizer.backend_tokenizer.decode(token_ids, skip_special_tokens=True))
        )

    def text_of(self, token_ids: list[int]) -> str | None:
        """The text that `apply(raw=True)` would encode to these tokens; None if there is none."""
        backend = self._tokenizer.backend_tokenizer
        added = prompt_ids(backend, "")
        rest = token_ids[len(added) :] if token_ids[: len(added)] == added else token_ids
        text = str(backend.decode(rest, skip_special_tokens=False))
        return text if prompt_ids(backend, text) == token_ids else None

    def _encode_uncached(self, text: str) -> tuple[int, ...]:
        return tuple(self._continuation.ids(text))

    def __deepcopy__(self, memo: dict[int, Any]) -> Prompting:
        return self  # shared by design: copying a large tokenizer costs hundreds of milliseconds


def _with_objects(turn: dict[str, Any]) -> dict[str, Any]:
    """A turn whose calls have their arguments as objects, as chat templates read them."""
    if not turn.get("tool_calls"):
        return turn
    calls = [
        {**call, "function": {**call["function"], "arguments": as_value(call["function"]["arguments"])}}
        for call in turn["tool_calls"]
    ]
    return {**turn, "tool_calls": calls}


def _turns(*texts: str) -> list[Turn]:
    return [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]
