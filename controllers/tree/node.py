"""Node of a search tree, as strategies see it."""

from __future__ import annotations

from collections.abc import Iterator


class Node:
    """A step of a solution that continues its ancestors' steps. The root stands for the prompt and has no step.

    Args:
        path: Its number among its siblings at each depth, from the root; the root's is empty.
        parent: None for the root.
        to_end: Written to the end of the solution, not only to the end of its step.

    Attributes:
        children: In order of growth.
    """

    def __init__(self, path: tuple[int, ...] = (), parent: Node | None = None, to_end: bool = False) -> None:
        self.path = path
        self.parent = parent
        self.to_end = to_end
        self.children: list[Node] = []
        self._has_ended = False

    @property
    def depth(self) -> int:
        return len(self.path)

    @property
    def has_ended(self) -> bool:
        """True if the solution ends with it, so that nothing can follow."""
        return self._has_ended

    @property
    def text(self) -> str | None:
        """The solution so far; None if unknown."""
        return None

    @property
    def is_whole(self) -> bool:
        """True if it is a whole solution; if solutions are refined, others may follow it."""
        return self.has_ended

    def end(self) -> None:
        self._has_ended = True

    def grow(self, to_end: bool = False) -> Node:
        child = self._child((*self.path, len(self.children)), to_end)
        self.children.append(child)
        return child

    def _child(self, path: tuple[int, ...], to_end: bool) -> Node:
        return Node(path, self, to_end)

    def ancestors(self) -> Iterator[Node]:
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def subtree(self) -> Iterator[Node]:
        """Yield the node and all nodes below it, parents first."""
        open_ones = [self]
        while open_ones:
            node = open_ones.pop()
            yield node
            open_ones += reversed(node.children)
