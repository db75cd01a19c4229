"""A run from its first sample to its last, with all that is done before: taken up, run, interrupted, written."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from scaffolding_ext.documents import write_text
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.run.datasets import Sample
from scaffolding_ext.evaluation.run.engine import Engine, Job, LocalEngine
from scaffolding_ext.evaluation.run.interrupt import Interrupts
from scaffolding_ext.evaluation.run.progress import progress_shown
from scaffolding_ext.evaluation.run.ray_engine import ray_engine
from scaffolding_ext.evaluation.run.records import Record, record_writer
from scaffolding_ext.evaluation.run.resume import check_config, mend, taken_up
from scaffolding_ext.evaluation.run.run_folder import CONFIG, SAMPLES, VOTES
from scaffolding_ext.evaluation.run.runner import jobs_of, run_rounds
from scaffolding_ext.evaluation.run.summary import Summary, Tally, summarize
from scaffolding_ext.evaluation.run.vote_budget import VoteBudget
from scaffolding_ext.protocol.notes import TokenCounts
from scaffolding_ext.stack.build import build_stack
from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.stack.load import load_config


@contextmanager
def local_engine(config: StackConfig) -> Iterator[Engine]:
    """A stack in this process."""
    with build_stack(config) as llm:
        settings = config.evaluation
        yield LocalEngine(llm, settings.request_timeout, samples_of_votes=settings.total_tokens is not None)


def engine_of(config: StackConfig) -> AbstractContextManager[Engine]:
    """What runs a stack's evaluation, as it says itself."""
    settings = config.evaluation
    if settings.num_actors is None:
        return local_engine(config)
    return ray_engine(functools.partial(local_engine, config), settings.num_actors, settings.gpus_per_actor)


class Session:
    """A stack, what it is to be run on, and what is done of it.

    Args:
        config: The resolved stack.
        samples: What it is run on.
        folder: Where the run is written, claimed by the caller; None writes nothing.
        budget: Says round by round what is run, where one budget is spent on all votes; None runs every epoch.

    Attributes:
        tally: Counts all records, those that were taken up included.
        done: Id and epoch of what was taken up.
    """

    def __init__(
        self, config: StackConfig, samples: Sequence[Sample], folder: Path | None, budget: VoteBudget | None = None
    ) -> None:
        self.tally = Tally()
        self._budget = budget
        self.done: set[tuple[str, int]] = set()
        self._config = config
        self._samples = samples
        self._folder = folder

    def take_up(self, *, is_mended: bool) -> None:
        """Read what the folder has of the run.

        Args:
            is_mended: Whether a last line that was not written to its end may be mended, with a warning.

        Raises:
            ConfigError: The run is one of another stack, or has samples that are not asked for.
            DatasetError: The records are damaged, or of other questions.
        """
        if self._folder is None or not (self._folder / SAMPLES).stat().st_size:
            return  # it was killed before its first record
        path = self._folder / SAMPLES
        before = load_config(self._folder / CONFIG)
        check_config(self._config.resolved(), before.resolved(), self._folder)
        if (before.evaluation.total_tokens is None) != (self._budget is None):
            raise ConfigError(
                f"is {self._config.evaluation.total_tokens}, but the run in {self._folder} has "
                f"{before.evaluation.total_tokens}; name another --output_path",
                "evaluation.total_tokens",
            )
        if is_mended and mend(path):
            warnings.warn(f"{path}: its last line was not written to its end, and is mended", stacklevel=2)
        epochs = self._config.evaluation.epochs if self._budget is None else self._budget.max_samples
        self.done = taken_up(path, self._samples, epochs, self._count)

    def go(self, say: Callable[[str], object], against: Mapping[tuple[str, int], int] | None = None) -> int | None:
        """Run what is not done, each record written as soon as there is one.

        Args:
            say: Told what an interrupt does.
            against: Decoded tokens of another run by id and epoch; the progress shows what is saved.

        Returns:
            The signal that ended the run early, or None.

        Raises:
            OutputError: A record cannot be written (the disk is full, say); those before are kept, for `take_up`.
            ConfigError: A budget is too small, or not the one that the run began with.
        """
        rounds = self._rounds()
        first = next(rounds, None)  # before anything is loaded
        if first is None:
            return None
        settings = self._config.evaluation
        total = settings.total_tokens or len(self._samples) * settings.epochs
        interrupts = Interrupts(lambda: say("finishing what is in flight; another interrupt does not wait for it"))
        heard: list[Callable[[Record], None]] = [self._count]
        with ExitStack() as stack:
            engine = stack.enter_context(engine_of(self._config))
            in_tokens = settings.total_tokens is not None
            heard.append(stack.enter_context(progress_shown(total, self.tally, against, in_tokens=in_tokens)))
            if self._folder is not None:
                write_text(self._folder / CONFIG, self._config.to_yaml())
                heard.insert(0, stack.enter_context(record_writer(self._folder / SAMPLES)))

            def on_record(record: Record) -> None:
                for hear in heard:
                    hear(record)

            work = run_rounds(engine, itertools.chain([first], rounds), on_record, interrupts.is_stopped)
            asyncio.run(interrupts.run(work))
        return interrupts.signal

    def finish(self, calibration_cost: TokenCounts | None, price: Mapping[str, float]) -> Summary:
        """Sum up what was run; where a budget was spent on votes, they are written and summed up."""
        if self._budget is None:
            return self.tally.summary(calibration_cost, price=price)
        votes = self._budget.votes()
        if self._folder is not None:
            write_text(self._folder / VOTES, "".join(json.dumps(vote.to_json()) + "\n" for vote in votes))
        return summarize(votes, calibration_cost, price=price)

    def _rounds(self) -> Iterator[Iterator[Job]]:
        """What is to be run: all at once, or what a budget buys next."""
        if self._budget is not None:
            yield from self._budget.rounds()
        elif len(self.done) < len(self._samples) * self._config.evaluation.epochs:
            yield jobs_of(self._samples, self._config.evaluation.epochs, self.done)

    def _count(self, record: Record) -> None:
        self.tally.add(record)
        if self._budget is not None:
            self._budget.add(record)
