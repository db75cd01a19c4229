"""Validation of request bodies. An OpenAI field that this server cannot honour is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scaffolding_ext.answers.stop_strings import MOST_CHARACTERS, MOST_STRINGS
from scaffolding_ext.serving.refusals import ApiError, of_validation, unsupported

B = TypeVar("B", bound="Body")
_Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
_Count = Annotated[int, Field(ge=1, lt=2**31)]
_Penalty = Annotated[float, Field(ge=-2, le=2)]
_Stop = Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS)]
_TokenId = Annotated[int, Field(ge=0, lt=2**31)]
_TokenIds = Annotated[list[_TokenId], Field(min_length=1, fail_fast=True)]
_MOST_ITEMS = 4096  # of a list of messages, parts or prompts
_Several = Field(min_length=1, max_length=_MOST_ITEMS, fail_fast=True)  # a list's further errors would cost seconds
_UNIONS = {  # what the fields of several types take; the parser names each type by itself
    "prompt": "a text, a list of texts, or token ids; none empty",
    "stop": f"a text, or at most {MOST_STRINGS} texts, of 1 to {MOST_CHARACTERS} characters",
    "tool_choice": '"none", "auto", "required" or {"type": "function", "function": {"name": ...}}',
    "content": f'a text, or at most {_MOST_ITEMS} parts {{"type": "text", "text": ...}}',
}
_ANYTHING = None
# Further OpenAI fields, with the values that request nothing. None allows any value: it does not affect the text.
_FURTHER: Mapping[str, tuple[Any, ...] | None] = MappingProxyType(
    {
        "user": _ANYTHING,
        "safety_identifier": _ANYTHING,
        "prompt_cache_key": _ANYTHING,
        "store": (False,),
        "service_tier": ("auto", "default"),
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "verbosity": ("medium",),
        "logprobs": (False, 0),
        "top_logprobs": (0,),
        "best_of": (1,),
        "echo": (False,),
        "suffix": ("",),
        "audio": (),
        "prediction": (),
        "web_search_options": (),
    }
)
_FURTHER_OF_MESSAGES: Mapping[str, tuple[Any, ...] | None] = MappingProxyType(
    {
        "annotations": ([],),
        "refusal": (),
        "audio": (),
        "function_call": (),
        "provider_specific_fields": _ANYTHING,  # LiteLLM sends it back with its answers
    }
)


class _Object(BaseModel):
    """An object in a body; `read_body` checks its further fields."""

    model_config = ConfigDict(strict=True, extra="allow")


class _Part(_Object):
    type: Literal["text"]
    text: str


class _CalledFunction(_Object):
    name: str
    arguments: str


class _MadeCall(_Object):
    """A tool call of an earlier answer, sent back by the client."""

    id: str
    type: Literal["function"] = "function"
    function: _CalledFunction
    index: int | None = None


class _Function(_Object):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Object):
    """A function that the model may call."""

    type: Literal["function"]
    function: _Function

    def document(self) -> dict[str, Any]:
        """The tool in the form that chat templates take."""
        return self.model_dump(exclude_none=True)


class _ChosenFunction(_Object):
    name: str


class _ToolChoice(_Object):
    type: Literal["function"]
    function: _ChosenFunction


class Message(_Object):
    """One turn of a conversation, as text."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[_Part], Field(max_length=_MOST_ITEMS, fail_fast=True)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[_MadeCall], Field(max_length=_MOST_ITEMS, fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None  # from an earlier answer; dropped, as templates do
    scaffolding: Any = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    def turn(self) -> dict[str, Any]:
        """The turn in OpenAI's form."""
        found: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": self.text}
        if self.tool_calls:
            found["tool_calls"] = [call.model_dump(include={"id", "type", "function"}) for call in self.tool_calls]
        if self.tool_call_id is not None:
            found["tool_call_id"] = self.tool_call_id
        return found


class _JsonSchema(_Object):
    name: str
    description: str | None = None
    json_schema: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(_Object):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: _JsonSchema | None = None

    @property
    def guide(self) -> dict[str, Any] | None:
        """The form as `guided_decoding` takes it; None if any text will do."""
        if self.type == "text":
            return None
        return {"json_object": True} if self.json_schema is None else {"json": self.json_schema.json_schema}


class StreamOptions(_Object):
    """Streaming options of an answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Extras(_Object):
    """Fields of this server's own."""

    trace: bool | None = None  # if True, the answer includes the trace
    deadline: Annotated[float, Field(gt=0, le=1e9)] | None = None  # seconds within which the answer is wanted
    task_type: str | None = None


class Body(BaseModel):
    """Fields of both endpoints."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    model: str
    n: Annotated[int, Field(ge=1)] | None = None
    stop: _Stop | Annotated[list[_Stop], Field(max_length=MOST_STRINGS, fail_fast=True)] | None = None
    max_tokens: _Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=_MOST_ITEMS)] | None = (
        None
    )
    seed: _Int64 | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    thinking_budget: _Count | None = None
    thinking_token_budget: _Count | None = None  # vLLM's name
    scaffolding: Extras | None = None
    metadata: Any = None  # its `task_type` is read if the stack has types

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    @property
    def num_samples(self) -> int:
        """Choices per prompt."""
        return self.n or 1

    @property
    def token_limit_name(self) -> str:
        """The field that gives the maximum number of tokens of a text."""
        return "max_tokens"

    def sampling_fields(self) -> dict[str, Any]:
        """The sampling fields, by the names of a task's fields."""
        fields = {
            "max_tokens": getattr(self, self.token_limit_name),
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "frequency_penalty": self.frequency_penalty or None,  # 0 requests nothing
            "presence_penalty": self.presence_penalty or None,
            "logit_bias": self.logit_bias or None,
        }
        return {name: value for name, value in fields.items() if value is not None}


class ChatBody(Body):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], _Several]
    max_completion_tokens: _Count | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Annotated[str, Field(max_length=64)] | None = None
    tools: Annotated[list[Tool], Field(max_length=128, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | _ToolChoice | None = None
    response_format: ResponseFormat | None = None

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The tools that the model may call."""
        return [] if self.tool_choice == "none" else [tool.document() for tool in self.tools or ()]

    @property
    def required(self) -> str | dict[str, Any] | None:
        """`tool_choice`, if it requires a call."""
        choice = self.tool_choice
        if isinstance(choice, _ToolChoice):
            return choice.model_dump()
        return choice if choice == "required" else None

    @property
    def token_limit_name(self) -> str:
        """The field that gives the maximum number of tokens of a text; the newer one takes precedence."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"


class CompletionBody(Body):
    """`POST /v1/completions`."""

    prompt: str | _TokenIds | Annotated[list[str], _Several] | Annotated[list[_TokenIds], _Several]

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """The prompts, as texts or token ids; each is answered separately."""
        one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if one else self.prompt  # type: ignore[list-item, return-value]


def read_body(
    kind: type[B], content: bytes, most_objects: int = 1 << 15, ignore: Callable[[str], None] | None = None
) -> B:
    """Parse and check the body of a request.

    Args:
        kind: The endpoint's body.
        content: The JSON text.
        most_objects: Most braces and brackets that may open in it, in texts too: they cost the parser most.
        ignore: Called with the name of each unknown field, which is then ignored; None refuses unknown fields.

    Raises:
        ApiError: The body is not JSON, or a field is unknown, invalid or unsupported.
    """
    if content.count(b"{") + content.count(b"[") > most_objects:
        message = f"the body of the request has more than {most_objects} objects and lists: send fewer"
        raise ApiError(413, message, "body_too_large")
    try:
        body = kind.model_validate_json(content)
    except ValidationError as error:
        raise of_validation(error, _UNIONS) from None
    for within, name, value in _further(body):
        place = f"{within}{name[:80]}"
        known = _FURTHER_OF_MESSAGES if within else _FURTHER
        if value is None:
            continue
        if name not in known:
            if ignore is None:
                raise ApiError(
                    400, f"{place!r} is not a field of this endpoint: leave it out", "unknown_parameter", place
                )
            ignore(place)
            continue
        neutral = known[name]
        if neutral is not None and value not in neutral:
            raise unsupported(place, f"is not served: leave it out{_or(neutral)}")
    return body


def _further(model: BaseModel, within: str = "") -> list[tuple[str, str, Any]]:
    """The fields of a body, and of the objects in it, that its class does not have: path, name and value."""
    found = [(within, name, value) for name, value in (model.__pydantic_extra__ or {}).items()]
    for name in model.__pydantic_fields_set__:
        value = model.__dict__.get(name)
        if isinstance(value, list) and value and isinstance(value[0], _Object):
            for number, each in enumerate(value):
                found += _further(each, f"{within}{name}.{number}.")
        elif isinstance(value, _Object):
            found += _further(value, f"{within}{name}.")
    return found


def _or(values: tuple[Any, ...]) -> str:
    return f", or give {' or '.join(map(repr, values))}" if values else ""
