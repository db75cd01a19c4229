"""Ways to give budgets to questions, served on one embedded engine: all of them meet the same arrivals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks._lib.budget_types import ANSWER_TOKENS, DRAWN, Seconds, questions
from benchmarks._lib.served_queue import Served, hosted, poisson, serve
from scaffolding_ext import BudgetForcingController, HuggingFaceWorker, Prompting, QueueAwareBudgetController
from scaffolding_ext.controllers.budgets.files import PlannedBudgets
from scaffolding_ext.controllers.budgets.queueing.demand import Demand
from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats
from scaffolding_ext.evaluation.calibrate.budget_sweep import Swept
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.tinylm.grammar import KINDS

PLAN, BY_CHANCE = "plan", "plan, types by chance"
SINGLE = (32, 64, 96, 128, 192)  # budgets of all questions, each beside the plan
CROWD = 12  # questions a place that come at once, to tell how fast the full engine is
SERVED_SEED, FULL_SEED = 1000, 2000  # of questions, beside those of the sweep
Budgets = Sequence[int]


def single(budget: int) -> str:
    """The name of one budget for all."""
    return f"{budget} tokens for all"


ARMS = (PLAN, BY_CHANCE, *map(single, SINGLE))


class Load(NamedTuple):
    """What arrives.

    Attributes:
        share: Of the capacity that `middle` tokens for all would use.
        middle: Tokens.
        worth: Of a right answer, in services of `middle` tokens.
    """

    share: float
    middle: int
    worth: float


class Server:
    """The engine under a load, with budgets by type.

    Args:
        worker: The engine.
        prompting: Of its model.
        places: Requests at once.
        seed: Of questions and answers.
    """

    def __init__(self, worker: HuggingFaceWorker, prompting: Prompting, places: int, seed: int) -> None:
        self._worker, self._prompting, self._places, self._seed = worker, prompting, places, seed

    def serve(self, demand: Demand, budgets: Budgets, samples: Sequence[Example], arrivals: Floats) -> Served:
        """Serve arrivals, a budget for each of the demand's types."""
        plan = PlannedBudgets(demand=demand, budgets=dict(zip(demand.names, budgets, strict=True)), mixture_budget=0)
        forcing = BudgetForcingController(max(budgets), max_answer_tokens=ANSWER_TOKENS, sampling_params=DRAWN)
        controller = QueueAwareBudgetController(plan, generation_controller=forcing)
        with hosted(controller, self._worker, self._prompting, self._places, self._seed) as llm:
            return serve(llm, samples, arrivals)

    def demand(self, swept: Swept, took: Seconds, load: Load) -> Demand:
        """The types at a load, before the queue that is as fast as this engine is now."""
        alone = Demand(took.of(swept), 1.0, 1.0, max(SINGLE))
        service = float(alone.forecast([load.middle] * len(alone.types)).load)
        queue = Queue() if self._places == 1 else self._queue(alone, load.middle)
        return Demand(alone.types, load.share * queue.capacity / service, load.worth * service, max(SINGLE), queue)

    def arms(self, demand: Demand, seconds: float) -> dict[str, Any]:
        """Serve every arm in an order by chance; the questions, and their arrivals, are the same.

        Returns:
            As JSON holds it: the demand's numbers, the plan, and what each arm was forecast to do and did.
        """
        rng = np.random.default_rng([self._seed, round(1e6 * demand.arrival_rate)])
        arrivals = poisson(demand.arrival_rate, seconds, rng)
        drawn = questions(-(-len(arrivals) // len(KINDS)), self._seed + SERVED_SEED)
        samples = [drawn[n] for n in rng.permutation(len(drawn))[: len(arrivals)]]
        kinds = rng.permutation([sample.kind for sample in samples]).tolist()
        mistaken = [sample._replace(kind=kind) for sample, kind in zip(samples, kinds, strict=True)]
        plan = demand.best()
        budgets: Mapping[str, Budgets] = {
            **{single(budget): [budget] * len(demand.types) for budget in SINGLE},
            **dict.fromkeys((PLAN, BY_CHANCE), plan),
        }
        arms = {}
        for arm in rng.permutation(ARMS).tolist():
            served = self.serve(demand, budgets[arm], mistaken if arm == BY_CHANCE else samples, arrivals)
            forecast = demand.forecast(budgets[arm])
            arms[arm] = {
                "correct": served.correct.tolist(),
                "seconds": served.seconds.tolist(),
                "forecast": [float(forecast.accuracy), float(forecast.system_time)],
            }
        told = {"arrival_rate": demand.arrival_rate, "alpha": demand.alpha, "capacity": demand.queue.capacity}
        return {**told, "plan": dict(zip(demand.names, map(int, plan), strict=True)), "arms": arms}

    def _queue(self, demand: Demand, budget: int) -> Queue:
        """The batching queue whose full engine is as fast as this one: the middle half of a crowd tells."""
        samples = questions(-(-CROWD * self._places // len(KINDS)), self._seed + FULL_SEED)
        budgets = [budget] * len(demand.types)
        ended = np.sort(self.serve(demand, budgets, samples, np.zeros(len(samples))).seconds)
        first, last = len(ended) // 4, 3 * len(ended) // 4
        rate = (last - first) / (ended[last] - ended[first])
        alone = demand.forecast(budgets)  # of one server, whose load tells its mean service
        return Queue.of_capacity(self._places, rate * float(alone.load) / demand.arrival_rate)
