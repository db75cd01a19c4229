"""How a question becomes a prompt, and how a model family's thinking opens, is probed, and is closed.

A `Prompting` is applied once when a request starts. It holds the tokenizer by reference: cloning a controller copies
the reference, never the tokenizer.
"""

from __future__ import annotations

import functools
import logging
import pkgutil
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from scaffolding_ext.errors import ConfigError, MissingDependencyError, ScaffoldingExtError, UnknownNameError
from scaffolding_ext.model_files import how_to_load
from scaffolding_ext.protocol import Worker
from scaffolding_ext.worker_tags import WorkerTag, worker_for

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from scaffolding_ext.protocol import GenerationTask


class PromptFamily(NamedTuple):
    """The texts that steer one family of reasoning models.

    Attributes:
        think_close: Marks the end of thinking in the completion.
        probe: Appended to an unfinished chain to ask for its current answer, up to and with the opening brace.
        close: Appended to force the final answer while thinking is open, up to and with the opening brace.
        close_closed: The same after thinking has been closed.
        answer_end: What follows the answer in the text that `close` opens.
    """

    think_close: str
    probe: str
    close: str
    close_closed: str
    answer_end: str


# A string names where a family is: models that ship with a package bring theirs, and it is imported when asked for.
FAMILIES: dict[str, PromptFamily | str] = {
    # The suffixes of the released Dynasor code, shared by the R1 distillates and QwQ.
    "deepseek_r1": PromptFamily(
        think_close="</think>",
        probe="... Oh, I suddenly got the answer to the whole problem, **Final Answer**\n\n\\[ \\boxed{",
        close="\n\n...</think>\n Oh, I have got the answer to the whole problem\n**Final Answer:**\n\\[\n \\boxed{",
        close_closed="\n\n Oh, I have got the answer to the whole problem\n**Final Answer:**\n\\[\n \\boxed{",
        answer_end="}\n\\]",
    ),
    "tinylm": "scaffolding_ext.tinylm.embedded:FAMILY",
}
DEFAULT_FAMILY = "deepseek_r1"
_log = logging.getLogger(__name__)
# Who finds the folder of a model `COLLECTION/NAME`. Models of a collection are of the family of that name.
COLLECTIONS = {"tinylm": "scaffolding_ext.tinylm.embedded:model_folder"}


def family_named(name: str) -> PromptFamily:
    """The family of that name.

    Raises:
        UnknownNameError: There is none; add it to `FAMILIES`.
    """
    family = FAMILIES.get(name)
    if family is None:
        raise UnknownNameError(f"unknown prompt family {name!r}; known: {', '.join(FAMILIES)}", "family")
    if isinstance(family, str):
        family = FAMILIES[name] = cast("PromptFamily", pkgutil.resolve_name(family))
    return family


def model_folder(model: str) -> str:
    """Resolve `tinylm/NAME` to the folder of the weights that ship with the package; other names pass through.

    Raises:
        UnknownNameError: No embedded model has that name.
    """
    collection = _collection_of(model)
    return model if collection is None else str(pkgutil.resolve_name(COLLECTIONS[collection])(model))


def _collection_of(model: str) -> str | None:
    name, slash, _ = model.partition("/")
    return name if slash and name in COLLECTIONS else None


@functools.lru_cache(maxsize=8)
def load_tokenizer(model: str, trust_remote_code: bool = False) -> PreTrainedTokenizerFast:
    """The tokenizer of a model folder, hub name or `tinylm/NAME`; one object a name and process."""
    folder = model_folder(model)
    options = how_to_load(folder, model, trust_remote_code)
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingDependencyError("transformers", "hf") from error
    tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    if not tokenizer.is_fast:
        raise ConfigError(f"the tokenizer of {model!r} has no fast (Rust) version, which this package needs")
    return tokenizer


class Prompting:
    """System prompt, chat template and prompt family of a stack.

    Args:
        tokenizer: A fast tokenizer. Where it has a chat template, prompts are rendered with it, opened for the
            assistant; elsewhere the prompt is used as it is.
        family: A name in `FAMILIES`.
        system_prompt: Goes before the user's prompt, or None.
        chat_template: False uses prompts as they are even where the tokenizer has a template.

    Raises:
        UnknownNameError: The family is unknown.
        ConfigError: A system prompt is given but there is no chat template to place it.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        family: str = DEFAULT_FAMILY,
        system_prompt: str | None = None,
        chat_template: bool = True,
    ) -> None:
        self.family = family_named(family)
        self._tokenizer = tokenizer
        self._system_prompt = system_prompt
        self._templated = chat_template and tokenizer.chat_template is not None
        if system_prompt is not None and not self._templated:
            raise ConfigError(
                "needs a chat template, and there is none: the tokenizer has none, or chat_template is off",
                "system_prompt",
            )
        self._encode = functools.lru_cache(maxsize=256)(self._encode_uncached)

    @classmethod
    def for_model(
        cls, model: str, family: str | None = None, trust_remote_code: bool = False, **options: Any
    ) -> Prompting:
        """The prompting of a model folder, hub name or `tinylm/NAME`; the family is guessed from the name.

        Raises:
            MissingDependencyError: transformers is not installed.
            ConfigError: The model has no tokenizer that can be loaded, or an option is wrong; `key` names the argument.
        """
        try:
            tokenizer = load_tokenizer(model, trust_remote_code)
        except ConfigError as error:
            where = f"the tokenizer of {model!r} cannot be loaded: the model " if error.key == "model" else ""
            raise type(error)(where + error.message, "model") from error
        except ScaffoldingExtError:
            raise
        except Exception as error:  # of any type: transformers has many for a model that it cannot load
            message = f"the tokenizer of {model!r} cannot be loaded ({type(error).__name__}: {error})"
            raise ConfigError(f"{message}; name a model folder, a hub name or tinylm/NAME", "model") from error
        return cls(tokenizer, family or _collection_of(model) or DEFAULT_FAMILY, **options)

    def apply(self, task: GenerationTask) -> None:
        """Turn the task's `input_str` from the user's prompt into the model's, with `input_tokens` beside it."""
        text = task.input_str or ""
        if self._templated:
            messages = [{"role": "system", "content": self._system_prompt}] if self._system_prompt else []
            messages.append({"role": "user", "content": text})
            text = str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        task.input_str = text
        task.input_tokens = self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=not self._templated).ids

    def encode(self, text: str) -> list[int]:
        """Token ids of a piece of text that continues a chain (no special tokens are added)."""
        return list(self._encode(text))

    def decode(self, token_ids: list[int]) -> str:
        """The text of token ids, special tokens left out."""
        return str(self._tokenizer.backend_tokenizer.decode(token_ids, skip_special_tokens=True))

    def _encode_uncached(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)

    def __deepcopy__(self, memo: dict[int, Any]) -> Prompting:
        return self  # shared by design: copying a large tokenizer costs hundreds of milliseconds


class ServedModel(NamedTuple):
    """Whose model reads the user's prompts in a stack.

    Attributes:
        worker: The generation worker, or else the target, or the draft.
        model: A name that `Prompting.for_model` takes; None where the worker has no model, or does not say.
        is_known: Whether the worker said.
    """

    worker: Worker
    model: str | None
    is_known: bool


def served_model(workers: Mapping[Any, Worker]) -> ServedModel | None:
    """The model that the user's prompts go to; None where no worker generates.

    Raises:
        ConfigError: The worker holds workers of several models and does not say which of them its prompts are for.
    """
    tags = (WorkerTag.GENERATION, WorkerTag.TARGET, WorkerTag.DRAFT)
    worker = next((found for tag in tags if (found := worker_for(workers, tag)) is not None), None)
    if worker is None:
        return None
    models = _models_in(worker, set())
    if len(models) > 1:
        raise ConfigError(
            f"{type(worker).__name__} holds workers of several models ({', '.join(sorted(map(str, models)))}); "
            "give it an attribute `model` with the one that its prompts are for"
        )
    return ServedModel(worker, next(iter(models), None), bool(models))


def _models_in(worker: Worker, seen: set[int]) -> set[str | None]:
    """What a worker says in its `model`, or else what the workers say that it holds."""
    if hasattr(worker, "model"):
        return {worker.model}
    seen.add(id(worker))
    inner = [value for value in vars(worker).values() if isinstance(value, Worker) and id(value) not in seen]
    return set().union(*(_models_in(value, seen) for value in inner))


def take_prompting(controller: Any, workers: Mapping[Any, Worker]) -> None:
    """Give a stack's outermost controller the prompting of its model, unless its `prompting` has been set, if to None.

    Where prompts go to a model as they are, it says so once: by a warning where that was chosen, in the log where a
    worker does not say which model it serves.

    Raises:
        ConfigError: The worker holds several models, or no prompting can be had for the one that it names.
    """
    if not hasattr(controller, "prompting") or controller.prompting is not None:
        return  # a foreign controller writes its prompts itself
    served = served_model(workers)
    if served is None or (served.is_known and served.model is None):
        return
    name = type(served.worker).__name__
    if served.model is None:
        _log.warning(
            "%s does not say which model it serves, so prompts go to it as they are, without a chat template: give it "
            "an attribute `model` (None if it has none), or set controller.prompting = Prompting.for_model(NAME)",
            name,
        )
    elif "prompting" in vars(controller):
        warnings.warn(
            f"controller.prompting is None, so prompts go to {served.model!r} as they are, without its chat template",
            stacklevel=3,
        )
    else:
        try:
            controller.prompting = Prompting.for_model(served.model)
        except ConfigError as error:
            raise ConfigError(
                f"{name} serves {served.model!r}, but {error.message}; or set controller.prompting (in a stack file "
                "`prompt`) by yourself, to None to send prompts as they are",
                "prompt",
            ) from error
