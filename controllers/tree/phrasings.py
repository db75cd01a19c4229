"""Other wordings of a question: each branch reads a wording of its own."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from scaffolding_ext import require
from scaffolding_ext.controllers.prompting import prompt_family
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.request.program import current_program

QUESTION, ANSWER = "{question}", "{answer}"
REFINE = (
    "{question}\n\nA solution was:\n\n{answer}\n\nCheck it. If it is wrong, say where, and solve the question anew. "
    "Give a whole solution with its answer."
)


def templates_of(phrasings: Sequence[str] | None) -> tuple[str, ...]:
    """The list of templates. It is empty where all branches read the question as it stands.

    Raises:
        ConfigError: They are no list of texts, or a template does not have exactly one place for the question.
    """
    if phrasings is None:
        return ()
    found = [phrasings] if isinstance(phrasings, str) else list(phrasings)
    for number, template in enumerate(found):
        if not isinstance(template, str) or template.count(QUESTION) != 1:
            raise ConfigError(f"is {template!r}; give a text with one {QUESTION}", f"phrasings[{number}]")
    if not found or isinstance(phrasings, str):
        raise ConfigError(f"is {phrasings!r}; give a list of texts, each with one {QUESTION}", "phrasings")
    return tuple(found)


def refine_template_of(template: str) -> str:
    """The template itself.

    Raises:
        ConfigError: It has not exactly one place for the question and one for the answer.
    """
    if not isinstance(template, str) or template.count(QUESTION) != 1 or template.count(ANSWER) != 1:
        raise ConfigError(f"is {template!r}; give a text with one {QUESTION} and one {ANSWER}", "template")
    return template


def refined(prompt: GenerationTask, template: str, solution: str) -> GenerationTask:
    """The prompt that asks for a better solution than a given one. The thinking of that solution is left out.

    Raises:
        ConfigError: As for `phrased`.
    """
    close = prompt_family().think_close
    answer = solution.rpartition(close)[2] if close else solution
    before, _, behind = template.partition(ANSWER)
    # `phrased` fills every place of a question; one that a solution writes is none.
    return phrased(prompt, f"{before}{answer.strip().replace(QUESTION, 'question')}{behind}")


def least_similarity_of(least: float | None, templates: Sequence[str], hints: Sequence[str]) -> float | None:
    """The threshold of a similarity gate; None where there is no gate.

    Raises:
        ConfigError: It is outside [-1, 1], or no branch has a wording of its own.
    """
    if least is None:
        return None
    require.number("least_similarity", least, least=-1.0, most=1.0)
    if not templates:
        raise ConfigError(f"is {least}, but all branches read the prompt: give phrasings", "least_similarity")
    if not hints or not all(hints):
        raise ConfigError("looks at what a branch begins with: give hints, none of them empty", "least_similarity")
    return least


def phrased(prompt: GenerationTask, template: str) -> GenerationTask:
    """A request's prompt with its question in other words, rendered as the prompt was.

    Args:
        prompt: The running request's prompt; it stays as it is.
        template: Other words around the question.

    Raises:
        ConfigError: The task is not the request's prompt (another controller may have written behind it), or the prompt
            went to the model as it is: then nobody knows where the question stands.
    """
    program = current_program()
    wording = copy.copy(prompt)
    if program is None or program.question.prompting is None:
        wording.input_str = template.replace(QUESTION, prompt.input_str or "")
        return wording
    question = program.question
    question.put(wording)
    if question.raw or wording.input_str != prompt.input_str:
        why = "the prompt is raw" if question.raw else "the task is not the request's prompt alone"
        raise ConfigError(f"put the question in other words, and {why}: leave phrasings out", "phrasings")
    question.put(wording, template.replace(QUESTION, question.prompt))
    return wording
