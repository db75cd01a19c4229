"""A REBASE tree that is widened: it has as many solutions as the new width, and keeps what it has."""

import numpy as np
import pytest

from scaffolding_ext.controllers.tree.node import Node
from scaffolding_ext.controllers.tree.strategies.rebase import Rebase


def grown(strategy: Rebase, root: Node, rng: np.random.Generator, scores: dict[tuple[int, ...], float]) -> Rebase:
    """Run a search to its end; a node ends with a chance of .3, and is written and scored once."""
    search = strategy.begin(root, np.random.default_rng(0))
    while nodes := search.ask():
        for node in nodes:
            if node.path not in scores:
                scores[node.path] = float(rng.random())
                if node.to_end or rng.random() < 0.3:
                    node.end()
            search.tell(node, scores[node.path])
    return search


@pytest.mark.parametrize("seed", range(20))
def test_a_widened_tree_ends_as_many_solutions_as_its_width_and_keeps_its_nodes(seed: int) -> None:
    rng, root, scores = np.random.default_rng(seed), Node(), dict[tuple[int, ...], float]()
    known: set[tuple[int, ...]] = set()
    rebase = Rebase(max_depth=8)
    for before, width in ((0, 4), (4, 8), (8, 32)):
        grown(rebase.wider(before, width), root, rng, scores)
        ended = [node.path for node in root.subtree() if node.has_ended]
        assert len(ended) == width
        assert known <= scores.keys()
        known = set(scores)


def test_further_children_go_to_nodes_that_have_fewer_than_their_share() -> None:
    """Two nodes with a child each; the better one gets the child that the third, new one leaves."""
    root, scores = Node(), {(0,): 0.9, (1,): 0.1, (2,): 0.1, (3,): 0.1}
    for _ in range(2):
        root.grow().grow()
    search = Rebase(4, max_depth=3).wider(2, 4).begin(root, np.random.default_rng(0))
    for node in search.ask():
        search.tell(node, scores[node.path])
    asked = [node.path for node in search.ask()]
    assert sorted(asked) == [(0, 0), (0, 1), (0, 2), (1, 0)]
