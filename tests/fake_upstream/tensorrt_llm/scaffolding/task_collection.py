"""Observers of what a controller yields, put on by a class decorator."""

from tensorrt_llm import HAS_SCOPES
from tensorrt_llm.scaffolding.controller import ParallelProcess


class TaskCollection:
    def before_yield(self, tasks):
        pass

    def after_yield(self, tasks):
        pass

    if HAS_SCOPES:

        def on_parallel_start(self, num_branches):
            pass

        def on_parallel_end(self, num_branches):
            pass


class _Watched:
    """Iterates a generator for a collection. It has no `close`: the generator ends when it is collected."""

    def __init__(self, generator, collection):
        self._generator = generator
        self._collection = collection

    def __iter__(self):
        for work in self._generator:
            if isinstance(work, ParallelProcess):
                work.sub_gens = [_Watched(branch, self._collection) for branch in work.sub_gens]
                yield work
            else:
                self._collection.before_yield(work)
                yield work
                self._collection.after_yield(work)


def with_task_collection(name, task_collection_cls, **task_collection_kwargs):
    def decorate(controller_cls):
        init, process = controller_cls.__init__, controller_cls.process

        def new_init(self, *args, **kwargs):
            init(self, *args, **kwargs)
            self.task_collections[name] = task_collection_cls(**task_collection_kwargs)

        def new_process(self, tasks, **kwargs):
            return iter(_Watched(process(self, tasks, **kwargs), self.task_collections[name]))

        controller_cls.__init__, controller_cls.process = new_init, new_process
        return controller_cls

    return decorate
