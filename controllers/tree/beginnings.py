"""Hints and rephrased questions that make the first branches of a tree differ."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from scaffolding_ext import require
from scaffolding_ext.documents import decoded, located, parse_json
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.request.program import current_program

T = TypeVar("T")
PACKAGED_HINTS = "configs:branch_hints.json"
QUESTION = "{question}"


class BranchPrompts(NamedTuple):
    """Hints and wordings of the branches at depth 1, assigned in turn; an empty list makes them equal."""

    hints: Sequence[str] = ()
    wordings: Sequence[GenerationTask] = ()


def in_turn(given: Sequence[T], number: int) -> T | None:
    """Return the item for a branch, cycling through the items; None if there are none."""
    return given[number % len(given)] if given else None


def hints_of(hints: str | Sequence[str] | None, file: str | os.PathLike[str] = PACKAGED_HINTS) -> tuple[str, ...]:
    """Return the hints, or those of a domain in a JSON file; empty if only sampling makes branches differ.

    Raises:
        ConfigError: The file cannot be read, has no such domain, or a hint is not a string.
    """
    if hints is None:
        return ()
    if isinstance(hints, str):
        domains = _read(file)
        found = domains[require.one_of("hints", hints, domains, instead="a list of texts")]
    else:
        found = list(hints)
    if not isinstance(found, list) or not all(isinstance(hint, str) for hint in found):
        raise ConfigError(f"is {found!r}; give a list of texts, or the name of a domain", "hints")
    return tuple(found)


def _read(file: str | os.PathLike[str]) -> dict[str, list[str]]:
    try:
        domains = parse_json(decoded(located(file).read_bytes()))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{os.fspath(file)} {error}", "hints_file") from error
    if not isinstance(domains, dict):
        raise ConfigError(f"{os.fspath(file)} holds no object of domains, each a list of texts", "hints_file")
    return domains


def templates_of(phrasings: Sequence[str] | None) -> tuple[str, ...]:
    """Return the templates; empty if all branches read the question unchanged."""
    if phrasings is None:
        return ()
    found = [phrasings] if isinstance(phrasings, str) else list(phrasings)
    for number, template in enumerate(found):
        if not isinstance(template, str) or template.count(QUESTION) != 1:
            raise ConfigError(f"is {template!r}; give a text with one {QUESTION}", f"phrasings[{number}]")
    if not found or isinstance(phrasings, str):
        raise ConfigError(f"is {phrasings!r}; give a list of texts, each with one {QUESTION}", "phrasings")
    return tuple(found)


def least_similarity_of(least: float | None, templates: Sequence[str], hints: Sequence[str]) -> float | None:
    if least is None:
        return None
    require.number("least_similarity", least, least=-1.0, most=1.0)
    if not templates:
        raise ConfigError(f"is {least}, but requires phrasings; give phrasings", "least_similarity")
    if not hints or not all(hints):
        raise ConfigError("requires hints, none of them empty", "least_similarity")
    return least


def phrased(prompt: GenerationTask, template: str) -> GenerationTask:
    """Copy a request's prompt with its question rephrased, rendered like the prompt.

    Raises:
        ConfigError: The prompt is raw, or another controller appended to it, so the question cannot be located.
    """
    program = current_program()
    wording = copy.copy(prompt)
    if program is None or program.question.prompting is None:
        wording.input_str = template.replace(QUESTION, prompt.input_str or "")
        return wording
    question = program.question
    question.put(wording)
    if question.raw or wording.input_str != prompt.input_str:
        why = "the prompt is raw" if question.raw else "the task is more than the request's prompt"
        raise ConfigError(f"cannot rephrase the question, because {why}: leave phrasings out", "phrasings")
    question.put(wording, template.replace(QUESTION, question.prompt))
    return wording
