"""The reading of a request's texts, and the request for a missing answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from scaffolding_ext.answers import begun_box, extract
from scaffolding_ext.answers.reading import Splitter, SplitText
from scaffolding_ext.answers.stop_strings import StopStrings
from scaffolding_ext.controllers.chain.chain import Prefix, continuation
from scaffolding_ext.controllers.chain.ending import without_end
from scaffolding_ext.controllers.prompting import begun, encode
from scaffolding_ext.prompts.families import PromptFamily
from scaffolding_ext.prompts.sampling_params import apply_sampling_params
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask
from scaffolding_ext.protocol.meta import PROBE, note
from scaffolding_ext.protocol.task_results import output_of
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.request.program import Program, current_program, record
from scaffolding_ext.request.results import Completion
from scaffolding_ext.serving.refusals import ApiError


class Reading(NamedTuple):
    """The reading of one request's texts.

    Attributes:
        family: Family of the model; one that does not think if the whole text is the answer.
        is_open: True if the prompt ends in open thinking; None if that is not known.
        stops: Strings that end the answer.
    """

    family: PromptFamily
    is_open: bool | None = None
    stops: StopStrings = StopStrings()

    def splitter(self) -> Splitter:
        return self.family.splitter(self.is_open, self.stops)

    def split(self, text: str) -> SplitText:
        """Split a complete text; if its thinking never ended, the whole text is thinking."""
        return self.family.split(text, self.is_open, self.stops)


class Closing(NamedTuple):
    """Requests an answer for a choice if its controller gave none.

    Attributes:
        reading: Splits a text into thinking and answer; the whole text of a raw prompt is the answer.
        family: Family of the reasoning model.
        tag: Tag of the worker that writes the answer.
        max_tokens: Maximum tokens of the requested answer.
        budget: Thinking tokens that the request allows; returned thinking counts against it.
        cannot: Reason why the worker cannot write the answer; None if it can.
    """

    reading: Reading
    family: PromptFamily
    tag: WorkerTag
    max_tokens: int
    budget: int | None = None
    cannot: str | None = None

    def close(self, work: ControllerGenerator) -> ControllerGenerator:
        """Run a request's work; if it returns no answer, request one.

        Returns:
            The work's completion, with an answer.

        Raises:
            ApiError: The requested answer is empty, too, or no worker can write one.
        """
        completion, program = (yield from work), current_program()
        if not isinstance(completion, Completion) or program is None or program.question.prompting is None:
            return completion
        shown = self.reading.split(completion.text or "")
        if not shown.answer.strip() and not shown.is_stopped and completion.answer not in program.calls:
            completion = yield from self._forced(completion, program)
        self._verify(completion.text or "")
        return completion

    def _forced(self, completion: Completion, program: Program) -> ControllerGenerator:
        text, cause = completion.text or "", self._cause(completion, program)
        if self.cannot is not None:
            raise _no_answer(f"the model gave no answer ({cause}), and the server cannot request one: {self.cannot}")
        prompt = GenerationTask()
        program.question.put(prompt)
        ids = completion.token_ids
        prefix = without_end(Prefix(len(ids or ()), text, None if ids is None else list(ids)))
        for suffix, end in self._ways(prompt.input_str or "", text):
            task = continuation(prompt, prefix, self.max_tokens, suffix)
            task.worker_tag = self.tag
            apply_sampling_params(task, {"temperature": 0.0})
            note(task, purpose=PROBE)
            yield [task]
            written = output_of(task)
            said = self.family.split(written, None).answer if end is None else begun_box(written) or _rest(written)
            record("force", position=prefix.num_tokens, answer=said.strip() or None, cause=cause)
            if said.strip():
                break
        else:
            raise _no_answer(
                f"the model gave no answer ({cause}), not even when the server requested one: send the request "
                "again, or allow more tokens"
            )
        suffix_ids, together = encode(suffix), None
        if said == written and end is None and None not in (prefix.token_ids, suffix_ids, task.output_tokens):
            together = [*(prefix.token_ids or ()), *(suffix_ids or ()), *(task.output_tokens or ())]
        answer = completion.answer
        if answer is None:
            answer = extract(said) if end is None else said
        ended = completion.exit_reason, completion.program, completion.logprobs
        whole = prefix.text + self.family.as_shown(suffix) + said + (end or "")
        return Completion(whole, together, answer, *ended)

    def _ways(self, prompt: str, text: str) -> Iterator[tuple[str, str | None]]:
        """Texts that request an answer, each with its end, in the order to try.

        The first closes the thinking and lets the model continue freely (no end). The second also begins the answer. It
        is tried if the model still says nothing, and at once if the model has closed its thinking itself.
        """
        family = self.family
        if begun(text, self.reading.is_open, family).has_thought:
            yield family.close_closed, family.answer_end
            return
        is_open = text.strip() or family.hidden or family.marks.opened_by(family.as_shown(prompt))
        opening = "" if is_open else family.think_open
        yield opening + closing_of(family), None
        yield opening + family.close, family.answer_end

    def _cause(self, completion: Completion, program: Program) -> str:
        if any(event["event"] == "thinking_budget" and event.get("overran_by") for event in program.trace):
            return "budget_ignored"
        if not (completion.text or "").strip():
            return "empty"
        if completion.exit_reason == "length":
            return "length"
        has_thought = begun(completion.text or "", self.reading.is_open, self.family).has_thought
        return "no_answer" if has_thought else "open_thinking"

    def _verify(self, text: str) -> None:
        """Record the returned thinking if it has a budget."""
        if self.budget is None or not self.reading.family.thinks:  # a raw text does not mark thinking
            return
        thinking = encode(self.reading.split(text).thinking)
        if thinking is not None:
            over = max(0, len(thinking) - self.budget)
            record("thinking_budget", asked=self.budget, by="serve", num_thinking=len(thinking), overran_by=over)


def closing_of(family: PromptFamily) -> str:
    """The text that only closes open thinking: the beginning of the family's `close`."""
    close = family.close
    ends = (end for end in range(len(close) + 1) if family.as_shown(close[:end]).endswith(family.think_close))
    end = next(ends, None)
    if end is None:
        return f"\n\n{family.think_close}"
    while token := next((token for token in family.hidden if close.startswith(token, end)), None):
        end += len(token)
    return close[:end]


def _rest(written: str) -> str:
    """The first line after an opened box that was closed at once."""
    return written.strip(" }\n").partition("\n")[0]


def _no_answer(message: str) -> ApiError:
    return ApiError(502, message, "no_answer")
