"""The final vote of a request's chains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from scaffolding_ext.controllers.base import finish
from scaffolding_ext.controllers.draft_target.chain import DraftTargetChain
from scaffolding_ext.controllers.draft_target.take_over import TakeOverRule
from scaffolding_ext.controllers.run import Run
from scaffolding_ext.controllers.vote.voting import elect, end_reason
from scaffolding_ext.protocol import ControllerGenerator
from scaffolding_ext.request.figures import Answers


def budget_prediction(num_taken_over: float, num_decided: float, alpha: float) -> float:
    """Accuracy of the predicted budget of take-overs, alpha times the decisions: 1 less its relative error.

    Reference: A1, figure 6, and its released code.
    """
    predicted = alpha * num_decided
    return 1 - abs(num_taken_over - predicted) / predicted


def end_with_vote(run: Run, chains: Sequence[DraftTargetChain], rule: TakeOverRule) -> ControllerGenerator:
    """Write the chain with the elected answer into the request's task."""
    alpha, num_decided = getattr(rule, "alpha", 0), sum(chain.num_decided for chain in chains)
    if alpha and num_decided:
        num_taken_over = sum(chain.num_taken_over for chain in chains)
        run.sum_up(budget_prediction=budget_prediction(num_taken_over, num_decided, alpha))
    answers = [chain.answer for chain in chains]
    classes = yield from run.group(answers)
    election = elect(classes)
    elected = chains[election.first]
    ends = Counter(str(chain.exit_reason) for chain in chains)
    run.sum_up(chain_ends=ends, answers=Answers(answers, classes))
    run.event("vote", answers=answers, classes=classes, winner=election.winner, **rule.figures())
    reason = elected.exit_reason if len(chains) == 1 else end_reason(election, "vote", elected.exit_reason)
    finish(run.task, elected.text, elected.token_ids, elected.answer, reason)
