"""The relay: what passes through it, and what becomes of the work when it ends, fails, or is given up."""

import pytest

from scaffolding_ext.protocol import GenerationTask, ParallelProcess, StreamGenerationTask, Task
from scaffolding_ext.protocol.relay import Watch, relay


class Work:
    """A controller's generator that says what became of it."""

    def __init__(self, steps, value=None):
        self.steps, self.value = steps, value
        self.log = []

    def run(self):
        try:
            for step in self.steps:
                yield step
                self.log.append("resumed")
        finally:
            self.log.append("closed")
        return self.value


class Seen(Watch):
    """Keeps the steps that it was shown."""

    def __init__(self, visit=None):
        super().__init__()
        self.steps = []
        self._visit = visit or self.steps.append

    def count(self, work, began):
        self._visit(work)


def value_of(generator, on_step=lambda step: None):
    """Drives a generator, branches included; its return value."""
    while True:
        try:
            step = next(generator)
        except StopIteration as end:
            return end.value
        if isinstance(step, ParallelProcess):
            for branch in step.sub_gens:
                value_of(branch, on_step)
        else:
            on_step(step)


def branches(*generators):
    process = ParallelProcess([], [], [])
    process.sub_gens = list(generators)
    return process


def test_the_steps_and_the_return_value_stay():
    steps = [[Task()], [Task(), Task()]]
    seen = []
    assert value_of(relay(Work(steps, "value").run()), seen.append) == "value"
    assert [step is own for step, own in zip(seen, steps, strict=True)] == [True, True]


def test_each_step_is_visited_before_and_after_in_branches_too():
    log = []
    inner = Work([["inner"]])
    outer = Work([["first"], branches(Work([["left"], branches(inner.run())]).run(), Work([["right"]]).run())])
    work = relay(
        outer.run(), lambda step: log.append(("before", *step)), Seen(lambda step: log.append(("after", *step)))
    )
    value_of(work, lambda step: log.append(("done", *step)))
    names = ["first", "left", "inner", "right"]
    assert log == [(when, name) for name in names for when in ("before", "done", "after")]
    assert inner.log == outer.log[1:] == ["resumed", "closed"]


def test_closing_the_relay_closes_the_work_and_still_visits_the_step():
    work, seen = Work([["a"], ["b"]]), Seen()
    relayed = relay(work.run(), watch=seen)
    next(relayed)
    relayed.close()
    assert work.log == ["closed"]
    assert seen.steps == [["a"]]


def test_an_error_thrown_at_a_step_closes_the_work_and_passes_on():
    work, seen = Work([["a"]]), Seen()
    relayed = relay(work.run(), watch=seen)
    next(relayed)
    with pytest.raises(OSError, match="out of luck"):
        relayed.throw(OSError("out of luck"))
    assert work.log == ["closed"]
    assert seen.steps == [["a"]]


def test_once_stopped_the_work_is_closed_and_its_open_streams_are_cancelled():
    ended, running, plain = StreamGenerationTask(), StreamGenerationTask(), GenerationTask()
    ended.end_flag = True
    work = Work([[ended, plain], [running], [running], [plain]])
    counted = Seen()
    relayed = relay(work.run(), watch=counted)
    assert next(relayed) == [ended, plain]
    assert next(relayed) == [running]
    assert next(relayed) == [running]
    counted.is_closed = True
    assert next(relayed) == [running]
    assert work.log == ["resumed", "resumed", "closed"]
    assert (running.cancel_flag, ended.cancel_flag) == (True, False)
    with pytest.raises(StopIteration) as end:
        next(relayed)
    assert end.value.value is None
    assert counted.steps == [[ended, plain], [running], [running], [running]]


def test_branches_are_stopped_each_with_its_own_streams():
    watch = Seen()
    streams = [StreamGenerationTask(), StreamGenerationTask()]
    process = branches(*[Work([[stream], ["never"]]).run() for stream in streams])
    (relayed,) = list(relay([process], watch=watch))
    left, right = relayed.sub_gens
    assert [next(left), next(right)] == [[streams[0]], [streams[1]]]
    watch.is_closed = True
    assert [next(left), next(right)] == [[streams[0]], [streams[1]]]
    assert all(stream.cancel_flag for stream in streams)
    assert value_of(left) is None


def test_work_that_ends_before_it_is_stopped_keeps_its_value():
    assert value_of(relay(Work([["a"]], 5).run(), watch=Seen())) == 5
