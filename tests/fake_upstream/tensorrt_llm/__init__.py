"""A small fake of TensorRT-LLM, with the part of Scaffolding and of the LLM API that controllers and workers meet.

It behaves as its releases do where that matters to them, shortcomings included. Its `LLM` serves a checkpoint of
transformers' shape for real, on the CPU. The environment's FAKE_UPSTREAM_RELEASE says which release it is: `1.2` knows
no finish reasons and no execution scopes, `1.2.1` both, `newest` has the task fields and the keywords that came after
it, and no TensorRT engines any more.
"""

import importlib
import os

__version__ = os.environ.get("FAKE_UPSTREAM_RELEASE", "1.2.1")
HAS_FINISH_REASON = HAS_SCOPES = __version__ != "1.2"
HAS_NEWEST_FIELDS = __version__ == "newest"
_HOMES = {"LLM": "tensorrt_llm.llmapi.llm", "SamplingParams": "tensorrt_llm.sampling_params"}


def __getattr__(name):  # the LLM API needs torch, Scaffolding's classes do not
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(name)
