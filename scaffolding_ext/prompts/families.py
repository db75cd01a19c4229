"""Families of reasoning models: the texts that open, probe and close their thinking."""

from __future__ import annotations

import functools
import pkgutil
from typing import NamedTuple, cast

from scaffolding_ext.answers.reading import Marks, Splitter, SplitText
from scaffolding_ext.answers.stop_strings import StopStrings
from scaffolding_ext.errors import ConfigError


class PromptFamily(NamedTuple):
    """Texts that steer one family of reasoning models.

    Attributes:
        think_close: Marks the end of thinking in the completion.
        probe: Appended to an unfinished chain to ask for its current answer, up to and including the opening brace.
        close: Appended to force the final answer while thinking is open, up to and including the opening brace.
        close_closed: The same after thinking has been closed.
        answer_end: Text after the answer in the text opened by `close`.
        verdict: Appended to a solution to ask if its answer is right; YES or NO follows.
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

    def splitter(self, is_open: bool | None, stops: StopStrings | None = None) -> Splitter:
        """Split texts of its models; `is_open` as in `Splitter`."""
        return Splitter(self.marks, is_open if self.thinks else False, stops)

    def split(self, text: str, is_open: bool | None, stops: StopStrings | None = None) -> SplitText:
        """Split a complete text of its models."""
        return self.splitter(is_open, stops).whole(text)

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
GAP = "..."  # between the marks in the name of a family
UNTHINKING_FAMILY = "instruct"


def family_named(name: str) -> PromptFamily:
    """Return the family of a name in `FAMILIES`, or of the marks in a name such as `<think>...</think>`.

    Raises:
        ConfigError: The name is neither.
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
        raise ConfigError(
            f"unknown prompt family {name!r}; known: {', '.join(FAMILIES)}; or give the marks around thinking, such as "
            f"'<think>{GAP}</think>'",
            "family",
        )
    if isinstance(family, str):
        family = FAMILIES[name] = cast("PromptFamily", pkgutil.resolve_name(family))
    return family
