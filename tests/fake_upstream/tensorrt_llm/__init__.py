"""A small fake of TensorRT-LLM, with the part of Scaffolding and of the LLM API that controllers and workers meet.

It declares what the releases declare (`tests/protocol/test_upstream_table.py` compares them) and behaves as they do
where that matters to controllers and workers, shortcomings included. Its `LLM` serves a checkpoint of transformers'
shape for real, on the CPU. The environment's FAKE_UPSTREAM_RELEASE says which release it is:

- `1.2`: the first with results on the task; no finish reasons.
- `1.2.1`: finish reasons.
- `1.3.0rc`: execution scopes, of their first shape; no TensorRT engines any more.
- `newest`: the task fields and the keywords that came after it.
"""

import importlib
import os
import warnings

__version__ = os.environ.get("FAKE_UPSTREAM_RELEASE", "1.2.1")
_NUMBER = ("1.2", "1.2.1", "1.3.0rc", "newest").index(__version__)
HAS_FINISH_REASON = _NUMBER >= 1
HAS_SCOPES = _NUMBER >= 2
HAS_ENGINES = not HAS_SCOPES
HAS_NEWEST_FIELDS = _NUMBER >= 3
_HOMES = {"LLM": "tensorrt_llm.llmapi.llm", "SamplingParams": "tensorrt_llm._sampling"}

print(f"[TensorRT-LLM] TensorRT LLM version: {__version__}")  # noqa: T201  (as the real ones)
warnings.warn("a library below has deprecated something", DeprecationWarning, stacklevel=2)


def __getattr__(name):  # the LLM API needs torch, Scaffolding's classes do not
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(name)
