"""Signs that a log was misread, on which no advice can be based."""

from __future__ import annotations

from collections.abc import Sequence

from scaffolding_ext.evaluation.logs.samples import NO_ANSWER, LoggedQuestion, RecordedQuestion
from scaffolding_ext.evaluation.logs.stated import letter_in

_FEWEST_QUESTIONS, _FEWEST_SAMPLES = 5, 8  # a log with fewer of both can look like anything


def doubt_of(logged: Sequence[LoggedQuestion], graded: Sequence[RecordedQuestion]) -> str | None:
    """Return what is wrong with the answers of a whole log and what to check; None if nothing is.

    Probed chains may end in one answer each: their rules save tokens before it.
    """
    classes = [each.classes[each.classes != NO_ANSWER].tolist() for each in graded]
    num_questions, num_samples = len(graded), graded[0].num_samples
    if num_samples < 2 or (num_questions < _FEWEST_QUESTIONS and num_samples < _FEWEST_SAMPLES):
        return None
    are_distinct = all(len(set(each)) == len(each) for each in classes)
    num_all, num_answers = num_questions * num_samples, sum(map(len, classes))
    if are_distinct and 2 * num_answers < num_all:
        return (
            f"{num_all - num_answers:,} of {num_all:,} samples have no answer, and no two answers to a question are "
            "the same: if the samples were cut off, record them with more max_tokens; else check that they end in a "
            "box or phrase, and, in another tool's log, the field that the answers are in"
        )
    targets = [each.target for each in logged if each.target is not None]
    answers = (sample.answer for each in logged for sample in each.samples if sample.answer is not None)
    if len(targets) == len(logged) and all(map(letter_in, targets)) and not any(map(letter_in, answers)):
        return "all targets are letters, but no answer is one: check the field of the answers, or give options as texts"
    if are_distinct:
        return (
            "no two samples of a question have the same answer, as if each were its whole text: check the field that "
            "the answers are in, and the scorer that wrote it"
        )
    is_plain = all(each.probes is None for each in graded)
    if is_plain and all(len(set(each.classes.tolist())) == 1 for each in graded):
        return (
            "all samples of each question have the same answer, so there is nothing to choose: check that the field "
            "is the answer, and that the run sampled (temperature above 0)"
        )
    if num_questions >= _FEWEST_QUESTIONS and not any(each.correct.any() for each in graded):
        return "no sample is right: check the field of the targets, and the scorer"
    return None
