"""Votes of its_hub, in the environment that it is installed in. `studies.peers` runs this file; it imports no other.

Reads one JSON object from stdin (url, model, algorithm, argument, prompts, num_samples, at_once) and writes one:
the answer of each prompt.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import Any

_BOX = re.compile(r"\\boxed\{([^{}]*)\}")


def answer_of(text: str) -> str:
    """What stands in the last box; the whole text where there is none."""
    boxes = _BOX.findall(text)
    return boxes[-1].strip() if boxes else text.strip()


async def _votes(asked: dict[str, Any]) -> list[str]:
    import its_hub  # type: ignore[import-not-found, unused-ignore]

    model = its_hub.OpenAICompatibleLanguageModel(asked["url"], "none", asked["model"])
    algorithm = getattr(its_hub, asked["algorithm"])(
        *asked["argument"],
        consistency_space_projection_func=answer_of,
        orchestrator=its_hub.LMOrchestrator(asked["num_samples"] * asked["at_once"]),
    )
    places = asyncio.Semaphore(asked["at_once"])

    async def vote(prompt: str) -> str:
        async with places:
            return answer_of((await algorithm.ainfer(model, prompt, asked["num_samples"]))["content"])

    try:
        return await asyncio.gather(*map(vote, asked["prompts"]))
    finally:
        await model.close()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_votes(json.load(sys.stdin)))))
