"""The toolkit of controllers that watch a chain of thought: start it, let it grow, ask it, and end with an answer.

    chain = start_chain(self, task, family, max_tokens=2000)
    while not chain.ended and not enough(chain.text):
        yield from chain.grow(chain.num_tokens + 64)
    yield from conclude(chain, {"max_tokens": 20}, exit_reason="enough")

`stream_chain.start_chain` takes a `StreamChain` where the worker streams, and a `ChunkChain` elsewhere. `chain.prefix`
is a snapshot. `probe.asking` makes a task of it that asks for the answer so far; `looking.Looker` asks for all that a
stopping rule needs. `ending.conclude` ends the request with the chain's own answer, or asks for one.
"""
