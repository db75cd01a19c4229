"""Toolkit for controllers that watch a chain of thought: start it, grow it, probe it, and end with an answer.

    chain = start_chain(self, task, family, max_tokens=2000)
    while not chain.ended and not enough(chain.text):
        yield from chain.grow(chain.num_tokens + 64)
    yield from conclude(chain, {"max_tokens": 20}, exit_reason="enough")

`stream_chain.start_chain` returns a `StreamChain` if the worker streams, else a `ChunkChain`. `chain.prefix` is a
snapshot; `probe.asking` builds the task that asks it for the answer so far, and `looking.Prober` asks for everything
that a stopping rule needs. `ending.conclude` ends the request with the chain's answer, or asks for one.
"""
