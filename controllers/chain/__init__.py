"""The toolkit of controllers that watch a chain of thought: start it, let it grow, ask it, and end with an answer.

    chain = start_chain(self, task, family, max_tokens=2000)
    while not chain.ended and not enough(chain.text):
        yield from chain.grow(chain.num_tokens + 64)
    yield from conclude(task, chain, family, {"max_tokens": 20}, exit_reason="enough")

`start_chain` takes a `StreamChain` where the worker streams and a `ChunkChain` elsewhere; a controller may also make
one of the two itself, or a `ControlledChain`, whose chunks another controller writes. `chain.prefix` is a snapshot,
which `asking` turns into a task that asks for the answer so far (a probe); `asked_answer` reads it, and
`forced_answer` reads one that ends the chain, whether its box is closed or not. A `ProbeSchedule` says where a chain is
asked, and an `AnswerProbe` says how. A `Looker` asks for all that a stopping rule needs. `row_of` makes JSON of looks,
and `probes_of` makes looks of that JSON. `conclude` ends the request with the chain's own answer, or asks for one;
`close_with` ends it with an answer that the controller has already. `Loops` says whether a chain repeats itself: where
`BaseController.loops` holds such an object, every chain of a request is ended there.
"""

from scaffolding_ext.controllers.chain.chain import Chain, Prefix, continuation
from scaffolding_ext.controllers.chain.chunk_chain import ChunkChain, ControlledChain
from scaffolding_ext.controllers.chain.ending import ANSWER_PROBABILITY, close_with, conclude, without_end
from scaffolding_ext.controllers.chain.looking import Looker, LookTasks, Needs, ProbeSchedule, ThoughtChanges
from scaffolding_ext.controllers.chain.probe import (
    AnswerProbe,
    Probe,
    asked_answer,
    asking,
    forced_answer,
    probes_of,
    row_of,
)
from scaffolding_ext.controllers.chain.stream_chain import StreamChain, start_chain
from scaffolding_ext.controllers.repetition import Loop, Loops

__all__ = [
    "ANSWER_PROBABILITY",
    "AnswerProbe",
    "Chain",
    "ChunkChain",
    "ControlledChain",
    "LookTasks",
    "Looker",
    "Loop",
    "Loops",
    "Needs",
    "Prefix",
    "Probe",
    "ProbeSchedule",
    "StreamChain",
    "ThoughtChanges",
    "asked_answer",
    "asking",
    "close_with",
    "conclude",
    "continuation",
    "forced_answer",
    "probes_of",
    "row_of",
    "start_chain",
    "without_end",
]
