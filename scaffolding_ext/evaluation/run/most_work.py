"""Upper bounds of a request's calls and decoded tokens, from the arguments of its controllers; no model is loaded."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from scaffolding_ext.controllers.base import attributes_of
from scaffolding_ext.protocol import Controller

_MOST_LOOKS = 1_000_000


class MostWork(NamedTuple):
    """The most that one request asks of the workers; retries of a worker are not counted.

    Attributes:
        calls: Tasks that it sends; None if nothing bounds them.
        tokens: Tokens that it decodes; None if nothing bounds them.
    """

    calls: int | None
    tokens: int | None

    def plus(self, calls: int | None, tokens: int | None = 0) -> MostWork:
        return MostWork(_sum(self.calls, calls), _sum(self.tokens, tokens))

    def times(self, number: int) -> MostWork:
        return MostWork(*(None if each is None else number * each for each in self))


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def most_work(controller: Controller) -> MostWork:
    """Bound a request of a controller."""
    work = _of(controller)
    if attributes_of(controller).loops is None or work.calls is None:
        return work
    from scaffolding_ext.controllers.basic.native_generation import FORCED_TOKENS

    return work.plus(work.calls, FORCED_TOKENS * work.calls)


def _of(controller: Controller) -> MostWork:
    """Bound a request by the nearest class in `_BOUNDS`; a name loads no other algorithm."""
    names = (kind.__name__ for kind in type(controller).__mro__)
    bound = next((_BOUNDS[name] for name in names if name in _BOUNDS), None)
    return MostWork(None, None) if bound is None else bound(controller)


def _of_generation(controller: Any) -> MostWork:
    return MostWork(1, controller.sampling_params.get("max_tokens"))


def _of_probed_chain(controller: Any) -> MostWork:
    positions = itertools.accumulate(controller.schedule.gaps())
    before_end = itertools.takewhile(lambda position: position < controller.max_tokens, positions)
    num_looks = sum(1 for _ in itertools.islice(before_end, _MOST_LOOKS))
    needs, answer_tokens = controller.rule.needs, controller.probe.max_tokens
    asked = MostWork(int(needs.answer), answer_tokens * needs.answer)
    pieces = asked.times(num_looks).plus(num_looks + 1, controller.max_tokens)  # a chunk a look, without streams
    return pieces.plus(1, answer_tokens)


def _of_forcing(controller: Any) -> MostWork:
    tokens = controller.thinking_tokens + 2 * controller.max_answer_tokens  # its own, and one that is asked for
    return MostWork(None if controller.exact or controller.generation_controller else 3, tokens)


def _of_samples(controller: Any) -> MostWork:
    one = _of(controller.generation_controller)
    if asked := getattr(getattr(controller, "weight", None), "max_tokens", None):  # the weight asks for the answer
        one = one.plus(1, asked)
    if controller.reward_controller is not None:
        one = one.plus(1)
    return one.times(controller.default_sample_num)


def _of_traces(controller: Any) -> MostWork:
    trace = controller.trace_controller
    pieces = -(-trace.max_tokens // trace.check_every)
    return MostWork(pieces + 1, trace.max_tokens + trace.answer_tokens).times(controller.default_sample_num)


def _of_draft_and_target(controller: Any) -> MostWork:
    setting, turns = controller.setting, controller.max_turns  # each is drafted, scored and written anew by the target
    tokens = turns * (setting.draft_tokens + setting.target_tokens) + controller.max_tokens
    chain = MostWork(3 * turns, tokens).plus(1, controller.answer_sampling_params["max_tokens"])
    return chain.times(controller.num_chains)


def _of_search(controller: Any) -> MostWork:
    from scaffolding_ext.controllers.tree.closing import ANSWER_LEN
    from scaffolding_ext.controllers.tree.expand import WorkerExpander
    from scaffolding_ext.controllers.tree.score import VerdictScorer

    nodes, judged = controller.budget.nodes, isinstance(controller.scorer, VerdictScorer)
    if (
        nodes is None
        or type(controller.expander) is not WorkerExpander
        or (controller.scorer.needs.tags and not judged)
    ):
        return MostWork(None, None)
    return MostWork(None, nodes * (controller.max_tokens + ANSWER_LEN + judged))


def _of_settings(controller: Any) -> MostWork:
    columns = zip(*map(_of, controller.settings), strict=True)
    return MostWork(*(None if None in column else max(column) for column in columns))


_BOUNDS: Mapping[str, Callable[[Any], MostWork]] = {
    "NativeGenerationController": _of_generation,
    "DynasorCoTController": _of_probed_chain,
    "BudgetForcingController": _of_forcing,
    "MajorityVoteController": _of_samples,
    "BestOfNController": _of_samples,
    "DeepConfController": _of_traces,
    "ConformalDraftTargetController": _of_draft_and_target,
    "SearchController": _of_search,
    "QueueAwareBudgetController": lambda controller: _of(controller.generation_controller),
    "QueueAwareController": _of_settings,
}
