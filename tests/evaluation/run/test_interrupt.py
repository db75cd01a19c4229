"""The first signal is noted, the second cancels; afterwards signals do what they did before."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from scaffolding_ext.evaluation.run.session import Interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_is_noted_and_the_second_cancels(number: signal.Signals) -> None:
    heard = asyncio.Event()
    interrupts = Interrupts(heard.set)
    before = signal.getsignal(number)
    went_on = False

    async def work() -> None:
        nonlocal went_on
        os.kill(os.getpid(), number)
        await heard.wait()
        went_on = interrupts.is_stopped()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    asyncio.run(interrupts.run(work()))
    assert went_on
    assert interrupts.signal == number
    assert signal.getsignal(number) is before


def test_work_that_ends_by_itself_or_fails_is_left_alone() -> None:
    async def fail() -> None:
        raise OSError("disk full")

    interrupts = Interrupts(lambda: None)
    with pytest.raises(OSError, match="disk full"):
        asyncio.run(interrupts.run(fail()))
    assert not interrupts.is_stopped()


def test_who_is_cancelled_from_outside_cancels_the_work() -> None:
    cancelled = False

    async def work() -> None:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled = True
            raise

    async def scenario() -> None:
        running = asyncio.create_task(Interrupts(lambda: None).run(work()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(scenario())
    assert cancelled
