"""Controllers, forks, and one that votes as the real one does: on digits alone."""

import collections
import copy
import re
from abc import ABC
from enum import Enum

from tensorrt_llm import HAS_NEWEST_FIELDS
from tensorrt_llm.scaffolding.task import GenerationTask


class Controller(ABC):  # noqa: B024  (as the real one)
    def __init__(self):
        self.task_collections = {}

    def clone(self):
        return copy.deepcopy(self)

    def generate(self, prompt, **kwargs):
        task = GenerationTask.create_from_prompt(prompt)
        yield from self.process([task], **kwargs)
        return task.create_scaffolding_output()

    def process(self, tasks, **kwargs):
        raise NotImplementedError


class ParallelProcess:
    if HAS_NEWEST_FIELDS:

        def __init__(self, controllers, tasks_list, kwargs_list, branch_paths=None):
            self.sub_gens = _generators(controllers, tasks_list, kwargs_list)
            self.branch_paths = branch_paths

    else:

        def __init__(self, controllers, tasks_list, kwargs_list):
            self.sub_gens = _generators(controllers, tasks_list, kwargs_list)


def _generators(controllers, tasks_list, kwargs_list):
    forks = zip(controllers, tasks_list, kwargs_list, strict=False)
    return [controller.process(tasks, **kwargs) for controller, tasks, kwargs in forks]


class NativeGenerationController(Controller):
    """Asks the worker of its own tag, sets what the task has as None alone, and no seed of its own."""

    class WorkerTag(Enum):
        GENERATION = "generation"

    def __init__(self, sampling_params: dict = None, streaming: bool = False):  # noqa: RUF013  (as the real one)
        super().__init__()
        self.sampling_params = {
            key: value for key, value in (sampling_params or {}).items() if key in GenerationTask.__annotations__
        }
        self.streaming = streaming

    def process(self, tasks, **kwargs):
        for task in tasks:
            task.worker_tag = self.WorkerTag.GENERATION
            for key, value in self.sampling_params.items():
                if getattr(task, key) is None:
                    setattr(task, key, value)
            task.streaming_output_flag = self.streaming
        yield tasks


class TOTController(Controller):
    """A controller that this package has none of the name of; here it only hands its tasks on, twice."""

    def __init__(self, generation_controller):
        super().__init__()
        self.generation_controller = generation_controller

    def process(self, tasks, **kwargs):
        yield from self.generation_controller.process(tasks)
        yield from self.generation_controller.process(tasks)


class MajorityVoteController(Controller):
    """Cloned by deep copy, sub-controller and all; an answer that is not all digits does not vote."""

    def __init__(self, generation_controller, default_sample_num=1):
        super().__init__()
        self.generation_controller = generation_controller
        self.default_sample_num = default_sample_num

    def process(self, tasks, **kwargs):
        samples = [copy.deepcopy(tasks) for _ in range(self.default_sample_num)]
        yield ParallelProcess([self.generation_controller.clone() for _ in samples], samples, [{} for _ in samples])
        voters = {}
        for (task,) in samples:
            found = re.findall(r"\\boxed\{(.*?)\}", task.output_str)
            if found and found[-1].isdigit():
                voters.setdefault(found[-1], task)
        votes = collections.Counter(
            answer
            for (task,) in samples
            for answer in re.findall(r"\\boxed\{(.*?)\}", task.output_str)[-1:]
            if answer in voters
        )
        winner = voters[votes.most_common(1)[0][0]]
        tasks[0].output_str, tasks[0].output_tokens = winner.output_str, winner.output_tokens
