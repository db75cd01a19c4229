"""Draws the picture of each algorithm into docs/_assets (`make pages`). Time goes from left to right."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parents[1] / "_assets"
WIDTH, LEFT, LANE, BAR, TOP = 560, 96, 42, 30, 14
COLOURS = {
    "prompt": ("#cfd8dc", "#263238"),
    "chain": ("#00897b", "#ffffff"),
    "probe": ("#ffb300", "#263238"),
    "target": ("#5e35b1", "#ffffff"),
    "answer": ("#263238", "#ffffff"),
    "spared": ("none", "#607d8b"),
}


class Bar(NamedTuple):
    """A piece of work.

    Attributes:
        start: Where it begins, from 0 to 100.
        end: Where it ends.
        kind: Which colour it has.
        text: What stands in it.
    """

    start: float
    end: float
    kind: str
    text: str = ""


Lanes = list[tuple[str, list[Bar]]]


def drawn(lanes: Lanes, described: str) -> str:
    """An SVG of lanes, one below the other."""
    height = 2 * TOP + LANE * len(lanes)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="sans-serif" font-size="16">',
        f"<title>{escape(described)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for number, (name, bars) in enumerate(lanes):
        top = TOP + number * LANE
        middle = top + BAR / 2 + 6
        parts.append(f'<text x="12" y="{middle:.0f}" fill="#263238">{escape(name)}</text>')
        for bar in bars:
            fill, ink = COLOURS[bar.kind]
            x = LEFT + bar.start * (WIDTH - LEFT - 14) / 100
            width = (bar.end - bar.start) * (WIDTH - LEFT - 14) / 100
            dashed = ' stroke="#90a4ae" stroke-dasharray="5 4"' if bar.kind == "spared" else ""
            parts.append(
                f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{BAR}" rx="4" fill="{fill}"{dashed}/>'
            )
            if bar.text:
                parts.append(
                    f'<text x="{x + width / 2:.1f}" y="{middle:.0f}" fill="{ink}" text-anchor="middle">'
                    f"{escape(bar.text)}</text>"
                )
    return "\n".join([*parts, "</svg>", ""])


def tree(described: str) -> str:
    """An SVG of a tree of steps with scores."""
    nodes = {
        "": (66, 105, "question", "prompt"),
        "a": (208, 45, "0.8", "chain"),
        "b": (208, 165, "0.4", "chain"),
        "aa": (350, 30, "0.9", "chain"),
        "ab": (350, 90, "0.5", "chain"),
        "ba": (350, 165, "0.2", "spared"),
        "aaa": (492, 30, "12", "answer"),
        "aba": (492, 90, "17", "answer"),
    }
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 210" role="img" font-family="sans-serif" '
        'font-size="16">',
        f"<title>{escape(described)}</title>",
        f'<rect width="{WIDTH}" height="210" fill="#ffffff"/>',
    ]
    for name, (x, y, _, _) in nodes.items():
        if name:
            from_x, from_y, _, _ = nodes[name[:-1]]
            parts.append(
                f'<line x1="{from_x + 50}" y1="{from_y}" x2="{x - 50}" y2="{y}" stroke="#90a4ae" stroke-width="2"/>'
            )
    for x, y, text, kind in nodes.values():
        fill, ink = COLOURS[kind]
        dashed = ' stroke="#90a4ae" stroke-dasharray="5 4"' if kind == "spared" else ""
        parts.append(f'<rect x="{x - 50}" y="{y - 15}" width="100" height="30" rx="4" fill="{fill}"{dashed}/>')
        parts.append(f'<text x="{x}" y="{y + 6}" fill="{ink}" text-anchor="middle">{text}</text>')
    return "\n".join([*parts, "</svg>", ""])


def branches(judged: list[tuple[str, str]], chosen: int) -> Lanes:
    """Branches behind one prompt."""
    return [
        (
            f"branch {number + 1}",
            [
                *([Bar(0, 22, "prompt", "prompt")] if number == 0 else [Bar(0, 22, "spared", "shared")]),
                Bar(23, 58 + 7 * number, "chain", confidence),
                Bar(75, 83, "probe", answer),
                *([Bar(90, 100, "answer", answer)] if number == chosen else []),
            ],
        )
        for number, (confidence, answer) in enumerate(judged)
    ]


PICTURES: dict[str, tuple[Lanes, str]] = {
    "dynasor_cot": (
        [
            ("chain", [Bar(0, 10, "prompt"), Bar(11, 62, "chain", "thinking"), Bar(63, 100, "spared", "not written")]),
            (
                "probes",
                [
                    Bar(end - 6, end, "probe", answer)
                    for end, answer in ((25, "17"), (38, "12"), (50, "12"), (62, "12"))
                ],
            ),
            ("answer", [Bar(64, 74, "answer", "12")]),
        ],
        "A chain of thought is asked for its answer at intervals. Equal answers in a row end it, "
        "once the model is sure of the newest.",
    ),
    "majority_vote": (
        [
            ("round 1", [Bar(0, 40, "chain", "12")]),
            ("", [Bar(0, 46, "chain", "17")]),
            ("", [Bar(0, 36, "chain", "12")]),
            ("", [Bar(0, 42, "chain", "12")]),
            ("round 2", [Bar(47, 84, "chain", "12")]),
            ("", [Bar(47, 88, "chain", "12"), Bar(90, 100, "answer", "12")]),
            ("not drawn", [Bar(47, 88, "spared")]),
        ],
        "Samples are drawn in rounds. The vote ends once the rest would probably not change the winner.",
    ),
    "best_of_n": (
        [
            ("sample 1", [Bar(0, 50, "chain", "17"), Bar(52, 64, "probe", "0.71")]),
            ("sample 2", [Bar(0, 44, "chain", "12"), Bar(52, 64, "probe", "0.84"), Bar(66, 78, "answer", "12")]),
            ("sample 3", [Bar(0, 38, "chain", "12"), Bar(52, 64, "probe", "0.80")]),
        ],
        "Every sample is scored. The sample with the highest score is the answer.",
    ),
    "deepconf": (
        [
            ("trace 1", [Bar(0, 70, "chain", "sure"), Bar(72, 84, "probe", "12")]),
            ("trace 2", [Bar(0, 28, "chain", "unsure"), Bar(29, 70, "spared", "stopped")]),
            ("trace 3", [Bar(0, 60, "chain", "less sure"), Bar(72, 84, "probe", "17")]),
            ("trace 4", [Bar(0, 66, "chain", "sure"), Bar(72, 84, "probe", "12"), Bar(88, 100, "answer", "12")]),
        ],
        "A trace that becomes unsure is stopped and has no vote. The others vote with the weight of their confidence.",
    ),
    "conformal_draft_target": (
        [
            (
                "draft",
                [
                    Bar(0, 10, "prompt"),
                    Bar(11, 29, "chain", "chunk 1"),
                    Bar(31, 49, "spared", "rejected"),
                    Bar(71, 89, "chain", "chunk 3"),
                ],
            ),
            ("p-value", [Bar(19, 29, "probe", "0.62"), Bar(39, 49, "probe", "0.08"), Bar(79, 89, "probe", "0.45")]),
            ("target", [Bar(51, 69, "target", "chunk 2")]),
        ],
        "The draft writes chunks. If the p-value of a chunk is at most alpha, the target writes it again.",
    ),
    "kv_share_branching": (
        branches([("0.88", "12"), ("0.90", "17"), ("0.86", "12")], chosen=0),
        "Branches share the prompt's keys and values. The answer with the largest sum of scores wins.",
    ),
    "budget_forcing": (
        [
            ("chain", [Bar(0, 10, "prompt"), Bar(11, 60, "chain", "thinking"), Bar(61, 92, "spared", "not written")]),
            ("closed", [Bar(60, 78, "probe", "</think>")]),
            ("answer", [Bar(79, 91, "answer", "12")]),
        ],
        "Thinking is closed at its budget, and the model answers with what it has.",
    ),
    "queue_aware_budget": (
        [
            ("sums", [Bar(0, 8, "chain", "20"), Bar(10, 16, "answer", "7")]),
            ("proofs", [Bar(0, 17, "prompt", "waits"), Bar(17, 62, "chain", "340 tokens"), Bar(63, 69, "answer", "B")]),
            ("sums", [Bar(30, 69, "prompt", "waits"), Bar(70, 78, "chain", "20"), Bar(80, 86, "answer", "9")]),
        ],
        "Each type of question thinks for as long as its type is worth while others wait.",
    ),
}
SEARCH = "Steps of a solution form a tree. The next steps are written where the score is high."


def pictures() -> dict[str, str]:
    """Every picture by its file's name."""
    return {f"{name}.svg": drawn(*picture) for name, picture in PICTURES.items()} | {"search.svg": tree(SEARCH)}


if __name__ == "__main__":
    for name, text in pictures().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
