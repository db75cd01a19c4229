"""Prompt rendering, and the texts that open, probe and close a model family's thinking.

A `Prompting` is applied once when a request starts. It holds the tokenizer by reference: cloning a controller copies
the reference, never the tokenizer.
"""

from __future__ import annotations

import functools
import logging
import os
import pkgutil
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from scaffolding_ext.answers.reading import Marks, Splitter, SplitText, split
from scaffolding_ext.answers.stop_strings import StopStrings
from scaffolding_ext.errors import ConfigError, MissingDependencyError, ScaffoldingExtError, UnknownNameError
from scaffolding_ext.prompts.call_forms import KNOWN, Tools, as_text
from scaffolding_ext.prompts.encoding import Continuation, prompt_ids, special_texts, token_bytes, token_ids
from scaffolding_ext.prompts.model_files import (
    GAP,
    FamilyChoice,
    as_shown,
    calls_of,
    chosen_family,
    how_to_load,
    refuse_own_tokenizer,
    show_marks,
)
from scaffolding_ext.prompts.tool_calls import OfferedTools
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import meta_of, note
from scaffolding_ext.protocol.task_results import output_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


_log = logging.getLogger(__name__)
Turn = Mapping[str, Any]  # `role`, `content` and whatever else the chat template reads


class PromptFamily(NamedTuple):
    """Texts that steer one family of reasoning models.

    Attributes:
        think_close: Marks the end of thinking in the completion.
        probe: Appended to an unfinished chain to ask for its current answer, up to and including the opening brace.
        close: Appended to force the final answer while thinking is open, up to and including the opening brace.
        close_closed: The same after thinking has been closed.
        answer_end: Text after the answer in the text opened by `close`.
        verdict: Appended to a solution to ask if its answer is right; YES or NO follows.
        check: Likewise; a short derivation and then YES or NO follow.
        step_verdict: Appended to a solution that ends in a step to ask if that step is right; YES or NO follows.
        think_open: Marks the beginning of thinking in the completion, if the prompt does not open it.
        hidden: Special tokens in these texts: the model reads them, but no text from a worker shows them.
        thinks: True if its models think before they answer; otherwise the whole text is the answer.
        answer_open: Marks the beginning of the answer behind `think_close`, if something does.
        answer_close: Marks its end.
    """

    think_close: str
    probe: str
    close: str
    close_closed: str
    answer_end: str
    verdict: str = "\n\nIs this answer correct? Reply with YES or NO.\n"
    check: str = "\n\nCheck this answer: work it out again in a few lines, then reply with YES or NO.\n"
    step_verdict: str = "\n\nIs the work right up to here? Reply with YES or NO.\n"
    think_open: str = "<think>"
    hidden: tuple[str, ...] = ()
    thinks: bool = True
    answer_open: str = ""
    answer_close: str = ""

    @property
    def marks(self) -> Marks:
        """The marks around its thinking and answer in a text; empty if its models do not think."""
        if not self.thinks:
            return Marks("", "")
        return Marks(self.think_open, self.think_close, self.answer_open, self.answer_close)

    def splitter(
        self, is_open: bool | None, stops: StopStrings | None = None, offered: OfferedTools | None = None
    ) -> Splitter:
        """Split texts of its models; `is_open` as in `Splitter`, `offered` the tools that they may call."""
        is_open = is_open if self.thinks else False
        if not offered:
            return Splitter(self.marks, is_open, stops)
        return Splitter(offered.added_to(self.marks), is_open, stops, offered.are_calls)

    def split(self, text: str, is_open: bool | None, stops: StopStrings | None = None) -> SplitText:
        """Split a complete text of its models."""
        return split(text, self.marks, is_open if self.thinks else False, stops)

    @property
    def answering(self) -> PromptFamily:
        """The family behind a prompt that has closed thinking: all of the text is the answer, and nothing closes."""
        return _answering(self)

    def as_shown(self, text: str) -> str:
        """A family text as a worker would return it: without its special tokens."""
        return functools.reduce(lambda shown, token: shown.replace(token, ""), self.hidden, text)


@functools.cache
def _answering(family: PromptFamily) -> PromptFamily:
    other = family_named(UNTHINKING_FAMILY)
    return family._replace(
        thinks=False,
        probe=other.probe,
        close=other.close,
        close_closed=other.close_closed,
        answer_end=other.answer_end,
    )


class TurnEnd(NamedTuple):
    """The end of the assistant's turn up to the user's next.

    Attributes:
        token_id: The special token it begins with; None without one.
        shown: All of it as decoded text, without special tokens.
    """

    token_id: int | None
    shown: str


# A string is the import path of a family that ships with a package; it is imported on first use.
FAMILIES: dict[str, PromptFamily | str] = {
    # The suffixes of the released Dynasor code, shared by the R1 distillates and QwQ.
    "deepseek_r1": PromptFamily(
        think_close="</think>",
        probe="... Oh, I suddenly got the answer to the whole problem, **Final Answer**\n\n\\[ \\boxed{",
        close="\n\n...</think>\n Oh, I have got the answer to the whole problem\n**Final Answer:**\n\\[\n \\boxed{",
        close_closed="\n\n... Oh, I have got the answer to the whole problem\n**Final Answer:**\n\\[\n \\boxed{",
        answer_end="}\n\\]",
    ),
    # Models without a mark for the end of thinking: nothing closes, and thinking aloud is part of the answer.
    # Instruction-tuned models are asked to end with this sentence (Llama 3.1's prompt for MATH, lighteval's for AIME).
    # The box stays on the same line: the model continues a box on a separate line with LaTeX that often never closes
    # it.
    "instruct": PromptFamily(
        think_close="</think>",  # never written by such a model
        probe="\n\nTherefore, the final answer is: $\\boxed{",
        close="\n\nTherefore, the final answer is: $\\boxed{",
        close_closed="\n\nTherefore, the final answer is: $\\boxed{",
        answer_end="}$.",
        thinks=False,
    ),
    # gpt-oss: thinking is a message in the channel `analysis`, the answer one in the channel `final` (OpenAI's harmony
    # format). The marks between them are special tokens, so a completion reads "analysis...assistantfinal...".
    "gpt_oss": PromptFamily(
        think_open="analysis",
        think_close="assistantfinal",
        probe="... Oh, I suddenly got the answer to the whole problem, **Final Answer**\n\n\\[ \\boxed{",
        close="\n\n...<|end|><|start|>assistant<|channel|>final<|message|>**Final Answer:**\n\\[\n \\boxed{",
        close_closed="\n\n**Final Answer:**\n\\[\n \\boxed{",
        answer_end="}\n\\]",
        hidden=("<|end|>", "<|start|>", "<|channel|>", "<|message|>"),
    ),
    # Mistral's reasoning models, 2507 and later.
    "magistral": PromptFamily(
        think_open="[THINK]",
        think_close="[/THINK]",
        probe="... Oh, I suddenly got the answer to the whole problem, **Final Answer**\n\n\\[ \\boxed{",
        close="\n\n...[/THINK]**Final Answer:**\n\\[\n \\boxed{",
        close_closed="\n\n**Final Answer:**\n\\[\n \\boxed{",
        answer_end="}\n\\]",
    ),
    "tinylm": "scaffolding_ext.tinylm.embedded:FAMILY",
}
DEFAULT_FAMILY = "deepseek_r1"
UNTHINKING_FAMILY = "instruct"
# Variables that transformers passes to every chat template.
_OF_TRANSFORMERS = {
    *("messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"),
    *("bos_token", "eos_token", "pad_token", "unk_token", "range", "namespace", "dict", "lipsum", "cycler", "joiner"),
}
_CUT = f"cut{secrets.token_hex(8)}"  # inside special tokens that users spell out; the pieces are encoded one by one
_ANSWER = "(the answer so far)"  # placeholder, to render what follows it
# Functions that return the folder of a model `COLLECTION/NAME`. Models of a collection have the family of that name.
COLLECTIONS = {"tinylm": "scaffolding_ext.tinylm.embedded:model_folder"}
# Tokenizers of collections that do not need transformers.
_TOKENIZERS = {"tinylm": "scaffolding_ext.tinylm.embedded:EmbeddedTokenizer"}


def family_named(name: str) -> PromptFamily:
    """Return the family of a name in `FAMILIES`, or of the marks in a name such as `<think>...</think>`.

    Raises:
        UnknownNameError: The name is neither.
    """
    family = FAMILIES.get(name)
    if family is None and GAP in name:
        default = family_named(DEFAULT_FAMILY)
        think_open, think_close, answer_open, answer_close = (*name.split(GAP), "", "")[:4]
        return default._replace(
            think_open=think_open,
            think_close=think_close,
            answer_open=answer_open,
            answer_close=answer_close,
            close=default.close.replace(default.think_close, think_close + answer_open),
        )
    if family is None:
        raise UnknownNameError(
            f"unknown prompt family {name!r}; known: {', '.join(FAMILIES)}; or give the marks around thinking, such as "
            f"'<think>{GAP}</think>'",
            "family",
        )
    if isinstance(family, str):
        family = FAMILIES[name] = cast("PromptFamily", pkgutil.resolve_name(family))
    return family


def model_folder(model: str) -> str:
    """Resolve `tinylm/NAME` to the folder of the shipped weights; other names pass through."""
    collection = _collection_of(model)
    return model if collection is None else str(pkgutil.resolve_name(COLLECTIONS[collection])(model))


def _collection_of(model: str) -> str | None:
    name, slash, _ = model.partition("/")
    return name if slash and name in COLLECTIONS else None


@functools.lru_cache(maxsize=8)
def load_tokenizer(model: str, trust_remote_code: bool = False) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a model folder, hub name or `tinylm/NAME`; one object per name and process."""
    folder = model_folder(model)
    own = _TOKENIZERS.get(_collection_of(model) or "")
    if own is not None:
        return cast("PreTrainedTokenizerFast", pkgutil.resolve_name(own)(folder))
    options = how_to_load(folder, model, trust_remote_code)
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingDependencyError("transformers", "hf") from error
    if not trust_remote_code:
        refuse_own_tokenizer(folder, model)
    tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    if not tokenizer.is_fast:
        raise ConfigError(
            f"the tokenizer of {model!r} has no fast (Rust) version, which this package needs: convert it to a "
            "tokenizer.json"
        )
    if tokenizer.chat_template is not None:
        show_marks(tokenizer)
    return tokenizer


def may_have_tokenizer(model: str) -> bool:
    """True if a server's model name may also name a tokenizer: `tinylm/NAME`, a folder, or a hub name."""
    return os.path.isdir(model_folder(model)) or (model.count("/") == 1 and not model.lower().endswith(".gguf"))


def has_tokenizer(model: str) -> bool:
    """True if the tokenizer of this name can be loaded; a hub name may take seconds."""
    try:
        return may_have_tokenizer(model) and load_tokenizer(model) is not None
    except Exception as error:  # transformers raises many types for a model it cannot load
        _log.info("the tokenizer of %s cannot be loaded: %s", model, error)
        return False


class TextPrompting:
    """Prompting of a worker with an unknown tokenizer: prompts are text, and chat turns are messages.

    Attributes:
        shows_special: True if the model's marks are special tokens, which texts must show.

    Args:
        chat: If True, the worker takes messages, which its server renders. Otherwise prompts go to the model unchanged,
            and there are no turns.
        family: A name in `FAMILIES`. If it does not think but the server separates thinking, the default one is taken.
        separates_thinking: True if the server separates thinking; the worker then puts the family's marks around it.
        system_prompt: Precedes the user's prompt, or None.
        prompt_suffix: Follows every user prompt, such as the request to put the answer into a box.

    Raises:
        UnknownNameError: The family is unknown.
        ConfigError: A system prompt is given, but the worker takes no messages.
    """

    shows_special = False

    def __init__(
        self,
        chat: bool,
        family: str | None = None,
        system_prompt: str | None = None,
        prompt_suffix: str | None = None,
        separates_thinking: bool = False,
    ) -> None:
        if system_prompt is not None and not chat:
            raise ConfigError(
                "needs a chat template: use endpoint: chat, or name the model's tokenizer", "system_prompt"
            )
        reason = "named" if family else "unknown tokenizer; prompt.family selects another"
        name = family or UNTHINKING_FAMILY
        if separates_thinking and not family_named(name).thinks:
            name, reason = DEFAULT_FAMILY, "the server separates thinking from the answer"
        self.separates_thinking = separates_thinking
        self.family = family_named(name)
        self.choice = FamilyChoice(name, reason, is_guess=family is None)
        self.prompt_suffix = prompt_suffix or ""
        self.chat = chat
        self._system_prompt = system_prompt

    @property
    def opens_thinking(self) -> bool:
        """True if the prompt ends with open thinking, so the completion begins inside it."""
        return False

    @property
    def closes_thinking(self) -> bool:
        """True if the prompt ends with closed thinking, so the model answers at once."""
        return False

    def family_behind(self, prompt: str) -> PromptFamily:
        """The family's texts behind a rendered prompt: those of answering if the prompt closes thinking."""
        return self.family

    def is_open(self, prompt: str, family: PromptFamily | None = None) -> bool | None:
        """True if a rendered prompt ends in open thinking of a family; None if that cannot be known."""
        return False if self.separates_thinking else None  # the worker's text opens it

    def split(self, prompt: str, text: str) -> SplitText:
        """Split a complete text by the end of the rendered prompt that it answers."""
        return self.family_behind(prompt).split(text, self.is_open(prompt))

    def offered(self, tools: Tools) -> OfferedTools:
        """Tools as the model may call them.

        Raises:
            ConfigError: Prompts do not show tools to the model, or its calls cannot be read back.
        """
        raise ConfigError("are given, but no known tokenizer shows tools: leave them out", "tools")

    def apply(
        self,
        task: GenerationTask,
        history: Sequence[Turn] = (),
        raw: bool = False,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        last_turn: Turn | None = None,
    ) -> None:
        """Add the suffix to the task's `input_str` and note the earlier turns; see `Prompting.apply`."""
        if tools or "role" in (last_turn or {}):
            self.offered(tools or ())
        if history and not self.chat:
            raise ConfigError(
                "holds earlier turns, but no chat template is known to render them: send one turn, or use "
                "endpoint: chat",
                "history",
            )
        if raw:
            return
        if last_turn is None:
            task.input_str = (task.input_str or "") + self.prompt_suffix
        turns = [dict(turn) for turn in history]
        if self._system_prompt and turns and turns[0]["role"] == "system":
            turns[0]["content"] = f"{self._system_prompt}\n\n{turns[0]['content']}"
        elif self._system_prompt:
            turns.insert(0, {"role": "system", "content": self._system_prompt})
        if turns:
            note(task, turns=tuple(turns))

    def next_turn(self, task: GenerationTask, prompt: str) -> GenerationTask:
        """Return a task with the conversation's next question; see `Prompting.next_turn`."""
        answer, notes, text = output_of(task), meta_of(task), task.input_str or ""
        further = prompt + self.prompt_suffix
        if not self.chat:
            return GenerationTask(worker_tag=task.worker_tag, input_str=f"{text}{answer}\n\n{further}\n\n")
        found = GenerationTask(worker_tag=task.worker_tag, input_str=further)
        begun = "" if notes.turn_start is None else text[notes.turn_start :]
        said = _turns(text[: notes.turn_start], begun + answer)
        note(found, turns=(*notes.turns, *said))
        return found

    def encode(self, text: str) -> list[int] | None:
        return None

    def decode(self, token_ids: list[int]) -> str | None:
        return None


class Prompting(TextPrompting):
    """System prompt, chat template and prompt family of a stack.

    Args:
        tokenizer: A fast tokenizer. If it has a chat template, prompts are rendered with it, opened for the assistant;
            otherwise the prompt is used unchanged.
        family: A name in `FAMILIES`.
        system_prompt: Precedes the user's prompt, or None.
        chat_template: If False, prompts are used unchanged even if the tokenizer has a template.
        prompt_suffix: Follows every user prompt, such as the request to put the answer into a box.
        chat_template_kwargs: Further variables of the chat template, such as `enable_thinking` or `reasoning_effort`.
        assistant_prefix: Beginning of the assistant's turn, such as `"<think>\\n"`; left out if the chat template
            already wrote it.

    Raises:
        UnknownNameError: The family is unknown.
        ConfigError: A system prompt, template variables or an assistant prefix are given without a chat template, or
            the chat template reads no such variable.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        family: str = DEFAULT_FAMILY,
        system_prompt: str | None = None,
        chat_template: bool = True,
        prompt_suffix: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        assistant_prefix: str | None = None,
    ) -> None:
        super().__init__(True, family, system_prompt, prompt_suffix)
        self._tokenizer = tokenizer
        self._variables = dict(chat_template_kwargs or {})
        self._prefix = assistant_prefix or ""
        self._has_warned = False
        self._templated = chat_template and tokenizer.chat_template is not None
        for key, value in (
            ("system_prompt", system_prompt),
            ("chat_template_kwargs", chat_template_kwargs),
            ("assistant_prefix", assistant_prefix),
        ):
            if value is not None and not self._templated:
                raise ConfigError("needs a chat template, but the tokenizer has none or chat_template is off", key)
        if self._variables:
            _check_variables(self._variables, tokenizer.chat_template)
        self._continuation = Continuation(tokenizer.backend_tokenizer)
        shown: frozenset[str] = getattr(tokenizer, "shown_marks", frozenset())
        self.shows_special = bool(shown)
        self._special = special_texts(tokenizer.backend_tokenizer, shown)
        self._whole_ids = functools.lru_cache(maxsize=32)(self._read_whole)  # a server counts a prompt before it runs
        self._encode = functools.lru_cache(maxsize=256)(self._encode_uncached)

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
        collection = _collection_of(model)
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
        is_closed = self._templated and self.family.marks.closed_by(self.family.as_shown(prompt))
        return self.family.answering if is_closed else self.family

    def is_open(self, prompt: str, family: PromptFamily | None = None) -> bool | None:
        """Read off a rendered prompt's end if thinking is open there; another turn may end otherwise."""
        marks = (family or self.family).marks
        if not self._templated or not marks.think_open:
            return None
        return marks.opened_by(self.family.as_shown(prompt))

    @property
    def forgets_thinking(self) -> bool:
        """True if the chat template drops the thinking of earlier turns."""
        answer = f"{self.family.think_open}\n{_ANSWER}\n{self.family.think_close}\n\nSo."
        try:
            return self._templated and _ANSWER not in self._rendered(*_turns("?", answer, "?"))
        except ConfigError:  # the template takes no further turns
            return False

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
        messages = [dict(turn) for turn in _turns("?", answer)]
        if self._system_prompt:
            messages.insert(0, {"role": "system", "content": self._system_prompt})
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages, tokenize=False, continue_final_message=True, **self._variables
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
        if not ids:
            return None
        return TurnEnd(None if self.decode(ids[:1]) else ids[0], self.decode(ids))

    def _shown_prompt(self) -> str:
        return self.family.as_shown(self._rendered(*_turns("?")))

    def offered(self, tools: Tools) -> OfferedTools:
        if not (self._templated and "tools" in str(self._tokenizer.chat_template)):
            raise ConfigError("are given, but this model's chat template does not show tools: leave them out", "tools")
        shown = calls_of(self._tokenizer)
        if shown is None:
            if not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "the chat template shows tools to the model, but no call: calls are read in the forms of Hermes, "
                    "Qwen and Mistral models; check that the model writes one of them"
                )
            return OfferedTools(tools)
        what = f"the chat template writes calls in a form that is not read here: {shown.sample!r}"
        if shown.form is None or "plain" in shown.unread:
            raise ConfigError(f"cannot be used: {what}. Leave them out", "tools")
        for name, kinds in (("list", ("array", "object")), ("types", ("integer", "number", "boolean"))):
            for path, kind in _parameters(tools) if name in shown.unread else ():
                if kind in kinds:
                    raise ConfigError(f"have a parameter {path!r} of type {kind}: {what}. Leave it out", "tools")
        form = shown.form.as_shown(lambda text: as_shown(self._tokenizer, text)) if self.family.hidden else shown.form
        return OfferedTools(tools, (form, *(known for known in KNOWN if known != form)))

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

        Special tokens that turns and tools spell out are encoded as plain text, so they open and close no turn.

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
        text = task.input_str or ""
        if history and not templated:
            raise ConfigError(
                "holds earlier turns, but this model has no chat template to render them: send one turn", "history"
            )
        if tools and not templated:
            raise ConfigError(
                "are given, but this prompt has no chat template that shows them: leave them out", "tools"
            )
        if tools:
            self.offered(tools)
        if not raw and last_turn is None:
            text += self.prompt_suffix
        if templated:
            last = {"role": "user", **(last_turn or {}), "content": text}
            text = self._rendered(*map(self._cut, history), self._cut(last), tools=self._cut(tools))
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
        answer = output_of(task)
        opening = f"\n\n{prompt}{self.prompt_suffix}\n\n"
        if self._templated:
            turns = _turns("?", _ANSWER, self._cut(prompt + self.prompt_suffix))
            opening = self._rendered(*turns).partition(_ANSWER)[2]
        pieces = opening.split(_CUT)
        text = None if task.input_str is None else "".join((task.input_str, answer, *pieces))
        ids = None
        if task.input_tokens is not None and task.output_tokens is not None:
            written = task.output_tokens
            if written and not self.decode(written[-1:]):  # an end token; the opening brings one
                written = written[:-1]
            ids = task.input_tokens + written + [token for piece in pieces for token in self.encode(piece)]
        return GenerationTask(worker_tag=task.worker_tag, input_str=text, input_tokens=ids)

    def _cut(self, value: Any) -> Any:
        """Cut the special tokens in the texts of a turn or tool, each behind its first character."""
        if isinstance(value, str):
            return self._special.sub(lambda found: f"{found[0][0]}{_CUT}{found[0][1:]}", value)
        if isinstance(value, Mapping):
            return {key: self._cut(each) for key, each in value.items()}
        return [self._cut(each) for each in value] if isinstance(value, Sequence) else value

    def _rendered(self, *turns: Turn, tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        """Render a conversation with the chat template, opened for the assistant."""
        messages = [dict(turn) for turn in turns]
        if self._system_prompt and messages[0]["role"] == "system":
            messages[0]["content"] = f"{self._system_prompt}\n\n{messages[0]['content']}"
        elif self._system_prompt:
            messages.insert(0, {"role": "system", "content": self._system_prompt})
        if any("tool_calls" in message for message in messages):
            shown = calls_of(self._tokenizer)
            messages = [as_text(message) for message in messages] if shown and shown.as_text else messages
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

    def encode(self, text: str) -> list[int]:
        """Token ids of text that continues a chain, without special tokens."""
        return list(self._encode(text))

    def decode(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.backend_tokenizer.decode(token_ids, skip_special_tokens=True))

    def bytes_of(self, token_id: int) -> bytes:
        """Bytes of one token in a text, even if they are only part of a character."""
        return token_bytes(self._tokenizer.backend_tokenizer, token_id)

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


def _turns(*texts: str) -> list[Turn]:
    return [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]


def _parameters(tools: Tools) -> Iterator[tuple[str, str]]:
    """The parameters of tools, each with its type."""
    for tool in tools:
        function = tool["function"]
        for name, schema in ((function.get("parameters") or {}).get("properties") or {}).items():
            kind = schema.get("type") if isinstance(schema, Mapping) else None
            yield f"{function['name']}.{name}", str(kind)


def _check_variables(variables: Mapping[str, Any], template: Any) -> None:
    """Refuse variables that a chat template never reads, since it would silently ignore them."""
    import jinja2
    from jinja2 import meta, nodes

    environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        tree = environment.parse(str(template))
    except jinja2.TemplateSyntaxError:  # it uses tags that only transformers knows
        return
    read = meta.find_undeclared_variables(tree)
    unread = sorted(variables.keys() - read)
    if unread:
        its_own = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"}
        tests = (test.node for test in tree.find_all(nodes.Test) if test.name in ("defined", "undefined"))
        asked = {node.name for node in tests if isinstance(node, nodes.Name)}
        known = ", ".join(sorted((read - its_own | read & asked) - _OF_TRANSFORMERS)) or "none"
        raise ConfigError(
            f"{unread[0]!r} is not a variable of the chat template; apart from the conversation it reads: {known}",
            f"chat_template_kwargs.{unread[0]}",
        )
