"""Choose a search's answer, and record its tree."""

from __future__ import annotations

from collections.abc import Sequence

from scaffolding_ext.controllers.run import Run
from scaffolding_ext.controllers.tree.branch import Branch
from scaffolding_ext.controllers.tree.closing import rank
from scaffolding_ext.controllers.tree.rounds import Rounds, record_selected
from scaffolding_ext.errors import NoOutputError
from scaffolding_ext.protocol import ControllerGenerator
from scaffolding_ext.request.figures import Answers
from scaffolding_ext.request.program import DEADLINE

MOST_CLOSED = 16  # open leaves with forced answers, if no solution has ended


def choose(run: Run, rounds: Rounds) -> ControllerGenerator:
    """Return the branch that is the answer, forcing a missing answer that counts.

    Raises:
        NoOutputError: Nothing was written.
    """
    parts = rounds.parts
    written = [node for node in rounds.nodes if not node.is_cut]
    if not written:
        raise _nothing_written(rounds)
    candidates = _judged_ones(rounds.leaves)
    if not candidates:
        parents = {id(node.parent) for node in written}
        frontier = _judged_ones([node for node in written if id(node) not in parents])
        candidates = sorted(frontier, key=rank)[:MOST_CLOSED]
    if parts.insist_on_answer:
        yield from rounds.closings.force(candidates, parts.selector.reads_all)
    classes = yield from run.group([node.answer for node in candidates])
    leaves = rounds.seen(candidates, classes)
    winner = candidates[parts.selector.choose(leaves)]
    if rounds.is_late and not winner.chain.text and winner.answer is None:
        raise _nothing_written(rounds)
    record_selected(rounds.judged, [winner])
    run.event(
        "answer",
        paths=[node.path for node in candidates],
        answers=[node.answer for node in candidates],
        classes=classes,
        values=[leaf.value for leaf in leaves],
        visits=[leaf.visits for leaf in leaves],
        winner=winner.path,
    )
    run.sum_up(answers=Answers([node.answer for node in candidates], classes))
    return winner


def exit_reason(rounds: Rounds, winner: Branch) -> str:
    if rounds.reason == "stopped":
        return "certain"
    return end_of(winner, rounds.is_late)


def end_of(winner: Branch, is_late: bool) -> str:
    """Return the exit reason of a request that this branch answers; `is_late` if the deadline cut a step."""
    reason = winner.chain.finish_reason
    if is_late or reason == DEADLINE:
        return DEADLINE
    return "end" if winner.is_whole and reason != "length" else "length"


def record_tree(run: Run, rounds: Rounds, winner: Branch | None) -> None:
    """Record the tree, even if the search failed or was cancelled."""
    nodes, depth = rounds.nodes, max((node.depth for node in rounds.nodes), default=0)
    held = {"most_tokens_held": rounds.most_held}
    run.event(
        "tree",
        strategy=type(rounds.parts.strategy).__name__,
        reason=rounds.reason,
        num_nodes=len(nodes),
        num_leaves=len(rounds.leaves),
        depth=depth,
        winner=None if winner is None else winner.path,
        best=min(nodes, key=rank).path if nodes else None,
        **held,
        spent=rounds.spent._asdict(),
    )
    run.sum_up(stop_reason=rounds.reason, nodes=len(nodes), leaves=len(rounds.leaves), depth=depth, **held)


def _nothing_written(rounds: Rounds) -> NoOutputError:
    if rounds.is_late:
        return NoOutputError("the search wrote nothing before the request's deadline; allow more seconds")
    return NoOutputError(f"the search wrote nothing within its budget ({rounds.parts.budget}); give it more")


def _judged_ones(nodes: Sequence[Branch]) -> Sequence[Branch]:
    return [node for node in nodes if node.score is not None] or nodes
