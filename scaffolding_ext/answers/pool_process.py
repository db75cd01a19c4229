"""The side of a killable pool that runs in its processes: reads jobs as lines of JSON, and writes their results."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
from typing import Any, TextIO

_GRACE_SECONDS = 10.0


def serve(target: str, max_memory_bytes: int) -> None:
    """Serve jobs until standard input ends.

    A job that runs on when nobody is left to kill it ends the process by itself: faulthandler's watchdog needs neither
    signals nor the interpreter's lock.

    Args:
        target: The function, as `"module:attribute"`.
        max_memory_bytes: Limit of the address space.
    """
    replies = os.fdopen(os.dup(1), "w")
    nowhere = open(os.devnull, "w")  # noqa: SIM115 - as long as the process lives
    os.dup2(nowhere.fileno(), 1)  # what a library prints is no reply
    try:
        module, _, attribute = target.partition(":")
        function = getattr(importlib.import_module(module), attribute)
        _limit_memory(max_memory_bytes)
    except Exception as error:  # of any type: the parent raises it
        _write(replies, {"error": f"{type(error).__name__}: {error}"})
        return
    _write(replies, {"ready": True})
    for line in sys.stdin:
        deadline_seconds, arguments = json.loads(line)
        faulthandler.dump_traceback_later(deadline_seconds + _GRACE_SECONDS, exit=True, file=nowhere)
        try:
            reply = {"result": function(*arguments)}
        except Exception as error:  # of any type: the parent raises it
            reply = {"error": f"{type(error).__name__}: {error}"}
        faulthandler.cancel_dump_traceback_later()
        _write(replies, reply)


def _write(replies: TextIO, reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply) + "\n")
    replies.flush()


def _limit_memory(max_memory_bytes: int) -> None:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    allowed = max_memory_bytes if hard == resource.RLIM_INFINITY else min(max_memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (allowed, hard))
