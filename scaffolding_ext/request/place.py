"""A request's place among those that wait: how far it is, and the policy that orders requests by this."""

from __future__ import annotations

from collections.abc import Callable

from scaffolding_ext.request.branch import branch_path
from scaffolding_ext.request.identity import Identity
from scaffolding_ext.request.ledger import Ledger
from scaffolding_ext.request.lifetime import Lifetime
from scaffolding_ext.request.progress import Progress, Steps

_NOTHING_SAID = Steps()


class Place:
    """A request's place in the waiting line.

    Args:
        identity: Of the request.
        lifetime: When it came, and when its answer is wanted.
        ledger: The tokens that it has decoded so far.

    Attributes:
        order: The policy: a number by the request's progress. The lower it is, the sooner the request is served. None
            where no policy orders requests.
    """

    __slots__ = ("_identity", "_ledger", "_lifetime", "_said_by", "_steps", "order")

    def __init__(self, identity: Identity, lifetime: Lifetime, ledger: Ledger) -> None:
        self.order: Callable[[Progress], float] | None = None
        self._identity = identity
        self._lifetime = lifetime
        self._ledger = ledger
        self._steps = _NOTHING_SAID
        self._said_by: tuple[int, ...] | None = None  # the branch of the controller that published the steps

    @property
    def progress(self) -> Progress:
        """How far the request is, by its ledger and by what its controller published."""
        lifetime = self._lifetime
        return Progress(self._identity.number, lifetime.began, lifetime.deadline, self._ledger.num_decoded, self._steps)

    @property
    def priority(self) -> float:
        """The number by which the policy orders the request; 0 without a policy."""
        return 0.0 if self.order is None else self.order(self.progress)

    def publish(self, steps: Steps) -> None:
        """Say how far the request is. Where nested controllers say it, the outermost one counts."""
        path = branch_path()
        if self._said_by is None or path == self._said_by[: len(path)]:
            self._steps, self._said_by = steps, path
