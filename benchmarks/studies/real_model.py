"""What the controllers are worth on a real model, on questions that it can do in part.

    python -m benchmarks.studies.real_model --model FOLDER --store STORE --plot_path frontier.png --json

*Tasks*: which easy tasks the model is right on in 20 to 80 %, with worked examples before the question and without.
*Chains*: on some of these tasks chains are recorded with a look every few tokens, greedily and as the model's makers
recommend to sample; every stopping rule is played on them, against whole chains, the fixed cut that decodes as many
tokens, and random exits. *Votes*: eight samples a question at a higher temperature, voted on by each rule and stopped
early, against one greedy chain and smaller votes.

The worked examples think, then check what they thought, and then answer in a box; the model does as they do.
"""

from __future__ import annotations

import functools
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from benchmarks._lib.chain_replay import Outcome, cut_at, fixed_cuts, play
from benchmarks._lib.command import benchmark, plotted, size, stored, track
from benchmarks._lib.drawing import Figures, below, beside, coloured, drawing, of, point, points
from benchmarks._lib.easy_questions import ASK, GYM_TASKS, TASKS, draw_exam
from benchmarks._lib.lab import Lab
from benchmarks._lib.provenance import described
from benchmarks._lib.recorded_chains import RecordedChain, recording_stack
from benchmarks._lib.replayed import Floats, cut_of_as_many, recorded
from benchmarks._lib.report import Report
from benchmarks._lib.vote_replays import play as play_vote
from benchmarks._lib.vote_replays import shuffled
from scaffolding_ext import MajorityVoteController, NativeGenerationController, load_config
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.chain.looking import ProbeSchedule
from scaffolding_ext.controllers.chain.probe import AnswerProbe
from scaffolding_ext.controllers.chain.stopping.agreement import Consecutive
from scaffolding_ext.controllers.chain.stopping.base import StoppingRule
from scaffolding_ext.controllers.chain.stopping.confidence import AnswerConfidence
from scaffolding_ext.controllers.chain.stopping.entropy import EntropyAfterThinking
from scaffolding_ext.controllers.chain.stopping.several import AllOf
from scaffolding_ext.controllers.vote.allocation.adaptive_consistency import BetaConsistency
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule
from scaffolding_ext.controllers.vote.allocation.baselines import Even
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.controllers.vote.allocation.leader_change import Curtailment, LeaderChange
from scaffolding_ext.controllers.vote.allocation.threshold import ThresholdEvery
from scaffolding_ext.controllers.vote.trace_confidence import filtered_weights
from scaffolding_ext.controllers.vote.voting import elect
from scaffolding_ext.errors import MissingDependencyError
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.evaluation.run.scoring import score
from scaffolding_ext.prompts.prompting import FAMILIES, PromptFamily, Prompting
from scaffolding_ext.stats.intervals import Estimate, bootstrap_quotients
from scaffolding_ext.stats.power import required_num_questions
from scaffolding_ext.stats.resampling import group_by_question

STACK = "configs:models/smollm2"
FAMILY = "worked_examples"
FAMILIES[FAMILY] = PromptFamily(
    think_close="</think>",  # which no example writes: thinking out loud is the answer's beginning
    probe=ASK,
    close=ASK,
    close_closed=ASK,
    answer_end="}.",
    thinks=False,
)
STUDIED = ("sum of 3 digits, checked", "story, 1 step, checked", "words in a list, 2 to 6, checked")
EASY = (*TASKS, *GYM_TASKS)
SPACING = 4  # tokens between recorded looks
GAPS = (4, 8)
MAX_TOKENS, ANSWER_TOKENS = 128, 8
AT_ONCE = 64
NUM_LOTS = 20  # random exits of each rule
NUM_ORDERS = 40  # of each question's samples
NUM_SAMPLES = 8
VOTES = (1, 2, 4, 8)
HOT = 0.7
BY_PROBABILITY, BEST = "weighed by probability", "best by log-probability"
VOTE_RULES: Mapping[str, AllocationRule] = {
    "certaindex 0.7 every 2": ThresholdEvery(threshold=0.7, step=2),
    "certaindex 0.7 every 4": ThresholdEvery(threshold=0.7, step=4),
    "curtailment": Curtailment(leap=1.0),
    "Adaptive-Consistency 0.95": BetaConsistency(),
    "leader change (default)": LeaderChange(miss=0.1, leap=2.0),
}


class Way(NamedTuple):
    """How chains are drawn."""

    temperature: float
    top_p: float
    num_epochs: int


WAYS = {"greedy": Way(0.0, 1.0, 1), "recommended": Way(0.2, 0.9, 2)}
POOLED = "all chains"
DEFAULT, DYNASOR, PLAIN_TWO = "all of 2 equal and confidence 0.9", "consecutive 3", "consecutive 2"
RULES: Mapping[str, StoppingRule] = {
    PLAIN_TWO: Consecutive(2),
    DYNASOR: Consecutive(3),
    "confidence 0.9": AnswerConfidence(0.9),
    "confidence 0.95": AnswerConfidence(0.95),
    DEFAULT: AllOf([Consecutive(2), AnswerConfidence(0.9)]),
    "entropy": EntropyAfterThinking(),
}
MAIN_GAP = 8
MOST_LOST = -2.0  # points that may be lost where two are held to be equally good


# ---- tasks


def answers_to(
    lab: Lab, samples: Sequence[Example], temperature: float, max_tokens: int = MAX_TOKENS
) -> list[dict[str, Any]]:
    """One chain on each question, asked for its answer where it gives none: whether it is right, and its tokens."""
    controller = DynasorCoTController(
        max_tokens,
        chunk_size=2 * max_tokens,  # it is never probed
        family=FAMILY,
        probe=AnswerProbe(ANSWER_TOKENS),
        sampling_params={"temperature": temperature},
    )
    results = lab.answers(controller, [sample.prompt for sample in samples], at_once=AT_ONCE)
    return [
        {"right": score(result.answer, sample.target).correct, "decoded": result.program.ledger.total.decoded}
        for sample, result in zip(samples, results, strict=True)
    ]


def add_tasks(report: Report, lab: Lab, plain: Prompting, tasks: Iterable[str], num_questions: int) -> None:
    """How many of a few questions of each task are right: at once, thinking, and without examples."""
    left_out = []
    for task in track(list(tasks), "tasks"):
        try:
            exam = draw_exam(task, num_questions, report.seed)
        except MissingDependencyError:
            left_out.append(task)
            continue
        ways = {
            "no examples, greedy": (False, 0.0, MAX_TOKENS),
            "at once, greedy": (True, 0.0, 1),
            "greedy": (True, 0.0, MAX_TOKENS),
            "temperature 0.7": (True, 0.7, MAX_TOKENS),
            "temperature 1.0": (True, 1.0, MAX_TOKENS),
        }
        for way, (with_examples, temperature, max_tokens) in ways.items():
            samples = exam.samples(plain, with_examples=with_examples)
            ask = functools.partial(answers_to, lab, samples, temperature, max_tokens)
            rows = lab.stored(f"task_{report.seed}_{num_questions}_{task}_{way}".replace(" ", "_"), ask)
            report.share(f"{task}, {way}: right", sum(row["right"] for row in rows), len(rows))
            report.figure(f"{task}, {way}: decoded", float(np.mean([row["decoded"] for row in rows])))
    if left_out:
        report.setting["left out, reasoning-gym is not installed"] = left_out


# ---- chains


def record_chains(
    folder: Path, model: str, weight_dtype: str | None, samples: Sequence[Example], way: Way, seed: int
) -> list[RecordedChain]:
    """Chains with a look every few tokens; from the folder where they were recorded before."""
    overrides = [
        f"workers.generation.args.model={model}",
        f"workers.generation.args.weight_dtype={weight_dtype or 'null'}",
        f"seed={seed}",
        f"sampling.temperature={way.temperature}",
        f"sampling.top_p={way.top_p}",
        f"controller.args.max_tokens={MAX_TOKENS}",
        f"controller.args.family={FAMILY}",
        f"controller.args.probe={{type: AnswerProbe, args: {{max_tokens: {ANSWER_TOKENS}, "
        "sampling_params: {temperature: 0}}}",
        f"prompt={{chat_template: false, family: {FAMILY}}}",
        f"evaluation.epochs={way.num_epochs}",
        f"max_parallel_requests={AT_ONCE}",
    ]
    config = recording_stack(load_config(STACK, overrides).for_run(), SPACING)
    return sorted(recorded(folder, config, samples), key=lambda chain: chain.question)


class Judged(NamedTuple):
    """A rule on the chains of one task, beside fixed cuts and random exits.

    Attributes:
        outcome: What became of the chains.
        cut_right: How often the cut of as many decoded tokens is right, probes counted.
        cut_computed: What that cut computes.
        as_long_right: How often the cut is right that leaves chains as long, as if probes cost nothing.
        random: How often the rule's own exits are right, dealt out to the chains by lot.
    """

    outcome: Outcome
    cut_right: Floats
    cut_computed: Floats
    as_long_right: Floats
    random: Floats


def cuts_of(chains: Sequence[RecordedChain]) -> list[Outcome]:
    """Every fixed cut that decodes less than whole chains, and last the whole chains."""
    *cuts, whole = fixed_cuts(chains)
    return [cut for cut in cuts if cut.costs["decoded"].mean() < whole.costs["decoded"].mean()] + [whole]


def judge(chains: Sequence[RecordedChain], rule: StoppingRule, gap: int, rng: np.random.Generator) -> Judged:
    """Play a rule on chains of one task; the cut is this task's own."""
    outcome, cuts = play(chains, rule, ProbeSchedule(gap)), cuts_of(chains)
    level = cut_of_as_many(outcome, cuts)
    as_long = cut_of_as_many(by_length(outcome), list(map(by_length, cuts)))
    lots = [cut_at(chains, rng.permutation(outcome.exits).tolist()).right for _ in range(NUM_LOTS)]
    return Judged(outcome, level.right, level.cost("kept"), as_long.right, np.mean(lots, axis=0))


def by_length(outcome: Outcome) -> Outcome:
    """An outcome that costs what its chains are long."""
    return outcome._replace(costs={"decoded": outcome.positions})


class Pool(NamedTuple):
    """Chains, by task, in one order for all rules."""

    by_task: Sequence[Sequence[RecordedChain]]

    @property
    def questions(self) -> list[str]:
        """The question of each chain."""
        return [chain.question for chains in self.by_task for chain in chains]

    def judged(self, rule: StoppingRule, gap: int, rng: np.random.Generator) -> Judged:
        """A rule on all of them, each task held against cuts of its own."""
        parts = [judge(chains, rule, gap, rng) for chains in self.by_task]
        return Judged(
            joined([part.outcome for part in parts]),
            *(np.concatenate([getattr(part, name) for part in parts]) for name in Judged._fields[1:]),
        )

    def whole(self) -> Outcome:
        """Whole chains."""
        return joined([cut_at(chains, [-1] * len(chains)) for chains in self.by_task])

    def at_once(self) -> Outcome:
        """The first recorded look: what is known after a few tokens."""
        return joined([fixed_cuts(chains)[0] for chains in self.by_task])


def joined(outcomes: Sequence[Outcome]) -> Outcome:
    """Outcomes of several lots of chains as one."""
    arrays = [np.concatenate([getattr(each, name) for each in outcomes]) for name in Outcome._fields[:-1]]
    costs = {cost: np.concatenate([each.costs[cost] for each in outcomes]) for cost in outcomes[0].costs}
    return Outcome(*arrays, costs)


def add_rules(report: Report, name: str, pool: Pool, gaps: Sequence[int] = GAPS) -> dict[tuple[str, int], Judged]:
    """What each rule is worth on these chains, and the default beside Dynasor's."""
    questions, whole = pool.questions, pool.whole()
    report.difference(f"{name}, whole chains: accuracy", whole.right, questions=questions)
    report.difference(f"{name}, whole chains: decoded", whole.costs["decoded"], questions=questions)
    report.difference(f"{name}, whole chains: computed", whole.costs["kept"], questions=questions)
    report.difference(f"{name}, cut after {SPACING} tokens: accuracy", pool.at_once().right, questions=questions)
    found: dict[tuple[str, int], Judged] = {}
    for gap in gaps:
        for rule in RULES:
            each = found[rule, gap] = pool.judged(RULES[rule], gap, report.rng)
            add_rule(report, f"{name}, {rule}, every {gap}", each, whole, questions)
        ours = found[DEFAULT, gap]
        for other in (PLAIN_TWO, DYNASOR):
            theirs, both = found[other, gap], f"{name}, {DEFAULT} over {other}, every {gap}"
            report.difference(
                f"{both}: points", ours.outcome.right, theirs.outcome.right, questions=questions, scale=100
            )
            report.ratio(
                f"{both}: decoded", ours.outcome.costs["decoded"], theirs.outcome.costs["decoded"], questions=questions
            )
            report.difference(
                f"{both}: points over a cut, more than its",
                ours.outcome.right - ours.cut_right,
                theirs.outcome.right - theirs.cut_right,
                questions=questions,
                scale=100,
            )
    return found


def add_rule(report: Report, name: str, judged: Judged, whole: Outcome, questions: Sequence[str]) -> None:
    """One rule's figures."""
    outcome = judged.outcome
    report.difference(f"{name}: accuracy", outcome.right, questions=questions)
    for what, others in (
        ("a fixed cut", judged.cut_right),
        ("a cut of as long chains", judged.as_long_right),
        ("a random exit", judged.random),
        ("whole", whole.right),
    ):
        report.difference(f"{name}: points over {what}", outcome.right, others, questions=questions, scale=100)
    report.saved(f"{name}: decoded saved", outcome.costs["decoded"], whole.costs["decoded"], questions=questions)
    report.saved(f"{name}: computed saved", outcome.costs["kept"], whole.costs["kept"], questions=questions)
    report.ratio(f"{name}: computed to a cut's", outcome.costs["kept"], judged.cut_computed, questions=questions)
    report.difference(f"{name}: fired", outcome.exits >= 0, questions=questions)
    report.difference(f"{name}: decoded", outcome.costs["decoded"], questions=questions)


def add_bars(report: Report, found: Mapping[tuple[str, int], Judged], pool: Pool) -> None:
    """Whether the default is at least as good as a cut and as Dynasor's rule, and how many questions would show it."""
    for name in (
        f"{POOLED}, {DEFAULT}, every {MAIN_GAP}: points over a fixed cut",
        f"{POOLED}, {DEFAULT} over {DYNASOR}, every {MAIN_GAP}: points over a cut, more than its",
    ):
        low = report.figures[name]["low"]
        report.bar(f"{name}, lower end", np.nan if low is None else low, ">=", MOST_LOST)
    ours = found[DEFAULT, MAIN_GAP]
    differences = ours.outcome.right - ours.cut_right
    if np.ptp(differences) > 0:
        apart = differences * np.sign(differences.mean())
        for what, values, bar in (
            ("to tell it from a cut", apart, 0.0),
            ("less 2 points", differences, MOST_LOST / 100),
        ):
            needed = required_num_questions(values, pool.questions, bar=bar, max_num_questions=100_000, rng=report.rng)
            if needed is not None:
                report.figure(f"{DEFAULT}: questions for power 0.9, {what}", needed)


# ---- votes


def draw_votes(lab: Lab, samples: Sequence[Example]) -> list[dict[str, Any]]:
    """A vote of all samples on each question: answers, weights, tokens, and which answers are right."""
    chain = NativeGenerationController(sampling_params={"temperature": HOT, "max_tokens": MAX_TOKENS})
    controller = MajorityVoteController(chain, NUM_SAMPLES, allocation=None, weight="mean_logprob")
    results = lab.answers(controller, [sample.prompt for sample in samples], at_once=AT_ONCE // NUM_SAMPLES)
    rows = []
    for sample, result in zip(samples, results, strict=True):
        vote = next(event for event in result.program.trace if event["event"] == "vote")
        total = result.program.ledger.total
        rows.append(
            {
                "id": sample.id,
                "classes": vote["classes"],
                "correct": [score(answer, sample.target).correct for answer in vote["answers"]],
                "lengths": vote["num_decoded"],
                "weights": vote["weights"],
                "computed": total.decoded + total.prefilled,
            }
        )
    return rows


def labelled(row: Mapping[str, Any]) -> LabelledVote:
    """A vote as rules replay it; the log-probability is the mean of a sample's tokens."""
    logprobs = [float(np.log(max(weight, 1e-12))) for weight in row["weights"]]
    return LabelledVote(row["id"], row["classes"], row["correct"], row["lengths"], logprobs=logprobs)


def is_right(vote: LabelledVote, num: int, how: str) -> bool:
    """Whether the first samples elect a right answer."""
    classes, weights = vote.classes[:num], [float(np.exp(value)) for value in (vote.logprobs or ())[:num]]
    if how == BEST:
        return bool(vote.correct[int(np.argmax(weights))])
    ballots = {
        "majority": None,
        BY_PROBABILITY: weights,
        "likeliest half": filtered_weights(classes, weights, 0.5),
    }
    winner, first = elect(classes, ballots[how])
    return winner != -1 and bool(vote.correct[first])


def add_votes(report: Report, rows: Sequence[Mapping[str, Any]], greedy: Floats) -> None:
    """What votes are worth beside one greedy chain, and what stops save.

    Args:
        report: Gets the figures.
        rows: The votes.
        greedy: Whether one greedy chain is right on each of these questions.
    """
    votes = [labelled(row) for row in rows]
    orders = shuffled(votes, NUM_ORDERS, report.rng)

    def mean_right(num: int, how: str) -> Floats:
        return np.array([np.mean([is_right(each, num, how) for each in question]) for question in orders])

    for num in VOTES:
        tokens = np.array([np.mean([sum(each.lengths[:num]) for each in question]) for question in orders])
        report.difference(f"vote of {num}: decoded", tokens)
        plain = mean_right(num, "majority")
        for how in ("majority", BY_PROBABILITY, "likeliest half", BEST):
            right = mean_right(num, how)
            name = f"vote of {num}, {how}"
            report.difference(f"{name}: accuracy", right)
            report.difference(f"{name}: points over one greedy chain", right, greedy, scale=100)
            if how != "majority":
                report.difference(f"{name}: points over the majority", right, plain, scale=100)
    report.difference(f"vote of {NUM_SAMPLES}: computed", [row["computed"] for row in rows])
    sizes = [play_vote(Even(num_samples=num), orders) for num in range(1, NUM_SAMPLES + 1)]
    for name, rule in VOTE_RULES.items():
        ran, full = play_vote(rule, orders), sizes[-1]
        report.difference(f"{name}: points against all {NUM_SAMPLES}", ran.correct, full.correct, scale=100)
        report.difference(
            f"{name}: points over a smaller vote of as many tokens",
            ran.correct,
            smaller_vote(sizes, float(ran.tokens.mean())),
            scale=100,
        )
        report.ratio(f"{name}: decoded, share of all", ran.tokens, full.tokens)
        report.figure(f"{name}: samples", float(ran.num_samples.mean()))
        report.figure(f"{name}: rounds", float(ran.num_rounds.mean()))
        report.figure(f"{name}: stopped early", float(ran.stopped.mean()))


def smaller_vote(sizes: Sequence[Any], tokens: float) -> Floats:
    """How often a plain vote that decodes as many tokens is right: two neighbouring sizes, drawn by lot."""
    means = [float(each.tokens.mean()) for each in sizes]
    upper = int(np.clip(np.searchsorted(means, tokens), 1, len(sizes) - 1))
    share = float(np.clip((tokens - means[upper - 1]) / (means[upper] - means[upper - 1]), 0, 1))
    mixed: Floats = (1 - share) * sizes[upper - 1].correct + share * sizes[upper].correct
    return mixed


# ---- picture


def curve_of(pool: Pool) -> list[tuple[Estimate, Estimate]]:
    """Decoded tokens, and accuracy in per cent, of chains that are cut ever later; whole questions are resampled."""
    cuts = [cuts_of(chains) for chains in pool.by_task]
    curve = [joined([each[min(index, len(each) - 1)] for each in cuts]) for index in range(max(map(len, cuts)))]
    groups = group_by_question(pool.questions, len(pool.questions))
    columns = [each.costs["decoded"] for each in curve] + [100 * each.right for each in curve]
    totals = np.column_stack([groups.totals(column) for column in columns])
    sizes = groups.totals(np.ones(len(pool.questions)))
    found = bootstrap_quotients(totals, np.broadcast_to(sizes[:, None], totals.shape), rng=np.random.default_rng(0))
    return list(zip(found[: len(curve)], found[len(curve) :], strict=True))


def plot(figures: Figures, curves: Mapping[str, list[tuple[Estimate, Estimate]]], name: str, path: Path) -> None:
    """Draw accuracy against decoded tokens: chains that are cut and stopped, and votes.

    Args:
        figures: Of the report.
        curves: Fixed cuts by way, as `curve_of` gives them.
        name: Of the model.
        path: Where to.
    """
    with drawing(path, 1, 2, figsize=(12, 5), sharey=True) as (figure, (left, right)):
        for number, (way, cuts) in enumerate(curves.items()):
            tokens, colour = [each.value for each, _ in cuts], coloured(number)["color"]
            left.plot(tokens, [each.value for _, each in cuts], color=colour, label=f"fixed cuts, {way} chains")
            ends = zip(*((each.low, each.high) for _, each in cuts), strict=True)
            left.fill_between(tokens, *ends, color=colour, alpha=0.15, lw=0)
        for number, rule in enumerate(RULES, len(curves)):
            names = [f"recommended, {rule}, every {MAIN_GAP}: {what}" for what in ("decoded", "accuracy")]
            decoded, share = of(figures, names[0]), of(figures, names[1], 100)
            if decoded is not None and share is not None:
                point(left, decoded, share, rule, is_default=rule == DEFAULT, **coloured(number))
        left.set(xlabel="decoded tokens a question, probes counted", ylabel="accuracy, %", ylim=(0, 100))
        left.set_title("A rule is worth its probes where it lies\nabove the band of fixed cuts")
        for how in ("majority", BY_PROBABILITY, BEST):
            pairs = [
                (of(figures, f"vote of {num}: decoded"), of(figures, f"vote of {num}, {how}: accuracy", 100))
                for num in VOTES
            ]
            known = [(decoded.value, share) for decoded, share in pairs if decoded is not None and share is not None]
            points(right, [decoded for decoded, _ in known], [share for _, share in known], how)
        one = of(figures, "greedy, whole chains: decoded"), of(figures, "greedy, whole chains: accuracy", 100)
        if one[0] is not None and one[1] is not None:
            point(right, one[0], one[1], "one chain, greedy", color="black", zorder=4)
        right.set(xlabel="decoded tokens a question")
        right.set_title("A vote is worth its tokens where it lies\nabove one greedy chain")
        beside(right)
        below(figure, left, 3)
        figure.suptitle(f"{name}: a look every {MAIN_GAP} tokens; votes of {', '.join(map(str, VOTES))} at {HOT}")


@benchmark("studies.real_model --model FOLDER --store FOLDER --plot_path frontier.png")
@click.option("--model", default="tinylm/draft", show_default=True, help="Folder or name of the model.")
@click.option("--weight_dtype", help="As HuggingFaceWorker takes it: bfloat16 is faster on a CPU that has it.")
@click.option("--task", "tasks", multiple=True, type=click.Choice(list(TASKS)), help="Of the chains; repeatable.")
@size("--num_questions", 100, quick=3, help="Questions of each task.", least=2)
@size("--num_voted", 34, quick=2, help="Of them those that are voted on.", least=2)
@click.option("--try", "tried", multiple=True, type=click.Choice(EASY), help="Look at this task first; repeatable.")
@size("--num_tried", 30, quick=0, help="Questions of each task that is looked at first; 0 leaves that out.", least=0)
@stored
@plotted
def main(
    report: Report,
    model: str,
    weight_dtype: str | None,
    tasks: tuple[str, ...],
    num_questions: int,
    num_voted: int,
    tried: tuple[str, ...],
    num_tried: int,
    store: Path | None,
    plot_path: Path | None,
) -> None:
    """Stopping rules and votes of a real model, on easy questions that it is right on in part."""
    report.setting["model"] = Path(model).name
    weights = Path(model) / "model.safetensors"
    if weights.exists():
        report.setting["weights"] = described(weights)
    plain = Prompting.for_model(model)
    exams = [draw_exam(task, num_questions, report.seed) for task in tasks or STUDIED]
    report.setting |= {"tasks": [exam.task for exam in exams], "tried": list(tried or EASY)}
    engine = {} if weight_dtype is None else {"weight_dtype": weight_dtype}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        root = Path(folder) if store is None else store
        pools: dict[str, Pool] = {}
        for name, way in WAYS.items():
            by_task = []
            for exam in exams:
                place = root / f"{name}_{exam.task}_{report.seed}_{num_questions}".replace(" ", "_").replace(",", "")
                by_task.append(record_chains(place, model, weight_dtype, exam.samples(plain), way, report.seed))
            pools[name] = Pool(by_task)
        everything = Pool([chains for pool in pools.values() for chains in pool.by_task])
        for name, pool in pools.items():
            add_rules(report, name, pool)
        found = add_rules(report, POOLED, everything)
        for number, exam in enumerate(exams):
            own = Pool([pool.by_task[number] for pool in pools.values()])
            add_rules(report, exam.task, own, (MAIN_GAP,))
        add_bars(report, found, everything)
        with Lab({"generation": model}, seed=report.seed, store=root, **engine) as lab:
            lab.prompting = Prompting.for_model(model, family=FAMILY, chat_template=False)
            rows = [
                row
                for exam in exams
                for row in lab.stored(
                    f"votes_{exam.task}_{report.seed}_{num_voted}".replace(" ", "_"),
                    functools.partial(draw_votes, lab, exam.samples(plain)[:num_voted]),
                )
            ]
            greedy = pools["greedy"]
            right = dict(zip(greedy.questions, greedy.whole().right, strict=True))
            add_votes(report, rows, np.array([right[row["id"]] for row in rows]))
            if num_tried:
                add_tasks(report, lab, plain, tried or EASY, num_tried)
    if plot_path is not None:
        curves = {way: curve_of(pool) for way, pool in pools.items()}
        plot(report.figures, curves, report.setting["model"], plot_path)


if __name__ == "__main__":
    main()
