"""Choose settings by type of question for a queue: thinking budget, samples, stop and weight together.

Each setting that was played is an option of each type. An option has an accuracy, the work of a question (the seconds
of all its samples, each alone on the server), and its path (the seconds that a question takes alone, the samples of a
round in parallel). The queue's formula gives the time in the system; the choice is simulated with recorded lengths.

Reference: Ozbas and Bastopcu, arXiv 2601.10274, which chooses only one chain's budgets; the joint choice, measured
settings and the simulation are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.budgets.files import PlannedBudgets, TaskTypes
from scaffolding_ext.controllers.budgets.queueing.demand import Demand
from scaffolding_ext.controllers.budgets.queueing.grid import MeasuredType, best_of_sums, undominated
from scaffolding_ext.controllers.budgets.queueing.model import Moments
from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.controllers.budgets.queueing.tasks import check_served
from scaffolding_ext.documents import fingerprint
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.logs.samples import Bools, Floats, Ints, Recording
from scaffolding_ext.evaluation.traffic.arrivals import arrival_times
from scaffolding_ext.evaluation.traffic.programs import Program, RequestRound, fixed_program, so_many
from scaffolding_ext.evaluation.traffic.simulator import serve_programs
from scaffolding_ext.evaluation.tune.endings import Cut, Whole
from scaffolding_ext.evaluation.tune.plays import NUM_FOLDS, PLAIN_VOTES, Plays
from scaffolding_ext.evaluation.tune.space import Setting
from scaffolding_ext.evaluation.tune.stack_file import (
    TypedPlan,
    budgets_stack_of,
    model_of_stack,
    stack_of,
    typed_stack_of,
)
from scaffolding_ext.evaluation.tune.table import rows_of
from scaffolding_ext.evaluation.tune.votes import Played, assembled, in_order_of_ends, rounds_of
from scaffolding_ext.stack.config import StackConfig

TOGETHER, BUDGETS, SINGLE = "by type, together", "by type, budgets alone", "one setting for all"
FAMILIES = (SINGLE, BUDGETS, TOGETHER)  # the plainest first
NUM_SIMULATED = 2000
_LEAN = (0.5, 0.7, 1.0, 1.4, 2.0)  # factors on alpha to simulate, because the formula may misjudge waiting
_LEAN_IN_TIME = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # factors on the seconds of the objective
_RATES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)  # factors on the arrival rate for which the plan has settings
_WARM_UP = 0.05  # share of simulated questions not counted, because the queue starts empty


class ServiceLine(NamedTuple):
    """Seconds of a sample that runs alone: `at_once + a_token * tokens`."""

    at_once: float
    a_token: float


@dataclass(frozen=True)
class QueueGoal:
    """Load and objective.

    Attributes:
        queue: Concurrent requests, and their slowdown.
        alpha: Seconds that a right answer is worth; the objective is alpha times accuracy minus mean seconds.
        slo: Seconds within which an answer counts; then the objective is the share of answers that are right in time.
    """

    arrival_rate: float
    queue: Queue
    alpha: float | None = None
    slo: float | None = None

    def __post_init__(self) -> None:
        require.number("arrival_rate", self.arrival_rate, above=0)
        if (self.alpha is None) == (self.slo is None):
            raise ConfigError("or slo must be given, and not both", "alpha")

    @property
    def alphas(self) -> list[float]:
        """Values of a right answer whose best plans are simulated."""
        if self.alpha is not None:
            return [self.alpha * factor for factor in _LEAN]
        assert self.slo is not None
        return [self.slo * factor for factor in _LEAN_IN_TIME]


class QueuedRow(NamedTuple):
    """Result of one way to choose, each question under the setting that the others chose.

    Mean seconds are by formula and simulated with the recorded lengths, infinite if the load cannot be served.
    """

    name: str
    accuracy: float
    formula_seconds: float
    seconds: float
    p90: float
    load: float
    objective: float


def service_lines(recording: Recording, types: Sequence[str], given: ServiceLine | None) -> dict[str, ServiceLine]:
    """Return the line of each type: the given one, or a fit to the recorded seconds.

    Raises:
        ConfigError: None was given, and a type has no recorded seconds, or none that grow with the tokens.
    """
    if "tokens" in recording.missing:
        raise ConfigError("needs tokens, but the log has none: record them", "plan")
    if given is not None:
        return dict.fromkeys(types, given)
    lines = {}
    for name in types:
        own = [each for each in recording.questions if each.task == name and each.seconds is not None]
        tokens = np.concatenate([np.asarray(each.tokens, dtype=float) for each in own] or [np.zeros(0)])
        seconds = np.concatenate([np.asarray(each.seconds, dtype=float) for each in own] or [np.zeros(0)])
        known = np.isfinite(seconds)
        if known.sum() < 2 or tokens[known].std() == 0:
            raise ConfigError(
                f"is needed: the log has no seconds of {name!r} to fit it to; give the seconds of a sample that runs "
                "alone, such as 0.14,0.0129 (without tokens, and for each token)",
                "service",
            )
        slope, start = np.polyfit(tokens[known], seconds[known], 1)
        if start < 0:
            slope, start = float(seconds[known].sum() / tokens[known].sum()), 0.0
        if slope <= 0:
            raise ConfigError(f"is needed: the recorded seconds of {name!r} do not grow with the tokens", "service")
        lines[name] = ServiceLine(float(start), float(slope))
    return lines


class QueuedPlays:
    """Settings that were played, in front of a queue.

    Args:
        plays: All its settings have been played.
        service: Seconds of a sample alone; None fits them to the recorded seconds, by type.
        num_simulated: Questions of a simulation; None: 2,000.

    Raises:
        ConfigError: The recording has no types, too few questions of one, or no tokens.
        UnstableLoadError: Not even the fastest settings can be served.
    """

    def __init__(
        self, plays: Plays, goal: QueueGoal, service: ServiceLine | None = None, num_simulated: int | None = None
    ) -> None:
        self.plays, self.goal = plays, goal
        recorded = plays.recording.questions
        tasks = [each.task for each in recorded]
        self.types = tuple(sorted(set(tasks)))
        self._ids = {
            name: list(dict.fromkeys(each.id for each in recorded if each.task == name)) for name in self.types
        }
        few = [name for name in self.types if len(self._ids[name]) < NUM_FOLDS]
        if "" in self.types or few:
            raise ConfigError(
                f"has {', '.join(map(repr, few)) or 'questions of no type'}; each question needs a type (its task, or "
                f"the kind of a run's dataset), and each type {NUM_FOLDS} questions",
                "paths",
            )
        self.of_question: Ints = np.array([self.types.index(task) for task in tasks])
        self.shares = np.bincount(self.of_question) / len(tasks)
        self.settings = [setting for own in plays.lists.values() for setting in own]
        self.lines = service_lines(plays.recording, self.types, service)
        self._at_once = np.array([self.lines[name].at_once for name in self.types])[self.of_question]
        self._a_token = np.array([self.lines[name].a_token for name in self.types])[self.of_question]
        played = [plays.played[setting] for setting in self.settings]
        self._right = np.stack([each.right for each in played])
        tokens = np.stack([each.costs["decoded"] for each in played])
        self._work = self._at_once * np.stack([each.samples for each in played]) + self._a_token * tokens
        varies = np.stack([each.tokens_squared for each in played]) / np.maximum(tokens, 1e-9) ** 2
        self._square = self._work**2 * np.where(tokens > 0, varies, 1.0)
        critical = np.stack([each.costs["critical"] for each in played])
        self._path = self._at_once * np.stack([each.rounds for each in played]) + self._a_token * critical
        self._costs = self._work, self._square, self._path
        self._num_simulated = num_simulated or NUM_SIMULATED
        self._known: dict[Setting, tuple[list[list[RequestRound]], Bools]] = {}
        every = self._terms(np.arange(len(tasks)))
        quickest = float(sum(term[1].min() for term in every))
        check_served(goal.arrival_rate, quickest, goal.queue.capacity, "even under the quickest settings")

    # ---- the choice

    def _terms(self, questions: Ints) -> list[Floats]:
        """Return for each type its share times accuracy, work, squared work and path; shape [4, num_settings]."""
        own = [questions[self.of_question[questions] == number] for number in range(len(self.types))]
        accuracies = shrunk([self._right[:, index] for index in own], self.shares)
        return [
            share * np.stack([accuracy, *(column[:, index].mean(axis=1) for column in self._costs)])
            for share, accuracy, index in zip(self.shares, accuracies, own, strict=True)
        ]

    def chosen(self, family: str, questions: Ints, alpha: float, arrival_rate: float | None = None) -> Ints:
        """Return the setting of each type chosen by formula on some questions; shape [num_types]."""
        terms, worth = self._terms(questions), worth_of(self.goal.queue, alpha, arrival_rate or self.goal.arrival_rate)
        if family == SINGLE:
            best = int(np.argmax(worth(np.sum(terms, axis=0))))
            return np.full(len(terms), best)
        allowed = np.flatnonzero(self._budgets) if family == BUDGETS else np.arange(len(self.settings))
        kept = [allowed[undominated(term[:, allowed])] for term in terms]
        places, _ = best_of_sums([term[:, own] for term, own in zip(terms, kept, strict=True)], worth)
        return np.array([own[place] for own, place in zip(kept, places, strict=True)])

    @property
    def _budgets(self) -> Bools:
        endings = [each.ending if each.num_samples == 1 else None for each in self.settings]
        return np.array([isinstance(each, Cut) or each == Whole() for each in endings])

    def leaning(self, family: str) -> float:
        """Return the alpha under which the family's plan does best in simulated time."""
        every = np.arange(len(self.of_question))
        plans = {alpha: self.chosen(family, every, alpha) for alpha in self.goal.alphas}
        known: dict[bytes, float] = {}
        for plan in plans.values():
            if plan.tobytes() not in known:
                known[plan.tobytes()] = self._row(family, plan[self.of_question]).objective
        own = self.goal.alpha if self.goal.alpha is not None else self.goal.slo
        assert own is not None
        return max(plans, key=lambda alpha: (known[plans[alpha].tobytes()], -abs(np.log(alpha / own))))

    def judged(self, family: str, alpha: float) -> QueuedRow:
        """Judge a family on each fold of the questions, under the settings that the others chose."""
        return self._row(family, self.judged_settings(family, alpha))

    def judged_settings(self, family: str, alpha: float) -> Ints:
        """Return the setting of each question, chosen on the questions of the other folds."""
        rng = np.random.default_rng([self.plays.seed, 11])
        fold_of: dict[tuple[str, str], int] = {}
        for name, ids in self._ids.items():  # each fold has questions of each type, with all their runs
            drawn = rng.permutation(len(ids)) % NUM_FOLDS
            fold_of |= {(name, each): fold for each, fold in zip(ids, drawn.tolist(), strict=True)}
        folds = np.array([fold_of[each.task, each.id] for each in self.plays.recording.questions])
        settings = np.empty_like(folds)
        for fold in range(NUM_FOLDS):
            plan = self.chosen(family, np.flatnonzero(folds != fold), alpha)
            inside = folds == fold
            settings[inside] = plan[self.of_question[inside]]
        return settings

    def single(self, alpha: float) -> Setting:
        return self.settings[int(self.chosen(SINGLE, np.arange(len(self.of_question)), alpha)[0])]

    def plan(self, family: str, alpha: float, **origin: str | None) -> TypedPlan:
        """Return a family's plan by type on all questions, with its settings at other arrival rates."""
        every = np.arange(len(self.of_question))
        rates = [self.goal.arrival_rate * factor for factor in _RATES]
        plans = [self.chosen(family, every, alpha, rate) for rate in rates]
        if family == TOGETHER:
            plans.append(self.chosen(SINGLE, every, alpha))
        numbers = np.unique(np.concatenate(plans))
        types = []
        for name, share, term in zip(self.types, self.shares.tolist(), self._terms(every), strict=True):
            right, work, square, path = term[:, numbers] / share
            columns = (right, work, np.sqrt(np.maximum(square - work**2, 0.0)), path)
            budgets = tuple(range(len(numbers)))
            types.append(MeasuredType(name, share, budgets, *(tuple(column.tolist()) for column in columns)))
        demand = Demand(tuple(types), self.goal.arrival_rate, alpha, len(numbers) - 1, self.goal.queue)
        made = PlannedBudgets.of(demand, **origin)
        return TypedPlan(made, [self.settings[number] for number in numbers])

    # ---- the simulation

    def _row(self, name: str, settings: Ints) -> QueuedRow:
        rows = np.arange(len(settings))
        columns = [column[settings, rows] for column in (self._right, *self._costs)]
        accuracy, work, square, path = (float(column.mean()) for column in columns)
        queue, rate = self.goal.queue, self.goal.arrival_rate
        formula = float(queue.mean_time(rate, Moments(*map(np.asarray, (work, square, path)))))
        load, mean, p90, in_time = rate * work / queue.capacity, np.inf, np.inf, 0.0
        if load < 1:
            right, seconds = self.simulated([self.settings[number] for number in settings])
            mean, p90 = float(seconds.mean()), float(np.percentile(seconds, 90))
            in_time = float((right & (seconds <= (self.goal.slo or 0.0))).mean())
        objective = in_time if self.goal.alpha is None else self.goal.alpha * accuracy - mean
        return QueuedRow(name, accuracy, formula, mean, p90, load, objective)

    def all_samples(self) -> QueuedRow:
        setting = self.settings.index(self.plays.lists[PLAIN_VOTES][0])
        return self._row("all samples", np.full(len(self.of_question), setting))

    def played(self, settings: Ints) -> Played:
        """Return the questions without a queue, each under its setting."""
        numbers, places = np.unique(settings, return_inverse=True)
        return assembled([self.plays.played[self.settings[number]] for number in numbers], places)

    def simulated(self, settings: Sequence[Setting]) -> tuple[Bools, Floats]:
        """Serve randomly arriving questions, each under its setting: return right ones, and their seconds.

        All calls have the same questions, sample orders and arrivals.
        """
        rng = np.random.default_rng([self.plays.seed, 12])
        arrivals = arrival_times(self.goal.arrival_rate, self._num_simulated, rng)
        questions = rng.integers(len(settings), size=self._num_simulated)
        orders = rng.integers(len(self.plays.votes.orders), size=self._num_simulated)
        programs: list[Program] = []
        right = np.empty(self._num_simulated, dtype=bool)
        for number, (question, order) in enumerate(zip(questions.tolist(), orders.tolist(), strict=True)):
            rounds, correct = self._replayed(settings[question])
            row = order * len(settings) + question
            programs.append(fixed_program(*rounds[row]))
            right[number] = correct[row]
        served = serve_programs(programs, arrivals, self.goal.queue, 1.0)
        first = int(_WARM_UP * self._num_simulated)
        return right[first:], (served.departures - arrivals)[first:]

    def _replayed(self, setting: Setting) -> tuple[list[list[RequestRound]], Bools]:
        """Return the rounds of each order of each question, in seconds, and whether its answer is right."""
        if setting not in self._known:
            votes = self.plays.votes_of(setting)
            number = min(setting.num_samples, self.plays.recording.num_samples)
            seconds = votes.ordered(self._at_once[:, None] + self._a_token[:, None] * votes.samples.tokens)
            found: list[list[RequestRound]] = [[] for _ in seconds]
            drawn = np.zeros(len(seconds), dtype=np.int64)
            if setting.num_first is not None:
                is_enough = so_many(setting.num_first)
                found = [[RequestRound(tuple(row[:number].tolist()), is_enough=is_enough)] for row in seconds]
                right = in_order_of_ends(votes, number).right[:, setting.num_first]
            else:
                for rows, start, more in rounds_of(votes, setting.rule, number):
                    for row, begin, count in zip(rows.tolist(), start.tolist(), more.tolist(), strict=True):
                        found[row].append(RequestRound(tuple(seconds[row, begin : begin + count].tolist())))
                    drawn[rows] += more
                right = votes.right[np.arange(len(drawn)), drawn]
            self._known[setting] = found, right
        return self._known[setting]


def shrunk(right: Sequence[Floats], shares: Floats) -> Floats:
    """Return the accuracy of each type under each setting, shape [num_types, num_settings].

    With few questions of a type, some settings look good by chance. So a type's gain from a setting beyond the gain of
    all types is shrunk by its share of chance (the best linear predictor of a two-way table).

    Args:
        right: Of each type, shape [num_settings, num_questions].

    Reference: Searle, Casella and McCulloch, "Variance Components", 1992, chapter 7.
    """
    accuracies = np.stack([own.mean(axis=1) for own in right])
    num_types = len(right)
    level = accuracies.mean(axis=1, keepdims=True)
    main = shares @ (accuracies - level)
    own_gain = accuracies - level - main
    if num_types == 1:
        return accuracies
    chance = np.stack([(own - own.mean(axis=0)).var(axis=1, ddof=1) / own.shape[1] for own in right])
    varies = max(0.0, float((own_gain**2).mean() * num_types / (num_types - 1) - chance.mean()))
    kept = varies / np.maximum(varies + chance, 1e-12)
    found: Floats = np.clip(level + main + kept * own_gain, 0.0, 1.0)
    return found


def worth_of(queue: Queue, alpha: float, arrival_rate: float) -> Callable[[Floats], Floats]:
    """Return a function of sums of accuracy, work, squared work and path: alpha times accuracy minus mean seconds."""

    def worth(sums: Floats) -> Floats:
        value: Floats = alpha * sums[0] - queue.mean_time(arrival_rate, Moments(*sums[1:]))
        return value

    return worth


class PlannedSettings(NamedTuple):
    """A setting for each type of question, in words; `family` is the best way to choose among `rows`."""

    goal: QueueGoal
    family: str
    settings: dict[str, str]
    alpha: float
    service: dict[str, ServiceLine]
    rows: list[QueuedRow]
    num_questions: int
    stack: StackConfig

    def document(self) -> dict[str, Any]:
        return {
            "chosen": self.family,
            "settings": self.settings,
            "alpha": self.alpha,
            "service": {name: line._asdict() for name, line in self.service.items()},
            "rows": [_finite(row._asdict()) for row in self.rows],
            "num_questions": self.num_questions,
            "stack": self.stack.resolved(),
        }

    def lines(self) -> Iterator[str]:
        is_by_alpha = self.goal.alpha is not None
        head = "objective" if is_by_alpha else "in time %"
        yield f"{'':24}{'right %':>8} {'load':>5} {'formula s':>10} {'seconds':>9} {'p90 s':>8} {head:>10}"
        for row in self.rows:
            yield (
                f"{row.name:24}{100 * row.accuracy:>8.1f} {row.load:>5.2f} {row.formula_seconds:>10.4g} "
                f"{row.seconds:>9.4g} {row.p90:>8.4g} {row.objective * (1 if is_by_alpha else 100):>10.4g}"
            )
        yield ""
        yield f"Chosen: {self.family}."
        yield from (f"  {name}: {setting}" for name, setting in self.settings.items())
        yield (
            f"{self.num_questions:,} questions of {len(self.service)} types, each judged under the choice of the "
            "others; seconds and p90 are simulated with the recorded lengths."
        )


def planned_settings(
    plays: Plays, goal: QueueGoal, service: ServiceLine | None, base: StackConfig | None
) -> PlannedSettings:
    """Choose a setting for each type of question, or one for all if that is as good."""
    queued = QueuedPlays(plays, goal, service)
    leanings = {family: queued.leaning(family) for family in FAMILIES}
    rows = {family: queued.judged(family, alpha) for family, alpha in leanings.items()}
    family = max(FAMILIES, key=lambda name: rows[name].objective)  # the first of equal ones is the plainest
    alpha = leanings[family]
    (row,) = rows_of(plays, {"chosen": queued.played(queued.judged_settings(family, alpha))})
    if family == SINGLE:
        setting = queued.single(alpha)
        stack = stack_of(setting, row, plays, promise=None, cost="queue", base=base)
        named = {"all types": str(setting)}
    else:
        model = plays.recording.model if base is None else model_of_stack(base)
        typed = queued.plan(family, alpha, model=model, fingerprint=plays.recording.fingerprint)
        stack, named = typed_stack_of(typed, row, plays, base=base), typed.named()
    shown = [queued.all_samples(), *rows.values()]
    return PlannedSettings(goal, family, named, alpha, queued.lines, shown, len(plays.recording.questions), stack)


class BudgetsByType(NamedTuple):
    """A budget of one chain for each type of question."""

    plan: PlannedBudgets
    types: TaskTypes
    stack: StackConfig

    def document(self) -> dict[str, Any]:
        found = self.plan.demand.forecast(tuple(self.plan.budgets.values()))
        return {
            "budgets": self.plan.budgets,
            **{name: float(value) for name, value in found._asdict().items()},
            "for_all": {"budget": self.plan.mixture_budget, **self.plan.uniform_forecast},
            "types": self.types.model_dump(mode="json", include={"tasks", "fits"}),
        }

    def lines(self) -> Iterator[str]:
        for each in self.plan.demand.types:
            tokens = self.plan.budgets[each.name]
            given = each.given(tokens)
            yield f"{each.name:20} {tokens} tokens, {float(given.accuracy):.1%} right in {float(given.seconds):.4g} s"
        for name, forecast in (
            ("plan", self.plan.forecast),
            (f"{self.plan.mixture_budget} for all", self.plan.uniform_forecast),
        ):
            time = forecast["system_time"]
            yield (
                f"{name:12} objective {forecast['objective'] or float('-inf'):.4f}, {forecast['accuracy']:.1%} right, "
                f"{float('inf') if time is None else time:.4g} s at load {forecast['load']:.3f}"
            )
        for fit in self.types.fits:
            own: Any = fit
            fitted = ", ".join(f"{name} {_interval(getattr(own, name))}" for name in ("A", "b", "D", "t0", "c"))
            yield f"{fit.kind}: {fitted}; misses at most {100 * own.largest_miss:.1f} points"


def planned_budgets(
    types: TaskTypes, goal: QueueGoal, max_tokens: int, measured: bool, file: Path | None, base: StackConfig | None
) -> BudgetsByType:
    """Choose the best budgets of types under a load.

    With `measured` they are among the budgets of the runs. A `file` is the origin of the types, a `base` the stack
    whose workers are kept.

    Reference: arXiv 2601.10274, Table I, if curves and a single server are given.
    """
    assert goal.alpha is not None
    own = types.measured(max_tokens) if measured else types.tasks
    demand = Demand(tuple(own), goal.arrival_rate, goal.alpha, max_tokens, goal.queue)
    origin = {} if file is None else {"data": file.name, "fingerprint": fingerprint(file)}
    plan = PlannedBudgets.of(demand, model=types.model, **origin)
    return BudgetsByType(plan, types, budgets_stack_of(plan, base))


def _interval(estimate: Mapping[str, float]) -> str:
    return f"{estimate['value']:.3g} ({estimate['low']:.3g} to {estimate['high']:.3g})"


def _finite(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if isinstance(each, float) and not np.isfinite(each) else each for name, each in figures.items()}
