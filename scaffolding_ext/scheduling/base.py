"""The contract of every policy that orders waiting programs, and the ageing that keeps programs from starving."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from scaffolding_ext import require
from scaffolding_ext.request.progress import Progress

if TYPE_CHECKING:
    from scaffolding_ext.request.program import Program


class Policy(ABC):
    """Gives each program a number: the lower, the sooner its requests are served; of equals, who came first.

    The number is asked for when a request of the program begins to wait. It must not depend on the present time, since
    an engine may keep it: write a bonus for waiting as a price for arriving late.
    """

    @abstractmethod
    def priority(self, progress: Progress) -> float:
        """The program's number."""

    def learn(self, progress: Progress) -> None:  # noqa: B027 - most policies learn nothing
        """Take in how a program was when it ended."""

    def take_in(self, program: Program) -> None:
        """Order a program from now on, and learn from its end; a program that another policy orders stays as it is."""
        place = program.place
        if place.order is None:
            place.order = self.priority
            program.lifetime.at_end(lambda: self.learn(place.progress))


class AgeingPolicy(Policy):
    """A policy that goes by a number of tokens, and under which nobody starves.

    Each `phi` seconds in the system weigh as much as one token less. So a later program passes an earlier one only if
    it arrives within `phi` seconds for each token that it has less. This bounds which programs may pass, and so nobody
    starves. It does not bound the wait: the wait depends on how many programs arrive in that time, and how long they
    take.

    Args:
        phi: Seconds for a token, above 0; the smaller, the sooner a long program is served.

    Raises:
        ConfigError: It is not above 0.

    Reference:
        Fu et al., "Efficiently Scaling LLM Reasoning with Certaindex" (Dynasor), on fairness: phi is a program's time
        in the system divided by its output tokens, and a program whose phi is too large is raised.

    Deviation:
        The paper raises a program that has waited too long above all others. Here its place rises all the while, so
        that the order of two programs never depends on the time of asking, and an engine can keep it.
    """

    def __init__(self, phi: float = 0.05) -> None:
        self.phi = require.number("phi", phi, above=0)

    @abstractmethod
    def num_tokens(self, progress: Progress) -> float:
        """The number of tokens that orders the program."""

    def priority(self, progress: Progress) -> float:
        return self.num_tokens(progress) + progress.arrived / self.phi
