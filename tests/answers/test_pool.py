"""Jobs run in processes that are killed at their deadline, and nothing of them is left."""

from __future__ import annotations

import concurrent.futures
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from scaffolding_ext.answers.pool import KillablePool, OverrunError
from scaffolding_ext.errors import EngineError

AN_HOUR = 3600.0


@pytest.fixture(scope="module")
def pool() -> Iterator[KillablePool]:
    pool = KillablePool("os:getpid", num_processes=1)
    yield pool
    pool.close()


def is_gone(process_id: int) -> bool:
    """True if the process has ended; one that nobody has waited for yet counts as gone."""
    try:
        with open(f"/proc/{process_id}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until_gone(process_id: int) -> None:
    """A killed process ends when the system gets to it, which a busy machine may put off."""
    give_up = time.monotonic() + 60
    while not is_gone(process_id):
        assert time.monotonic() < give_up, f"process {process_id} is still there"
        time.sleep(0.01)


def test_one_warm_process_does_job_after_job(pool: KillablePool) -> None:
    ids = {pool.submit(AN_HOUR).result() for _ in range(3)}
    assert ids == set(pool.process_ids)
    assert os.getpid() not in ids


def test_a_job_that_raises_tells_why_and_leaves_the_process(pool: KillablePool) -> None:
    before = pool.submit(AN_HOUR).result()
    with pytest.raises(EngineError, match="TypeError"):
        pool.submit(AN_HOUR, "too", "many").result()
    assert pool.submit(AN_HOUR).result() == before


def test_a_cancelled_job_does_not_run() -> None:
    pool = KillablePool("time:sleep", num_processes=1)
    running, waiting = pool.submit(AN_HOUR, AN_HOUR), pool.submit(AN_HOUR, 0)
    assert waiting.cancel()
    pool.close()
    with pytest.raises(EngineError, match="closed"):
        running.result()


def test_a_job_that_overruns_is_killed_and_the_next_gets_a_new_process() -> None:
    pool = KillablePool("time:sleep", num_processes=1)
    pool.submit(AN_HOUR, 0).result()
    (first,) = pool.process_ids
    with pytest.raises(OverrunError, match=r"killed after 0\.01 s"):
        pool.submit(0.01, AN_HOUR).result()
    assert is_gone(first)
    assert pool.submit(AN_HOUR, 0).result() is None
    (second,) = pool.process_ids
    assert second != first
    pool.close()


def test_a_deadline_counts_only_the_time_that_a_processor_works_on_the_job() -> None:
    pool = KillablePool("os:getpid", num_processes=1)
    process_id = pool.submit(AN_HOUR).result()
    os.kill(process_id, signal.SIGSTOP)
    future = pool.submit(0.1)
    with pytest.raises(concurrent.futures.TimeoutError):  # not the built-in one before Python 3.11
        future.result(timeout=0.5)
    os.kill(process_id, signal.SIGCONT)
    assert future.result() == process_id
    pool.close()


def test_a_job_that_computes_too_long_is_killed_without_help_from_the_interpreter() -> None:
    pool = KillablePool("math:factorial", num_processes=1)
    pool.submit(AN_HOUR, 3).result()
    with pytest.raises(OverrunError, match=r"killed after 0\.05 s"):
        pool.submit(0.05, 10**8).result()
    assert pool.submit(AN_HOUR, 3).result() == 6
    pool.close()


def test_a_job_that_ends_its_process_is_an_overrun() -> None:
    pool = KillablePool("os:_exit", num_processes=1)
    with pytest.raises(OverrunError, match="ended its process"):
        pool.submit(AN_HOUR, 1).result()
    pool.close()


def test_a_job_cannot_have_all_memory() -> None:
    pool = KillablePool("builtins:bytearray", num_processes=1, max_memory_bytes=2**28)
    with pytest.raises(EngineError, match="MemoryError"):
        pool.submit(AN_HOUR, 2**29).result()
    pool.close()


def test_what_a_job_prints_is_no_result() -> None:
    pool = KillablePool("builtins:print", num_processes=1)
    assert pool.submit(AN_HOUR, "{}").result() is None
    pool.close()


def test_a_function_that_is_not_there_fails_its_jobs() -> None:
    pool = KillablePool("os:no_such_function", num_processes=1)
    for _ in range(2):
        with pytest.raises(EngineError, match="could not start: AttributeError"):
            pool.submit(AN_HOUR).result()
    assert pool.process_ids == []


def test_a_closed_pool_refuses_jobs_and_fails_those_that_wait() -> None:
    pool = KillablePool("time:sleep", num_processes=1)
    futures: list[Future[None]] = [pool.submit(AN_HOUR, AN_HOUR) for _ in range(3)]
    pool.close()
    futures.append(pool.submit(AN_HOUR, 0))
    for future in futures:
        with pytest.raises(EngineError, match="closed"):
            future.result()
    pool.close()


def test_a_pool_that_nobody_holds_ends_its_processes() -> None:
    pool = KillablePool("os:getpid", num_processes=1)
    process_id = pool.submit(AN_HOUR).result()
    shared = pool._shared
    del pool
    gc.collect()
    shared.join()
    assert is_gone(process_id)


def test_a_plain_script_needs_no_guard_and_leaves_no_process() -> None:
    script = (
        "import sys; from scaffolding_ext.answers import equal, equality; verdict = equal('x+1', '1+x', 3600.0).value; "
        "sys.stdout.write(f'{verdict} {equality._default(3600.0, False)._pool.process_ids[0]}')"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    verdict, process_id = run.stdout.split()
    assert verdict == "equal"
    wait_until_gone(int(process_id))
