"""The seam at the election: a reward controller decides a vote whose two leaders are one vote apart.

cd CHECKOUT && python -m pytest -q -p no:cacheprovider -c /dev/null --rootdir . PATH/test_close_vote.py
"""

from scaffolding_ext import MajorityVoteController, NativeGenerationController, ScaffoldingLlm
from scaffolding_ext.controllers.reward import score
from scaffolding_ext.controllers.vote.allocation.base import standing_of
from scaffolding_ext.controllers.vote.voting import Election
from scaffolding_ext.protocol import Controller
from scaffolding_ext.testing import ScriptedWorker


class CheckedVote(MajorityVoteController):
    """A vote in which a verifier chooses between the two leaders if at most one vote is between them."""

    def __init__(self, *args, verifier, **kwargs):
        super().__init__(*args, **kwargs)
        self.verifier = verifier

    def elect(self, run, votes):
        standing = standing_of(votes)
        if not standing.rivals or standing.lead - standing.runner_up > 1:
            return (yield from super().elect(run, votes))
        sizes = {kind: votes.classes.count(kind) for kind in votes.classes if kind >= 0}
        leaders = sorted(sizes, key=sizes.get, reverse=True)[:2]
        firsts = [votes.classes.index(kind) for kind in leaders]
        scores = yield from score(self.verifier, [votes.samples[first].task for first in firsts])
        run.event("checked", classes=leaders, scores=scores)
        winner = scores.index(max(scores))
        return Election(leaders[winner], firsts[winner])


class Longer(Controller):
    def process(self, tasks, **kwargs):
        self.scores = [float(len(task.output_str)) for task in tasks]
        yield []


def voted(*texts):
    replies = iter(texts)
    vote = CheckedVote(NativeGenerationController(), len(texts), allocation=None, verifier=Longer())
    with ScaffoldingLlm(vote, {"generation": ScriptedWorker(lambda task: next(replies))}, seed=0) as llm:
        return llm.generate("Question")


def test_a_close_vote_is_the_verifiers():
    assert voted(r"\boxed{1}", r"\boxed{1}", r"so, thinking twice, \boxed{2}").answer == "2"


def test_a_clear_one_is_not():
    assert voted(r"\boxed{1}", r"\boxed{1}", r"\boxed{1}", r"so, thinking twice, \boxed{2}").answer == "1"
