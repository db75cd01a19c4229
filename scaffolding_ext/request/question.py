"""What the user asked, and how the stack puts it to the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from scaffolding_ext.prompts.prompting import Prompting
    from scaffolding_ext.protocol import GenerationTask


class Question(NamedTuple):
    """What the user asked.

    Attributes:
        prompt: The user's last words.
        history: The turns before them, each with its `role` and its `content`.
        raw: Whether the prompt goes to the model as it is, without template and suffix.
        tools: Tools that the model is told of.
        last_turn: The fields of the last turn beside its content, where it is not the user's.
        prompting: Renders the question for the model; None where the stack has no prompting. Then the other fields are
            not set, either.
    """

    prompt: str = ""
    history: Sequence[Mapping[str, str]] = ()
    raw: bool = False
    tools: Sequence[Mapping[str, Any]] | None = None
    last_turn: Mapping[str, Any] | None = None
    prompting: Prompting | None = None

    def put(self, task: GenerationTask, words: str | None = None) -> None:
        """Write the question into a task, as the prompting renders it.

        Args:
            task: The task; the rendered prompt is written into it, as text and as token ids.
            words: Replace the user's last words; None keeps them.

        Raises:
            ConfigError: The prompting cannot render the question.
        """
        assert self.prompting is not None, "without a prompting nothing renders the question"
        task.input_str = self.prompt if words is None else words
        if self.last_turn is None and self.tools is None:
            self.prompting.apply(task, self.history, self.raw)
        else:
            self.prompting.apply(task, self.history, self.raw, tools=self.tools, last_turn=self.last_turn)


NO_QUESTION = Question()
