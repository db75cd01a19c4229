"""Waiting for a request's progress from a coroutine."""

import asyncio
import threading

from scaffolding_ext.workers.huggingface.engine_request import GREEDY, Ends, EngineRequest
from scaffolding_ext.workers.shared.streaming import NEVER


def request_of(num_decoded):
    request = EngineRequest([5], Ends(20), GREEDY)
    request.num_decoded = num_decoded
    return request


def test_a_wish_that_is_fulfilled_already_does_not_wait():
    async def wait():
        await request_of(5).wait(5)
        ended = request_of(1)
        ended.end("length")
        await ended.wait(NEVER)

    asyncio.run(wait())


def test_late_word_of_an_earlier_wish_does_not_end_a_later_one():
    async def wait():
        request = request_of(3)
        later = asyncio.ensure_future(request.wait(10))
        await asyncio.sleep(0)
        request.notify()  # about 3 tokens, which nobody waits for any more
        for _ in range(3):
            await asyncio.sleep(0)
        assert not later.done()
        assert request.wanted == 10  # the wish stands again
        request.num_decoded = 10
        threading.Thread(target=request.notify).start()
        await later

    asyncio.run(wait())
