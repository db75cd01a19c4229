"""The KV probe: what it decides on which timings, what it remembers, and what it leaves behind."""

import asyncio
import itertools
import math

import pytest

from scaffolding_ext.errors import ConfigError, EngineError
from scaffolding_ext.protocol import GenerationTask, TaskStatus
from scaffolding_ext.protocol.branching import BranchTask, break_even_branches
from scaffolding_ext.protocol.meta import Purpose, TokenCounts, token_counts_of
from scaffolding_ext.request.program import Program, enter_program, leave_program
from scaffolding_ext.workers.huggingface.sharing_probe import EngineReads, LatencyModel, Pass, SharingProbe
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

MODEL = "tinylm/draft"
PREFIX = [5 + 37 * place % 400 for place in range(100)]
SUFFIXES = [[7], [8, 9], [10]]
WAIT = 60  # seconds until a test gives up


class Timed:
    """Reads that take what they are told to take, on a clock of their own.

    Args:
        rounds: Seconds of the whole, of the prefix and of the suffix, round by round; the last go on.
        fits: Whether there is memory.
    """

    def __init__(self, *rounds, fits=True):
        self.now, self.fits = 100.0, fits
        self.num_rounds = self.num_held = 0
        self.entered, self.going = asyncio.Event(), asyncio.Event()
        self.going.set()
        self._rounds = rounds

    suffix_len = 8

    def clock(self):
        return self.now

    async def whole(self):
        self.entered.set()
        await self.going.wait()
        self.now += self._of_round(0)

    async def prefix(self):
        self.num_held += 1
        self.now += self._of_round(1)

    async def suffix(self):
        assert self.num_held == 1
        self.now += self._of_round(2)

    async def free(self):
        self.num_held = 0
        self.now += 50.0  # nobody's
        self.num_rounds += 1

    def _of_round(self, number):
        return self._rounds[min(self.num_rounds, len(self._rounds) - 1)][number]


def asked(reads, *questions):
    """What a new probe says to these questions, one after the other, and the events that it records."""

    async def ask():
        probe = SharingProbe(reads.clock)
        return [await probe.pays(*question, reads) for question in questions]

    program = Program()
    enter_program(program)
    try:
        return asyncio.run(ask()), [event for event in program.trace if event["event"] == "sharing_probe"]
    finally:
        leave_program()


def test_sharing_pays_above_the_break_even_of_the_shortest_timings():
    """B* = prefix / (whole - suffix) = 3, though no round says so alone."""
    reads = Timed((9.0, 6.0, 3.0), (5.0, 7.0, 4.0), (8.0, 8.0, 5.0))
    says, (event,) = asked(reads, (8, 100), (3, 100), (4, 100))
    assert says == [True, False, True]
    assert (reads.num_rounds, reads.num_held) == (3, 0)
    assert event["prefix_len"] == [64, 127]
    assert (event["whole_s"], event["prefix_s"], event["suffix_s"]) == (5.0, 6.0, 3.0)
    assert (event["break_even"], event["shares"]) == (3.0, True)


def test_where_a_suffix_costs_as_much_as_the_whole_sharing_never_pays():
    says, (event,) = asked(Timed((2.0, 1.0, 2.0)), (1000, 64))
    assert says == [False]
    assert (event["break_even"], event["shares"]) == (None, False)


def test_each_64_tokens_of_length_are_timed_once():
    reads = Timed((5.0, 6.0, 3.0))
    says, events = asked(reads, *[(4, length) for length in (1, 63, 64, 127, 128, 64, 5)])
    assert says == [True] * 7
    assert [event["prefix_len"] for event in events] == [[0, 63], [64, 127], [128, 191]]
    assert reads.num_rounds == 3 * 3


def test_who_comes_while_a_length_is_timed_shares_and_times_nothing():
    async def both():
        reads = Timed((2.0, 1.0, 2.0))
        reads.going.clear()
        probe = SharingProbe(reads.clock)
        first = asyncio.ensure_future(probe.pays(8, 100, reads))
        await reads.entered.wait()
        second = await asyncio.wait_for(probe.pays(8, 110, reads), WAIT)
        reads.going.set()
        return second, await first, await probe.pays(8, 110, reads), reads.num_rounds, probe.num_buckets

    assert asyncio.run(both()) == (True, False, False, 3, 1)


def test_where_there_is_no_room_branches_share_and_the_next_ones_time_it():
    async def ask():
        full, roomy = Timed((2.0, 1.0, 2.0), fits=False), Timed((2.0, 1.0, 2.0))
        probe = SharingProbe(roomy.clock)
        return [await probe.pays(8, 100, reads) for reads in (full, roomy, full)], full.num_rounds, roomy.num_rounds

    assert asyncio.run(ask()) == ([True, False, False], 0, 3)


TRUE = LatencyModel(0.004, 3e-5, 2e-9)


class Modelled(Timed):
    """Reads of a prefix that take what a latency model says."""

    def __init__(self, prefix_len, model=TRUE):
        parts = Pass(prefix_len + self.suffix_len), Pass(prefix_len), Pass(self.suffix_len, prefix_len)
        super().__init__(tuple(map(model.seconds, parts)))


def test_the_constants_of_the_latency_model_come_back_from_timings():
    passes = [Pass(new, old) for new in (1, 64, 512) for old in (0, 256, 1024)]
    assert LatencyModel.fit(passes, [TRUE.seconds(each) for each in passes]) == pytest.approx(TRUE)
    assert Pass(3, 10).size == (1, 3, 11 + 12 + 13)


@pytest.mark.parametrize("model", [TRUE, TRUE._replace(per_pair=0.0), TRUE._replace(per_token=0.0)])
@pytest.mark.parametrize("num_branches", [2, 8])
def test_both_forms_of_the_break_even_agree_and_sharing_pays_beyond_them(model, num_branches):
    """By brute force: B readings of everything against one of the prefix and B of the suffix behind it."""
    star = model.break_even_len(num_branches)
    for length in (1, math.floor(star), math.floor(star) + 1, 2000):
        whole, prefix, suffix = map(model.seconds, (Pass(length + 5), Pass(length), Pass(5, length)))
        pays = num_branches * whole > prefix + num_branches * suffix
        assert pays == (length > star)
        timed = break_even_branches(whole, prefix, suffix)
        assert timed == pytest.approx(model.break_even_branches(length))
        assert pays == (num_branches > timed)
    assert model.break_even_len(1) == math.inf
    assert (
        LatencyModel(0.004, 0.0, 0.0).break_even_len(8)
        == LatencyModel(0.004, 0.0, 0.0).break_even_branches(64)
        == math.inf
    )


def test_two_lengths_tell_the_latency_model_which_decides_where_there_is_no_room():
    async def ask():
        probe = SharingProbe()
        found = []
        for length in (64, 512):
            reads = Modelled(length)
            probe._clock = reads.clock
            found.append((await probe.pays(8, length, reads), probe.model))
        full = Timed((1.0, 1.0, 1.0), fits=False)
        return found, [await probe.pays(number, 2048, full) for number in (1, 2)], full.num_rounds

    program = Program()
    enter_program(program)
    try:
        (first, second), without_room, num_rounds = asyncio.run(ask())
    finally:
        leave_program()
    assert first == (True, None)
    assert second[1] == pytest.approx(TRUE, rel=1e-3)
    assert without_room == [False, True]
    assert num_rounds == 0
    told = [event["break_even_len"] for event in program.trace if event["event"] == "sharing_probe"]
    assert told == [None, pytest.approx(TRUE.break_even_len(8), rel=1e-3)]


def test_a_timing_that_is_cancelled_is_given_back_and_forgotten():
    async def ask():
        reads = Timed((2.0, 1.0, 2.0))
        reads.going.clear()
        probe = SharingProbe(reads.clock)
        first = asyncio.ensure_future(probe.pays(8, 100, reads))
        await reads.entered.wait()
        first.cancel()
        (error,) = await asyncio.gather(first, return_exceptions=True)
        reads.going.set()
        return type(error), probe.num_buckets, reads.num_rounds, await probe.pays(8, 100, reads)

    assert asyncio.run(ask()) == (asyncio.CancelledError, 0, 1, False)


# ---- in the worker


def branches(**fields):
    given = {"prefix_tokens": PREFIX, "suffixes": SUFFIXES, "max_tokens": 8, "temperature": 0.8, "seeds": [1, 2, 3]}
    return BranchTask(**given | fields)


def run(worker, *tasks):
    """The program in which a worker serves tasks, one after the other."""
    program = Program()
    enter_program(program)
    try:
        for task in tasks:
            assert asyncio.run(worker.run_task(task)) is TaskStatus.SUCCESS
    finally:
        leave_program()
    return program


def kv_of(program):
    return [(event["shares"], event["reused"]) for event in program.trace if event["event"] == "branch_kv"]


def ticking(*seconds):
    """A clock by which the three reads of each round take so long."""
    ticks = itertools.accumulate(itertools.cycle([0.0, *seconds]))
    return lambda: next(ticks)


@pytest.fixture(scope="module")
def probed():
    """A worker whose clock says that sharing never pays."""
    with HuggingFaceWorker(MODEL, max_seq_len=512, probes_sharing=True) as worker:
        worker._probe = SharingProbe(ticking(1.0, 1.0, 1.0))
        yield worker


@pytest.fixture(scope="module")
def texts():
    with HuggingFaceWorker(MODEL, max_seq_len=512) as worker:
        task = branches()
        program = run(worker, task)
        assert kv_of(program) == [(True, [0, 100, 100])]
        assert Purpose.OVERHEAD not in program.ledger.by_purpose
    return task.output_tokens


def test_where_sharing_does_not_pay_each_branch_is_computed_on_its_own(probed, texts):
    first, second = branches(), branches()
    program = run(probed, first)
    assert kv_of(program) == [(False, [0, 0, 0])]
    assert first.output_tokens == texts
    assert token_counts_of(first).prefilled == 3 * 100 + 4
    longest = len(PREFIX) + 2
    overhead = program.ledger.by_purpose[
        Purpose.OVERHEAD
    ]  # behind a prefix that is held, of 100 tokens and a suffix of 2
    assert overhead == TokenCounts(decoded=3, prefilled=3 * (longest + len(PREFIX) + 2), reused=3 * len(PREFIX))
    again = run(probed, second)
    assert kv_of(again) == [(False, [0, 0, 0])]
    assert Purpose.OVERHEAD not in again.ledger.by_purpose
    assert (probed.metrics.num_probed, probed.metrics.probes_s) == (1, 9.0)


def test_a_probe_leaves_the_cache_as_it_was(probed):
    """The branches are there already, which the timings of whole and prefix neither use nor take away."""
    probed._probe, kept = None, probed._probe
    run(probed, branches())
    probed._probe = kept
    before = probed.metrics
    reads = EngineReads(branches(), probed._engine, probed._builder, 32)
    assert asyncio.run(SharingProbe(ticking(5.0, 1.0, 1.0)).pays(3, 100, reads))
    after = probed.metrics
    assert reads.counts == TokenCounts(decoded=3, prefilled=3 * (102 + 100 + 1), reused=3 * 101)
    assert after.num_prefilled - before.num_prefilled == reads.counts.prefilled  # nothing is hidden
    for name in ("num_held_blocks", "num_cached_blocks", "num_cached_tokens", "num_free_blocks", "num_evicted"):
        assert getattr(after, name) == getattr(before, name)


def test_where_sharing_pays_branches_share(probed, texts):
    kept, probed._probe = probed._probe, SharingProbe(ticking(5.0, 1.0, 1.0))
    task = branches()
    program = run(probed, task)
    probed._probe = kept
    assert [shares for shares, _ in kv_of(program)] == [True]
    assert token_counts_of(task).reused >= 3 * len(PREFIX)
    assert task.output_tokens == texts


def test_a_probe_takes_no_block_that_somebody_may_use():
    """There are 8 blocks: 4 hold what another request has left, and prefix and suffix take 3 twice."""
    with HuggingFaceWorker(MODEL, max_seq_len=128, kv_cache_bytes=8 * 73_728, probes_sharing=True) as worker:
        program = run(worker, GenerationTask(input_tokens=[9] * 120, max_tokens=2), branches(prefix_tokens=PREFIX[:64]))
        assert [shares for shares, _ in kv_of(program)] == [True]
        assert Purpose.OVERHEAD not in program.ledger.by_purpose
        assert worker.metrics.num_probed == 0


def test_branches_without_a_prefix_are_refused_as_ever(probed):
    with pytest.raises(Exception, match="give a prompt of at least one token"):
        asyncio.run(probed.run_task(branches(prefix_tokens=[], suffixes=[[], [7], [8]])))


def test_one_branch_alone_is_a_request_like_any_other():
    with HuggingFaceWorker(MODEL, max_seq_len=512, probes_sharing=True) as worker:
        first, second = (run(worker, branches(suffixes=[[7]], seeds=[1])) for _ in range(2))
        assert kv_of(first) + kv_of(second) == [(True, [0]), (True, [100])]
        assert worker.metrics.num_probed == 0


def test_there_must_be_something_to_share():
    with pytest.raises(ConfigError, match="probes_sharing: is true, but enable_block_reuse is false"):
        HuggingFaceWorker(MODEL, probes_sharing=True, enable_block_reuse=False)


@pytest.mark.parametrize("how", ["cancel", "shutdown"])
def test_a_probe_that_is_cut_off_holds_nothing(how):
    """In the second round, when the prefix is held and the suffix is about to be read."""

    async def cut_off(worker):
        loop, reached = asyncio.get_running_loop(), asyncio.Event()
        ticks = itertools.count()

        def clock():
            tick = next(ticks)
            if tick == 6:
                loop.call_soon(reached.set)
            return float(tick)

        worker._probe = SharingProbe(clock)
        served = asyncio.ensure_future(worker.run_task(branches()))
        await asyncio.wait_for(reached.wait(), WAIT)
        if how == "cancel":
            served.cancel()
        else:
            worker.shutdown()
        (error,) = await asyncio.wait_for(asyncio.gather(served, return_exceptions=True), WAIT)
        return error

    with HuggingFaceWorker(MODEL, max_seq_len=512) as worker:
        error = asyncio.run(cut_off(worker))
        assert isinstance(error, asyncio.CancelledError if how == "cancel" else EngineError)
        assert worker.metrics.num_probed == 0
        if how == "cancel":
            assert worker.metrics.num_held_blocks == worker.metrics.num_running == 0
            run(worker, branches())
