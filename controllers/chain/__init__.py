"""Toolkit for controllers that watch a chain of thought: start it, grow it, probe it, and end with an answer.

`stream_chain.start_chain` returns a `StreamChain` if the worker streams, else a `ChunkChain`. `probing.Prober` asks for
what a stopping rule needs; `ending.conclude` ends the request with the chain's answer, or asks for one.
"""
