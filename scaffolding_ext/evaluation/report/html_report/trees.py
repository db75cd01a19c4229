"""Trees of searches as the page of one sample draws them, from a record's steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scaffolding_ext.evaluation.report.timeline import Step


def trees_of(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """The trees that a record's searches have written, one a lane.

    Returns:
        Of each tree its `lane` and its `nodes`. A node has its `path`, the number of its parent among the nodes (None
        behind the root), its place (`x` in [0, 1], `depth`), the number of the `step` that wrote it, its `value` (None
        where nobody judged it), `visits` (nodes in its subtree), `answer`, and a `state`: `won`, `ended`, `open`
        (something stands behind it) or `cut`.
    """
    lanes = dict.fromkeys(step.lane for step in steps if step.event == "tree")
    return [{"lane": lane, "nodes": nodes} for lane in lanes if (nodes := _nodes(steps, lane))]


def _nodes(steps: Sequence[Step], lane: str) -> list[dict[str, Any]]:
    found: dict[tuple[int, ...], dict[str, Any]] = {}
    winner: tuple[int, ...] = ()
    for number, step in enumerate(steps):
        if step.lane != lane:
            continue
        figures = step.figures
        if step.event == "branches":
            columns = (figures["paths"], figures["answers"], figures["finish_reasons"])
            for path, answer, reason in zip(*columns, strict=True):
                found[tuple(path)] = {"path": list(path), "step": number, "answer": answer, "has_ended": bool(reason)}
        elif step.event == "select":
            for path, value in zip(figures["paths"], figures["values"], strict=True):
                found.get(tuple(path), {})["value"] = value
        elif step.event == "tree":
            winner = tuple(figures["winner"] or ())
    order = sorted(found)
    numbers = {path: number for number, path in enumerate(order)}
    children = {path: [other for other in order if other[:-1] == path] for path in order}
    leaves = [path for path in order if not children[path]]
    place = {path: (number + 0.5) / len(leaves) for number, path in enumerate(leaves)}
    visits = dict.fromkeys(order, 1)
    for path in sorted(order, key=len, reverse=True):
        if children[path]:
            place[path] = sum(place[child] for child in children[path]) / len(children[path])
            visits[path] += sum(visits[child] for child in children[path])
    nodes = []
    for path in order:
        node, has_won = found[path], path == winner[: len(path)]
        has_ended = node.pop("has_ended")
        state = "won" if has_won else "ended" if has_ended else "open" if children[path] else "cut"
        nodes.append(
            {"value": None, **node}
            | {"parent": numbers.get(path[:-1]), "x": place[path], "depth": len(path)}
            | {"visits": visits[path], "state": state}
        )
    return nodes
