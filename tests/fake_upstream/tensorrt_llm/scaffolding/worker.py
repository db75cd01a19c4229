"""Workers: dispatch by the exact type of the task, from a dict of the class."""

from abc import ABC
from collections.abc import Callable

from tensorrt_llm import HAS_SCOPES
from tensorrt_llm.scaffolding.task import GenerationTask, StreamGenerationTask, Task, TaskStatus


class Worker(ABC):  # noqa: B024  (as the real one)
    task_handlers = {}  # noqa: RUF012  (as the real one)

    def register_task_handler(self, task_cls: type[Task], handler: Callable[[object, Task], TaskStatus]):
        type(self).task_handlers[task_cls] = handler

    async def run_task(self, task: Task) -> TaskStatus:
        worker_cls = type(self)
        if type(task) not in worker_cls.task_handlers:
            return TaskStatus.WORKER_NOT_SUPPORTED
        return await worker_cls.task_handlers[type(task)](self, task)

    def shutdown(self):  # noqa: B027  (a hook)
        pass

    def __enter__(self):
        return self

    if HAS_SCOPES:

        async def on_scope_end(self, scope_id: str) -> None:
            pass

        async def async_shutdown(self):
            pass

        def __exit__(self, exc_type, exc_val, exc_tb):
            self.shutdown()

    else:

        def __exit__(self):  # no `with` statement can end with it
            self.shutdown()


class TRTLLMWorker(Worker):
    """Generates with an `LLM`; of a task's fields it forwards only these few, as upstream's does."""

    def __init__(self, llm, tokenizer):
        self.llm = llm
        self.tokenizer = tokenizer

    @classmethod
    def init_with_new_llm(
        cls,
        model_dir,
        backend="pytorch",
        max_batch_size=32,
        max_num_tokens=4096,
        kv_cache_free_gpu_memory_fraction=0.9,
        disable_overlap_scheduler=False,
        scheduler_config=None,
    ):
        from tensorrt_llm.llmapi.llm import LLM  # needs torch
        from tensorrt_llm.llmapi.llm_args import KvCacheConfig, SchedulerConfig

        llm = LLM(
            model_dir,
            disable_overlap_scheduler=disable_overlap_scheduler,
            kv_cache_config=KvCacheConfig(free_gpu_memory_fraction=kv_cache_free_gpu_memory_fraction),
            max_batch_size=max_batch_size,
            max_num_tokens=max_num_tokens,
            scheduler_config=scheduler_config or SchedulerConfig(),
        )
        return cls(llm, llm.tokenizer)

    def _submit(self, task, streaming):
        from tensorrt_llm._sampling import SamplingParams

        names = ("max_tokens", "temperature", "top_p", "top_k", "return_context_logits")
        params = SamplingParams(**{name: getattr(task, name) for name in names}, logprobs=task.num_logprobs)
        return self.llm.generate_async(task.input_str, sampling_params=params, streaming=streaming)

    def _fill(self, task, result):
        output = result.outputs[0]
        task.output_str, task.output_tokens, task.logprobs = output.text, output.token_ids, output.logprobs

    async def generation_handler(self, task: GenerationTask) -> TaskStatus:
        self._fill(task, await self._submit(task, False).aresult())
        return TaskStatus.SUCCESS

    async def stream_generation_handler(self, task: StreamGenerationTask) -> TaskStatus:
        if task.cancel_flag:
            task.end_flag = True
            task.request_handle.abort()
            return TaskStatus.SUCCESS
        if task.request_handle is None:
            task.request_handle = self._submit(task, True)
        for _ in range(task.streaming_step or 1):
            if not task.request_handle.finished:
                await task.request_handle._aresult_step()
        self._fill(task, task.request_handle)
        task.end_flag = task.request_handle.finished
        return TaskStatus.SUCCESS

    def shutdown(self):
        self.llm.shutdown()

    task_handlers = {  # noqa: RUF012  (as the real one)
        GenerationTask: generation_handler,
        StreamGenerationTask: stream_generation_handler,
    }
