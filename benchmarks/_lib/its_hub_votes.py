"""Votes of its_hub, in the environment that it is installed in. Studies run this file; it imports no other of them.

Reads one JSON object from stdin (url, model, algorithm, argument, prompts, num_samples, at_once, and optional sampling)
and writes a list of two: the answer of each prompt, and the seconds of the votes. Python's start and its_hub's import
take no part in them.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_BOX = re.compile(r"\\boxed\{([^{}]*)\}")


def answer_of(text: str) -> str:
    """The content of the last box; the whole text if there is none."""
    boxes = _BOX.findall(text)
    return boxes[-1].strip() if boxes else text.strip()


def voted(python: Path, **asked: Any) -> tuple[list[str | None], float]:
    """Run this file with the Python that has its_hub: the answers, and seconds.

    Raises:
        RuntimeError: its_hub failed; with the end of what it said.
    """
    run = subprocess.run([str(python), __file__], input=json.dumps(asked), capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"its_hub failed: {run.stderr[-2000:]}")
    answers, seconds = json.loads(run.stdout)
    return answers, seconds


async def _votes(asked: dict[str, Any]) -> tuple[list[str], float]:
    import its_hub  # type: ignore[import-not-found, unused-ignore]

    model = its_hub.OpenAICompatibleLanguageModel(asked["url"], "none", asked["model"], **asked.get("sampling", {}))
    algorithm = getattr(its_hub, asked["algorithm"])(
        *asked["argument"],
        consistency_space_projection_func=answer_of,
        orchestrator=its_hub.LMOrchestrator(asked["num_samples"] * asked["at_once"]),
    )
    places = asyncio.Semaphore(asked["at_once"])

    async def vote(prompt: str) -> str:
        async with places:
            return answer_of((await algorithm.ainfer(model, prompt, asked["num_samples"]))["content"])

    began = time.perf_counter()
    try:
        answers = await asyncio.gather(*map(vote, asked["prompts"]))
        return answers, time.perf_counter() - began
    finally:
        await model.close()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_votes(json.load(sys.stdin)))))
