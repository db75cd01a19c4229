"""Attention of decoding rows on a CPU, in C: a pass over each row's own keys and values, no longer than the row.

torch has no kernel for one token a row: what there is reads the rows of a batch up to the longest, and spends its time
on matrix products that are too small. The C file beside this one is compiled when it is first needed; where that
cannot be done, torch computes the same.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

import torch

# Sums may be computed in any order; what the whole of -ffast-math adds would change the number format of the process.
_FLAGS = (
    *("-O3", "-march=native", "-fPIC", "-shared"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math", "-freciprocal-math"),
)
_UNBOUNDED = 1 << 60

logger = logging.getLogger(__name__)


class _Call(ctypes.Structure):
    """The C file's struct of that name."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("queries", "keys", "values", "output", "positions")),
        *((name, ctypes.c_int64) for name in ("rows", "heads", "groups")),
        *((name, ctypes.c_int64) for name in ("query_row", "query_head", "kv_row", "kv_head", "window")),
        ("scale", ctypes.c_float),
    )


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernel; None where there is no compiler, or it fails."""
    command = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if command is None:
        logger.info("no C compiler was found: torch computes the attention of decoding rows, which is slower")
        return None
    source = resources.files(__package__) / "decode_attention.c"
    try:
        with tempfile.TemporaryDirectory() as folder, resources.as_file(source) as path:
            target = Path(folder) / "decode_attention.so"
            arguments = [*shlex.split(command), *_FLAGS, str(path), "-o", str(target), "-lm"]
            subprocess.run(arguments, check=True, capture_output=True, timeout=120)
            return ctypes.CDLL(str(target))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or b""
        logger.info("the C kernel cannot be built, torch is slower: %s %s", error, detail.decode(errors="replace"))
        return None


def serves(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether the kernel can compute this attention: float32 on the CPU, and one thread."""
    return (
        keys.device.type == "cpu"
        and {queries.dtype, keys.dtype, values.dtype} == {torch.float32}
        and keys.shape == values.shape
        and keys.stride() == values.stride()
        and queries.stride(2) == 1
        and torch.get_num_threads() == 1
        and library() is not None
    )


def decode_attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    window: int | None,
    scale: float,
    output: torch.Tensor,
) -> None:
    """Attend from one token a row to the row's positions up to and with its own.

    Args:
        queries: float32, shape (heads, rows, head size); consecutive heads share keys and values.
        keys: Shape (rows, key-value heads, positions, head size).
        values: As the keys, with the same strides.
        positions: Of each row's token, int64, contiguous, shape (rows,) or (rows, 1).
        window: Positions that a token sees at most; None is all.
        scale: Factor on the scores.
        output: Contiguous, shape (rows, heads, head size); written.

    Raises:
        MemoryError: There is no room for the scores of one row.
    """
    compiled = library()
    assert compiled is not None
    num_heads, num_rows, size = queries.shape
    call = _Call(
        *(tensor.data_ptr() for tensor in (queries, keys, values, output, positions)),
        *(num_rows, keys.shape[1], num_heads // keys.shape[1]),
        *(
            queries.stride(1),
            queries.stride(0),
            keys.stride(0),
            keys.stride(1),
            _UNBOUNDED if window is None else window,
        ),
        scale,
    )
    if compiled.decode_attention(ctypes.byref(call), ctypes.c_int64(size)):
        raise MemoryError("no memory for the scores of one row")
