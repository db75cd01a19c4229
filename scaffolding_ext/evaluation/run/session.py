"""A run: resume, run, interrupt, summarize, write."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from scaffolding_ext import __version__
from scaffolding_ext.controllers.base import sub_controllers
from scaffolding_ext.documents import json_text, write_text
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.run.datasets import Example, format_of, load_dataset
from scaffolding_ext.evaluation.run.formats import UNITS_IMPLIED
from scaffolding_ext.evaluation.run.outage import Outage
from scaffolding_ext.evaluation.run.progress_bar import progress_shown
from scaffolding_ext.evaluation.run.ray_engine import ray_engine
from scaffolding_ext.evaluation.run.records import Record, record_writer
from scaffolding_ext.evaluation.run.run_folder import (
    CONFIG,
    SAMPLES,
    SUMMARY,
    VOTES,
    check_config,
    fingerprint,
    mend,
    taken_up,
)
from scaffolding_ext.evaluation.run.run_stats import RunStats
from scaffolding_ext.evaluation.run.runner import Engine, EvaluationJob, LocalEngine, check_samples, jobs_of, run_jobs
from scaffolding_ext.evaluation.run.summary import Summary, summary_of
from scaffolding_ext.evaluation.run.until import UntilKnown, stop_of
from scaffolding_ext.evaluation.run.vote_budget import SampleOfVote, VoteBudget
from scaffolding_ext.protocol import Controller
from scaffolding_ext.protocol.meta import TokenCounts
from scaffolding_ext.stack.build import build_stack, check_stack
from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.stack.load import load_config


@contextmanager
def local_engine(config: StackConfig) -> Iterator[Engine]:
    with build_stack(config) as llm:
        settings = config.evaluation
        llm.keep_samples = settings.keep_samples
        if settings.total_tokens is not None:
            llm.prototype_controller = SampleOfVote(llm.prototype_controller)
        yield LocalEngine(
            llm,
            settings.request_timeout,
            units_implied=units_implied(config),
            samples_of_votes=settings.total_tokens is not None,
        )


def units_implied(config: StackConfig) -> bool:
    """Return True if questions name the unit, according to the stack, its worker `compare`, or the dataset's format."""
    if config.evaluation.units_implied is not None:
        return bool(config.evaluation.units_implied)
    compare = config.workers.get("compare")
    if compare is not None and "units_implied" in compare.args:
        return bool(compare.args["units_implied"])
    name = None if config.dataset is None else format_of(config.dataset.source, config.dataset.format)
    return name in UNITS_IMPLIED


class Finished(NamedTuple):
    """Result of a run."""

    document: dict[str, Any]
    summary: Summary


class Session:
    """A stack, its samples, and the part of them that is done; stack, dataset and budget are checked.

    Args:
        config: The stack, from `StackConfig.for_run`, with a dataset.
        folder: Output folder, claimed by the caller; None writes nothing.

    Attributes:
        controller: The stack's outermost controller, checked but not bound to workers.
        tally: Counts all records, including earlier ones of a continued run, and those that `until` leaves out.
        done: Id and epoch of earlier records.
        num_left: Requests without a record, because a server was down and did not come back; else 0.

    Raises:
        ConfigError: The stack or its budget is wrong, or there are too many samples.
        DatasetError: The dataset is unusable.
    """

    def __init__(self, config: StackConfig, folder: Path | None) -> None:
        settings = config.evaluation
        self.config, self._folder = config, folder
        self.controller = check_stack(config)
        limit = None if settings.limit is None else str(settings.limit)
        self._samples: Sequence[Example] = load_dataset(**_dataset_of(config), limit=limit)
        self._epochs: int = settings.epochs
        self._until: UntilKnown | None = None
        self._budget: VoteBudget | None = None
        implied = units_implied(config)
        if settings.until is not None:
            self._until, self._samples = stop_of(settings.until, self._samples, settings.epochs, config.seed)
        if settings.total_tokens is not None:
            self._budget = VoteBudget(self.controller, self._samples, settings.total_tokens, units_implied=implied)
            self._epochs = self._budget.max_samples
        check_samples(self._samples, self._epochs)
        self.tally = RunStats(implied, keeps_answers=self._epochs > 1)
        self._counted = RunStats(implied, keeps_answers=self._epochs > 1)  # by `until`
        self._apart: dict[str, list[Record]] = {}  # records that it does not count yet
        self.num_left = 0
        self.done: set[tuple[str, int]] = set()

    @property
    def num_requests(self) -> int:
        """Requests of the whole run; the maximum of a run that has a budget or may end early."""
        return len(self._samples) * self._epochs

    @property
    def described(self) -> str:
        most = "" if self._budget is None and self._until is None else "at most "
        return f"{len(self._samples):,} questions, {most}{self.num_requests:,} requests"

    @property
    def most_tokens(self) -> int | None:
        """The most tokens of all chains of the run, without probes and forced answers; None if nothing bounds them."""
        num_samples, controller, inner = 1, self.controller, self.controller
        while inner is not None:
            controller = inner
            num_samples *= getattr(controller, "default_sample_num", 0) or getattr(controller, "num_chains", 1)
            inner = getattr(controller, "generation_controller", None) or getattr(controller, "trace_controller", None)
        sampling = getattr(controller, "sampling_params", None) or {}
        each = getattr(controller, "max_tokens", None) or sampling.get("max_tokens")
        num_votes = self.num_requests if self._budget is None else len(self._samples)
        return None if each is None else num_votes * num_samples * int(each)

    @property
    def first_question(self) -> Example:
        """The first question, with the stack's suffix behind its prompt."""
        first = self._samples[0]
        suffix = None if self.config.prompt is None else self.config.prompt.prompt_suffix
        return first._replace(prompt=first.prompt + (suffix or ""))

    def document(self) -> dict[str, Any]:
        settings = self.config.evaluation
        return {
            "version": __version__,
            "fingerprint": fingerprint(self.config.resolved()),
            "dataset": _dataset_of(self.config),
            "limit": settings.limit,
            "epochs": settings.epochs,
            "seed": self.config.seed,
            "num_samples": len(self._samples),
            "num_requests": self.num_requests,
            "price": settings.price or None,
        }

    def resume(self, *, is_mended: bool) -> None:
        """Read the folder's earlier records; failed requests are run again.

        Args:
            is_mended: Remove an incomplete last line and failed requests; a run with a budget keeps those, which
                spent from it.

        Raises:
            ConfigError: The run is of another stack, or has samples that are not in this one.
            DatasetError: The records are damaged, or of other questions.
        """
        if self._folder is None or not (self._folder / SAMPLES).stat().st_size:
            return  # killed before its first record
        path = self._folder / SAMPLES
        before = load_config(self._folder / CONFIG)
        check_config(self.config.resolved(), before.resolved(), self._folder)
        if (before.evaluation.total_tokens is None) != (self._budget is None):
            raise ConfigError(
                f"is {self.config.evaluation.total_tokens}, but the run in {self._folder} has "
                f"{before.evaluation.total_tokens}; name another --output_path",
                "evaluation.total_tokens",
            )
        if units_implied(before) != units_implied(self.config):
            raise ConfigError(
                f"is {units_implied(self.config)}, but the run in {self._folder} was scored with "
                f"{units_implied(before)}; name another --output_path",
                "evaluation.units_implied",
            )
        if is_mended:
            mend(path, keeps_failed=self._budget is not None)
        self.done = taken_up(path, self._samples, self._epochs, self._count)

    def go(self, say: Callable[[str], object]) -> int | None:
        """Run the rest, writing each record when it is done.

        Returns:
            The signal that ended the run early, or None.

        Raises:
            OutputError: A record cannot be written (for example, a full disk); earlier ones are kept for `resume`.
            ConfigError: A budget is too small, or differs from the one that the run started with.
        """
        rounds = self._rounds()
        first = next(rounds, None)  # before anything is loaded
        if first is None:
            return None
        settings = self.config.evaluation
        total = settings.total_tokens or self.num_requests
        interrupts = Interrupts(lambda: say("finishing requests in flight; interrupt again to cancel them"))
        heard: list[Callable[[Record], None]] = [self._count]
        with ExitStack() as stack:
            engine: Engine
            if settings.num_actors is None:
                engine = stack.enter_context(local_engine(self.config))
            else:
                make_engine = functools.partial(local_engine, self.config)
                engine = stack.enter_context(ray_engine(make_engine, settings.num_actors, settings.gpus_per_actor))
            outage = Outage(settings.outage_seconds, say, engine.is_up, interrupts.is_stopped)
            in_tokens = settings.total_tokens is not None
            shown = progress_shown(total, self.tally, in_tokens=in_tokens, num_written=engine.num_written)
            heard.append(stack.enter_context(shown))
            if self._folder is not None:
                write_text(self._folder / CONFIG, self.config.to_yaml())
                heard.insert(0, stack.enter_context(record_writer(self._folder / SAMPLES)))

            def on_record(record: Record) -> None:
                for hear in heard:
                    hear(record)

            def is_stopped() -> bool:
                return interrupts.is_stopped() or self._is_known

            async def work() -> None:
                for jobs in itertools.chain([first], rounds):
                    await run_jobs(engine, jobs, on_record, is_stopped, outage)
                    if is_stopped() or outage.given_up:
                        return

            asyncio.run(interrupts.run(work()))
        is_away = outage.given_up and interrupts.signal is None
        self.num_left = self.num_requests - self.tally.num_samples if is_away else 0
        return None if self._is_whole else interrupts.signal

    def finish(self, stopped_by: int | None) -> Finished:
        """Summarize the run and write it; if a budget was spent on votes, write and summarize these."""
        calibrations = calibration_cost(self.controller)
        price = {str(kind): each for kind, each in self.config.evaluation.price.items()}
        if self._budget is None:
            tally = self.tally if self._until is None else self._counted
        else:
            votes = self._budget.votes()
            if self._folder is not None:
                lines = (json_text(vote.to_json()) + "\n" for vote in votes)
                write_text(self._folder / VOTES, "".join(lines))
            tally = RunStats(units_implied(self.config))
            for vote in votes:
                tally.add(vote)
        tuned = self.config.tuned
        summary = summary_of(
            tally,
            calibrations,
            price=price,
            promised_loss=None if tuned is None else tuned.max_loss,
        )
        document = self.document() | {
            "state": "finished" if stopped_by is None and not self.num_left else "interrupted",
            "summary": summary.to_json(),
            "first_error": self.tally.first_error,
            **({} if self._budget is None else {"budget": self._budget.figures()}),
            **({} if self._until is None else {"until": self._until.figures() | self._left_out()}),
        }
        if self._folder is not None:
            write_text(self._folder / SUMMARY, json.dumps(document, indent=2) + "\n")
        return Finished(document, summary)

    def _rounds(self) -> Iterator[Iterator[EvaluationJob]]:
        """Yield the jobs to run: all at once, or those that a budget buys next."""
        if self._budget is not None:
            yield from self._budget.rounds()
        elif len(self.done) < self.num_requests and not self._is_known:
            yield jobs_of(self._samples, self._epochs, self.done)

    def _count(self, record: Record) -> None:
        self.tally.add(record)
        if self._budget is not None:
            self._budget.add(record)
        if self._until is not None:
            self._apart.setdefault(record.id, []).append(record)
            for identity in self._until.add(record.id, float(record.correct)):
                for each in self._apart.pop(identity):
                    self._counted.add(each)

    def _left_out(self) -> dict[str, int]:
        """Requests that ended behind the goal, or behind a question that has not ended, and their decoded tokens."""
        left_out = [record for records in self._apart.values() for record in records]
        return {
            "num_left_out": len(left_out),
            "left_out_tokens": sum(record.ledger["total"]["decoded"] for record in left_out),
        }

    @property
    def _is_whole(self) -> bool:
        """True if there is nothing more to run; a budget alone knows if it is spent."""
        return self._budget is None and (self._is_known or self.tally.num_samples == self.num_requests)

    @property
    def _is_known(self) -> bool:
        return self._until is not None and self._until.is_settled


def _dataset_of(config: StackConfig) -> dict[str, Any]:
    if config.dataset is None:
        raise ConfigError("is missing: name a JSONL file or tinylm:held_out", "dataset")
    return config.dataset.model_dump()


class Interrupts:
    """Handles SIGINT and SIGTERM during a run, if it is on the main thread."""

    def __init__(self, say: Callable[[], object]) -> None:
        self.signal: int | None = None
        self._say = say

    def is_stopped(self) -> bool:
        return self.signal is not None

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that checks `is_stopped` to its end; a second signal cancels it."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)

        def hear(number: int) -> None:
            if self.signal is not None:
                task.cancel()
                return
            self.signal = number
            self._say()

        heard = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        for number in heard:
            loop.add_signal_handler(number, hear, number)
        try:
            await task
        except asyncio.CancelledError:
            if self.signal is None:
                raise
        finally:
            for number in heard:
                loop.remove_signal_handler(number)


def calibration_cost(controller: Controller) -> TokenCounts | None:
    """Sum the tokens of the calibrations of a controller and its sub-controllers; None if none is known."""
    own = getattr(getattr(controller, "rule", None), "calibration_cost", None)
    costs = [cost for cost in (own, *map(calibration_cost, sub_controllers(controller))) if cost is not None]
    return TokenCounts(*map(sum, zip(*costs, strict=True))) if costs else None
