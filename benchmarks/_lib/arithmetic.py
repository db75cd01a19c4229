"""Word problems of two to four small calculations, and a checker of the calculations in a solution."""

from __future__ import annotations

import random
import re
from typing import Any, NamedTuple

_NAMES = ("Mia", "Tom", "Ana", "Leo", "Eva", "Sam")
_THINGS = ("apples", "books", "pens", "stamps", "shells", "cards")
_NUMBER = r"\$?(-?\d[\d,]*(?:\.\d+)?)"
_EQUATION = re.compile(rf"(?<![\d.])((?:{_NUMBER}\s*[-+*/x×÷]\s*)+{_NUMBER})\s*=\s*{_NUMBER}")  # noqa: RUF001


class WordProblem(NamedTuple):
    """A question and its answer, a whole number."""

    question: str
    answer: int


def draw_word_problems(num: int, seed: int) -> list[WordProblem]:
    """Questions like those of GSM8K, drawn from templates."""
    rng = random.Random(seed)
    return [_draw(rng) for _ in range(num)]


def _draw(rng: random.Random) -> WordProblem:
    name, thing = rng.choice(_NAMES), rng.choice(_THINGS)
    total = rng.randint(5, 40)
    parts = [f"{name} has {total} {thing}."]
    for _ in range(rng.randint(2, 4)):
        kind = rng.choice(("buys", "bags", "gives", "half"))
        count, size = rng.randint(2, 6), rng.randint(2, 9)
        if kind == "gives" and total > size:
            total -= size
            parts.append(f"Then {name} gives {size} {thing} to a friend.")
        elif kind == "half" and total % 2 == 0:
            total //= 2
            parts.append(f"Then {name} sells half of the {thing}.")
        elif kind == "bags":
            total += count * size
            parts.append(f"Then {name} gets {count} bags with {size} {thing} each.")
        else:
            total += size
            parts.append(f"Then {name} buys {size} more {thing}.")
    return WordProblem(f"{' '.join(parts)} How many {thing} does {name} have now?", total)


def right_share(job: dict[str, Any]) -> float:
    """The share of the calculations in a text that are right; 0.5 where it has none. A function for `CheckWorker`."""
    found = [(match[1], match[match.lastindex or 0]) for match in _EQUATION.finditer(job["text"])]
    rights = [_is_right(left, right) for left, right in found]
    return sum(rights) / len(rights) if rights else 0.5


def _is_right(left: str, right: str) -> bool:
    tokens = re.findall(r"\d[\d,]*(?:\.\d+)?|[-+*/x×÷]", left)  # noqa: RUF001
    value, total, sign, pending = 0.0, 0.0, 1.0, "+"
    for token in tokens:
        if not token[0].isdigit():
            if pending and token == "-":
                sign = -sign  # of the number that follows
            pending = pending or token
            continue
        number = sign * float(token.replace(",", ""))
        if pending in ("/", "÷") and number == 0:
            return False
        if pending in ("+", "-"):
            total, value = total + value, number if pending == "+" else -number
        else:
            value = value / number if pending in ("/", "÷") else value * number
        sign, pending = 1.0, ""
    return abs(total + value - float(right.replace(",", ""))) < 0.01
