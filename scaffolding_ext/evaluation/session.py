"""A run from its first sample to its last, with all that is done before: taken up, run, interrupted, written."""

from __future__ import annotations

import asyncio
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from scaffolding_ext.documents import write_text
from scaffolding_ext.evaluation.datasets import Sample
from scaffolding_ext.evaluation.engine import Engine, LocalEngine
from scaffolding_ext.evaluation.interrupt import Interrupts
from scaffolding_ext.evaluation.progress import progress_shown
from scaffolding_ext.evaluation.ray_engine import ray_engine
from scaffolding_ext.evaluation.records import Record, record_writer
from scaffolding_ext.evaluation.resume import check_config, mend, taken_up
from scaffolding_ext.evaluation.run_folder import CONFIG, SAMPLES
from scaffolding_ext.evaluation.runner import jobs_of, run_jobs
from scaffolding_ext.evaluation.summary import Tally
from scaffolding_ext.stack.build import build_stack
from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.stack.load import load_config


@contextmanager
def local_engine(config: StackConfig) -> Iterator[Engine]:
    """A stack in this process."""
    with build_stack(config) as llm:
        yield LocalEngine(llm, config.evaluation.request_timeout)


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

    Attributes:
        tally: Counts all records, those that were taken up included.
        done: Id and epoch of what was taken up.
    """

    def __init__(self, config: StackConfig, samples: Sequence[Sample], folder: Path | None) -> None:
        self.tally = Tally()
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
        check_config(self._config.resolved(), load_config(self._folder / CONFIG).resolved(), self._folder)
        if is_mended and mend(path):
            warnings.warn(f"{path}: its last line was not written to its end, and is mended", stacklevel=2)
        self.done = taken_up(path, self._samples, self._config.evaluation.epochs, self.tally.add)

    def go(self, say: Callable[[str], object], against: Mapping[tuple[str, int], int] | None = None) -> int | None:
        """Run what is not done, each record written as soon as there is one.

        Args:
            say: Told what an interrupt does.
            against: Decoded tokens of another run by id and epoch; the progress shows what is saved.

        Returns:
            The signal that ended the run early, or None.

        Raises:
            OutputError: A record cannot be written (the disk is full, say); those before are kept, for `take_up`.
        """
        settings = self._config.evaluation
        num_requests = len(self._samples) * settings.epochs
        if len(self.done) == num_requests:
            return None
        interrupts = Interrupts(lambda: say("finishing what is in flight; another interrupt does not wait for it"))
        heard: list[Callable[[Record], None]] = [self.tally.add]
        with ExitStack() as stack:
            engine = stack.enter_context(engine_of(self._config))
            heard.append(stack.enter_context(progress_shown(num_requests, self.tally, against)))
            if self._folder is not None:
                write_text(self._folder / CONFIG, self._config.to_yaml())
                heard.insert(0, stack.enter_context(record_writer(self._folder / SAMPLES)))

            def on_record(record: Record) -> None:
                for hear in heard:
                    hear(record)

            jobs = jobs_of(self._samples, settings.epochs, self.done)
            asyncio.run(interrupts.run(run_jobs(engine, jobs, on_record, interrupts.is_stopped)))
        return interrupts.signal
