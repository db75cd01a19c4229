"""Search over steps, scored by your own checker.

    python examples/search.py

A step is a line. The checker runs in a separate process, which is killed when it hangs, so it may run any code:
tests, a compiler, a proof checker. This one checks the newest equation.
"""

import re

from scaffolding_ext import load_stack

EQUATION = re.compile(r"(-?\d+)([+-])(-?\d+)=(-?\d+)")


def newest_equation_holds(job: dict[str, object]) -> float:
    """Return 1 if the last equation of the text holds, 0.5 if there is none, 0 if it is wrong."""
    found = EQUATION.findall(str(job["text"]))
    if not found:
        return 0.5
    a, sign, b, c = found[-1]
    return float(int(a) + int(b) * (1 if sign == "+" else -1) == int(c))


STACK = {
    "controller": {
        "type": "SearchController",
        "args": {
            "strategy": {"type": "Beam", "args": {"width": 4, "keep": 2, "max_depth": 80}},
            "steps": {"ends": ["\n"], "max_tokens": 48},
            "scorer": "checker",
            "selector": "vote",
            "budget": {"nodes": 160},
        },
    },
    "workers": {
        "generation": {"type": "HuggingFaceWorker", "args": {"model": "tinylm/target"}},
        "reward": {"type": "CheckWorker", "args": {"function": "search:newest_equation_holds", "deadline_seconds": 5}},
    },
    "seed": 0,
}

if __name__ == "__main__":
    with load_stack(STACK) as llm:
        result = llm.generate("Start with 16. Apply d-4,e-7,f+5,g+2. Find the total.")
    ledger = result.program.ledger
    print(f"answer {result.answer} ({result.exit_reason})")
    for purpose, counts in ledger.by_purpose.items():
        print(f"{purpose!s:<10}{counts.decoded} tokens decoded")
