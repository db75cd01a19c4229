"""Waiting for a request's progress from a coroutine."""

import asyncio
import threading

from scaffolding_ext.workers.huggingface.engine_request import Waiter
from scaffolding_ext.workers.shared.streaming import NEVER


class Progress:
    """What a waiter looks at of a request."""

    def __init__(self, num_decoded=0):
        self.num_decoded = num_decoded
        self.ended = False
        self.wanted = 0


def test_a_wish_that_is_fulfilled_already_does_not_wait():
    async def wait():
        waiter = Waiter()
        await waiter.wait(Progress(5), 5)
        ended = Progress(1)
        ended.ended = True
        await waiter.wait(ended, NEVER)

    asyncio.run(wait())


def test_late_word_of_an_earlier_wish_does_not_end_a_later_one():
    async def wait():
        progress, waiter = Progress(3), Waiter()
        later = asyncio.ensure_future(waiter.wait(progress, 10))
        await asyncio.sleep(0)
        waiter.notify(progress)  # about 3 tokens, which nobody waits for any more
        for _ in range(3):
            await asyncio.sleep(0)
        assert not later.done()
        assert progress.wanted == 10  # the wish stands again
        progress.num_decoded = 10
        threading.Thread(target=waiter.notify, args=(progress,)).start()
        await later

    asyncio.run(wait())
