"""Files of JSON lines, and the recorded chains that some of them hold."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file of JSON lines, gzipped or not."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.strip())


def text_of(chain: dict[str, Any]) -> str:
    """What a recorded chain wrote, the draft's chunks and the target's."""
    return "".join(turn["draft"] + (turn["target"] or "") for turn in chain["turns"])
