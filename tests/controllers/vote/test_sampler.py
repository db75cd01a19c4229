"""Runs of one sub-controller side by side: their seeds, their branches, and what each costs."""

import pytest

from scaffolding_ext.controllers.base import BaseController, finish
from scaffolding_ext.controllers.vote.sampler import Sampler
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask, current_scope
from scaffolding_ext.protocol.meta import Purpose
from scaffolding_ext.protocol.task_results import output_of
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.request.program import current_program, discard, next_seed
from scaffolding_ext.testing import ScriptedWorker


class Reading(BaseController):
    """Generates once and notes what it was given."""

    def __init__(self, notes):
        super().__init__()
        self.notes = notes

    def run(self, task, **kwargs):
        piece = GenerationTask(worker_tag=WorkerTag.GENERATION, input_str=task.input_str)
        yield [piece]
        self.notes.append((task.seed, next_seed(), current_scope.get().branch_path, kwargs))
        finish(task, output_of(piece), piece.output_tokens, output_of(piece))


class Wasting(BaseController):
    """Generates once and discards four tokens of it."""

    def run(self, task, **kwargs):
        piece = GenerationTask(worker_tag=WorkerTag.GENERATION, input_str=task.input_str)
        yield [piece]
        discard(Purpose.CHAIN, 4)
        finish(task, output_of(piece), piece.output_tokens)


class Rounds(BaseController):
    """Starts rounds of samples and discards some."""

    def __init__(self, sub_controller, rounds, discard=()):
        super().__init__()
        self.sub_controller, self.rounds, self.discard = sub_controller, rounds, discard

    def run(self, task, **kwargs):
        sampler = Sampler(self.sub_controller, task, sum(self.rounds), kwargs)
        for num_samples in self.rounds:
            yield sampler.start(num_samples)
        num_discarded = sampler.discard(sampler.samples[index] for index in self.discard)
        current_program().trace.record(
            "samples",
            decoded=[sample.num_decoded for sample in sampler.samples],
            num_discarded=num_discarded,
        )
        finish(task, "done", None)


def request(controller, worker=None, **options):
    worker = worker or ScriptedWorker("an answer")
    with ScaffoldingLlm(controller, {"generation": worker}, seed=3) as llm:
        result = llm.generate("Question", sample_id="q", **options)
    return result, worker


def samples_of(result):
    return result.program.trace[-1]


@pytest.mark.parametrize("rounds", [(4,), (1, 3), (2, 1, 1)])
def test_seeds_and_branches_depend_on_the_index_not_on_the_round(rounds):
    whole, notes = [], []
    request(Rounds(Reading(whole), (4,)))
    request(Rounds(Reading(notes), rounds), temperature=0.5)
    assert [note[:3] for note in notes] == [note[:3] for note in whole]
    assert len({note[0] for note in notes}) == len({note[1] for note in notes}) == 4
    assert [note[2] for note in notes] == [(0,), (1,), (2,), (3,)]
    assert all(note[3] == {"temperature": 0.5} for note in notes)


def test_what_is_discarded_is_moved_once():
    result, _ = request(Rounds(Reading([]), (3,), discard=(0, 2)))
    counts = result.program.ledger.by_purpose
    assert (counts[Purpose.CHAIN].decoded, counts[Purpose.DISCARDED].decoded) == (9, 18)
    assert samples_of(result)["num_discarded"] == 18


def test_what_a_discarded_sample_had_discarded_itself_is_counted_once():
    result, _ = request(Rounds(Wasting(), (3,), discard=(1,)))
    counts = result.program.ledger.by_purpose
    assert (counts[Purpose.CHAIN].decoded, counts[Purpose.DISCARDED].decoded) == (2 * 5, 9 + 2 * 4)
    assert result.program.ledger.total.decoded == 3 * len("an answer")
