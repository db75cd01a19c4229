"""Runs controllers under the fake upstream host, or under ours, and prints what came out as one JSON document.

python scenarios.py SCENARIO HOST, where HOST is `upstream` (the fake's ScaffoldingLlm) or `ours`.
"""

import contextlib
import io
import json
import sys
from enum import Enum
from pathlib import Path

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.chain.probe import AnswerProbe
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.errors import RequestError
from scaffolding_ext.host.llm import ScaffoldingLlm as OurHost
from scaffolding_ext.protocol import (
    UPSTREAM,
    Controller,
    GenerationTask,
    ParallelProcess,
    StreamGenerationTask,
    TaskCollection,
    TaskStatus,
    Worker,
    with_task_collection,
)
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.request.program import current_program
from scaffolding_ext.request.results import completion_of
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.testing.controller_contract import contract_reply
from scaffolding_ext.workers.budgeted import BudgetedWorker

CONTROLLERS = {
    "native": lambda: NativeGenerationController({"max_tokens": 90}),
    "native_streaming": lambda: NativeGenerationController(streaming=True),
    "dynasor_stream": lambda: DynasorCoTController(chunk_size=24, rule="consecutive"),
    "dynasor_stream_budget": lambda: DynasorCoTController(max_tokens=60, certainty_threshold=9, chunk_size=24),
    "dynasor_chunk": lambda: DynasorCoTController(chunk_size=24, rule="consecutive", mode="chunk"),
    "dynasor_chunk_in_turn": lambda: DynasorCoTController(
        chunk_size=24, rule="consecutive", mode="chunk", overlap=False
    ),
    "budget_short": lambda: BudgetForcingController(40),
    "budget_long": lambda: BudgetForcingController(4000),
}


class Programs:
    """A script for ScriptedWorker that remembers the program of every prompt that it answers."""

    def __init__(self):
        self.by_number = {}

    def __call__(self, task):
        number = task.input_str.partition("Question ")[2][:2]
        program = self.by_number.setdefault(number, current_program())
        if program is not current_program():
            raise RuntimeError(f"two programs ask question {number}")
        return contract_reply(task)


def open_host(host, controller, worker, tag=WorkerTag.GENERATION, others=None, **options):
    """The host asked for; upstream's knows no `bind`, so it takes one line."""
    workers = {tag: worker, **(others or {})}
    if host == "ours":
        return OurHost(controller, workers, **options)
    from tensorrt_llm.scaffolding import ScaffoldingLlm

    if isinstance(controller, BaseController):
        controller.bind(workers)
    return ScaffoldingLlm(controller, workers, **options)


def document(result, program):
    """A result as a caller reads it who knows nothing of the worker's program."""
    output = completion_of(result)
    if output.program is not program:
        raise RuntimeError("the completion has another program than the worker")
    trace = [{key: value for key, value in event.items() if key != "seconds"} for event in program.trace]
    return {
        "text": output.text,
        "token_ids": output.token_ids,
        "answer": output.answer,
        "exit_reason": output.exit_reason,
        "ledger": program.ledger.to_json(),
        "trace": trace,
    }


def scripted(host):
    """Every controller on a scripted worker."""
    documents = {}
    for name, make in CONTROLLERS.items():
        programs = Programs()
        with open_host(host, make(), ScriptedWorker(programs)) as llm:
            result = llm.generate("Question 17")
        documents[name] = document(result, programs.by_number["17"])
    return documents


VOTES = {
    "rounds": lambda: MajorityVoteController(NativeGenerationController(), 5),
    "of_streams": lambda: MajorityVoteController(DynasorCoTController(chunk_size=24, rule="consecutive"), 5),
    "all": lambda: MajorityVoteController(
        DynasorCoTController(chunk_size=24, rule="consecutive", mode="chunk"), 3, allocation=None
    ),
    "of_votes": lambda: MajorityVoteController(MajorityVoteController(NativeGenerationController(), 3), 3),
}


def voting(host):
    """Votes, whose samples are counted alike; what their streams discard depends on time."""
    documents = {}
    for name, make in VOTES.items():
        with open_host(host, make(), ScriptedWorker(Programs())) as llm:
            output = completion_of(llm.generate("Question 17"))
        votes = [event for event in output.program.trace if event["event"] == "vote"]
        kept = ("num_samples", "answers", "classes", "winner")
        documents[name] = {
            "text": output.text,
            "answer": output.answer,
            "exit_reason": output.exit_reason,
            "votes": [{key: event[key] for key in kept} for event in votes],
        }
    return documents


def on_upstreams_worker(host):
    """Votes on a worker of upstream's, which serves plain generation alone."""

    class Plain(Worker):
        def __init__(self):
            self.programs = Programs()
            self.inner = ScriptedWorker(self.programs)

        async def generate(self, task):
            return await self.inner.run_task(task)

        task_handlers = {GenerationTask: generate}  # noqa: RUF012

    documents = {}
    for name in ("rounds", "all"):
        worker = Plain()
        with open_host(host, VOTES[name](), worker) as llm:
            documents[name] = document(llm.generate("Question 17"), worker.programs.by_number["17"])
    return documents


def text_of(result):
    """The text of a request that ended well, else the name of the error; the same under both hosts."""
    try:
        return completion_of(result).text
    except RequestError as error:
        return type(error).__name__


def queued(host):
    """Requests that wait for room, one of which fails, each with a program of its own."""
    programs = Programs()

    def respond(task):
        if "Question 23" in task.input_str:
            programs(task)
            raise RuntimeError("the engine is gone")
        return programs(task)

    controller = BudgetForcingController(40)
    with open_host(host, controller, ScriptedWorker(respond), max_parallel_requests=1) as llm:
        results = [llm.generate_async(f"Question {number}") for number in (21, 22, 23, 24)]
        for result in results:
            wait = result.result if host == "upstream" else result.exception
            wait(30)
    by_number = programs.by_number
    return {
        "texts": [text_of(result) for result in results],
        "num_programs": len({id(program) for program in by_number.values()}),
        "decoded": {number: program.ledger.total.decoded for number, program in by_number.items()},
    }


def unbound(host):
    """Upstream's host without the line that binds: plain generation is assumed."""
    from tensorrt_llm.scaffolding import ScaffoldingLlm

    programs = Programs()
    worker = ScriptedWorker(programs)
    with ScaffoldingLlm(DynasorCoTController(chunk_size=24, rule="consecutive"), {"generation": worker}) as llm:
        result = llm.generate("Question 17")
    program = programs.by_number["17"]
    return document(result, program) | {"task_types": sorted({type(task).__name__ for task in worker.tasks})}


def majority(host):
    """Upstream's own voting controller over our native one: deep copies, and branches of our controller."""
    from tensorrt_llm.scaffolding import MajorityVoteController

    replies = iter(["\\boxed{7}", "\\boxed{8}", "\\boxed{7}", "\\boxed{x}"] * 2)
    worker = ScriptedWorker(lambda task: next(replies))
    with open_host(host, MajorityVoteController(NativeGenerationController(), 4), worker) as llm:
        results = [llm.generate(prompt) for prompt in ("a", "b")]
    ledgers = [result.program.ledger.to_json() for result in results] if host == "ours" else []
    return {"texts": [result.outputs[0].text for result in results], "ledgers": ledgers, "tasks": len(worker.tasks)}


def upstreams_tags(host):
    """Workers keyed by a member of upstream's own enum, as its examples do, for upstream's controller and for ours."""
    from tensorrt_llm.scaffolding import NativeGenerationController as Upstreams

    texts = []
    vote = MajorityVoteController(NativeGenerationController(), 3)  # its tasks come from branches
    for controller in (Upstreams(), NativeGenerationController(), vote):
        with open_host(host, controller, ScriptedWorker("x"), tag=Upstreams.WorkerTag.GENERATION) as llm:
            texts.append(llm.generate("Question 17").outputs[0].text)
    return texts


def seeds(host):
    """The seeds that upstream's own controllers' tasks have in two runs of our host, each with two requests."""
    from tensorrt_llm.scaffolding import MajorityVoteController, TOTController
    from tensorrt_llm.scaffolding import NativeGenerationController as Upstreams

    def run(controller):
        seen = []

        def respond(task):
            seen.append(task.seed)
            return "\\boxed{7}"

        with open_host(host, controller, ScriptedWorker(respond), seed=5) as llm:
            for name in ("a", "b"):
                llm.generate("Question 17", sample_id=name)
        return seen

    return {
        "vote": [run(MajorityVoteController(Upstreams(), 4)) for _ in range(2)],
        "again": [run(TOTController(Upstreams())) for _ in range(2)],
    }


def stack(host):
    """A stack file with a controller of upstream's that this package has none of the name of."""
    from scaffolding_ext.stack.build import load_stack

    controller = {"type": "TOTController", "args": {"generation_controller": {"type": "NativeGenerationController"}}}
    workers = {"generation": {"type": "ScriptedWorker", "args": {"respond": "x"}}}
    with load_stack({"controller": controller, "workers": workers}) as llm:
        text = llm.generate("Question 17").outputs[0].text
        return {"module": type(llm.prototype_controller).__module__, "text": text}


def embedded(host):
    """The transformers worker with the draft model, greedy, so that nothing depends on the seeds."""
    from scaffolding_ext.prompts.prompting import Prompting
    from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

    greedy, documents = {"temperature": 0.0}, {}
    for name, controller in {
        "native": NativeGenerationController({"max_tokens": 60, **greedy}),
        "dynasor": DynasorCoTController(
            90, 2, 16, mode="chunk", overlap=False, probe=AnswerProbe(6, greedy), sampling_params=greedy
        ),
        "dynasor_stream": DynasorCoTController(90, 2, 16, probe=AnswerProbe(6, greedy), sampling_params=greedy),
    }.items():
        controller.prompting = Prompting.for_model("tinylm/draft")
        seen = []

        class Remembering(HuggingFaceWorker):
            async def run_task(self, task, seen=seen):
                seen.append(current_program())
                return await super().run_task(task)

        worker = Remembering("tinylm/draft")
        with open_host(host, controller, worker) as llm:
            result = llm.generate("Start with 5. Apply a+3,b-2. Find the total.")
        worker.shutdown()
        documents[name] = document(result, seen[0])
    return documents


def failing(host):
    """A worker that fails without a word: it writes no output, and the host drops its status."""

    class Silent(Worker):
        async def fail(self, task):
            return TaskStatus.WORKER_EXECEPTION

        task_handlers = {GenerationTask: fail, StreamGenerationTask: fail}  # noqa: RUF012

    documents = {}
    for name, make in CONTROLLERS.items():
        with open_host(host, make(), Silent()) as llm:
            result = llm.generate("Question 17")
            (error,) = llm.errors
        documents[name] = {
            "output": vars(result.outputs[0]),
            "told": text_of(result),
            "error": type(error).__name__,
            "message": str(error),
        }
    return documents


def collections(host):
    """A task collection sees what a controller yields, in its branches too, under a ledger that counts."""

    class Counting(TaskCollection):
        def __init__(self):
            self.num_before = self.num_after = 0

        def before_yield(self, tasks):
            self.num_before += len(tasks)

        def after_yield(self, tasks):
            self.num_after += len(tasks)

    @with_task_collection("counting", Counting)
    class Twice(BaseController):
        def process(self, tasks, **kwargs):
            twin = NativeGenerationController()
            branches = [GenerationTask(input_str=tasks[0].input_str) for _ in range(2)]
            yield ParallelProcess([twin.clone() for _ in branches], [[task] for task in branches], [{}, {}])
            yield from twin.process(tasks)

    programs = Programs()
    with open_host(host, Twice(), ScriptedWorker(programs)) as llm:
        result = llm.generate("Question 17")
    counting = result.task_collections["counting"]
    ledger = programs.by_number["17"].ledger.to_json()
    return {"before": counting.num_before, "after": counting.num_after, "ledger": ledger}


def migrating(host):
    """The lines of docs/tensorrt_llm.md under upstream's host, with a worker that says which model it serves."""
    page = Path(__file__).parents[3] / "docs" / "tensorrt_llm.md"
    code = page.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]

    class Serving(ScriptedWorker):
        model = "tinylm/target"

    worker = Serving(contract_reply, logprobs=lambda task, index: {task.output_tokens[index]: -0.01})
    printed = io.StringIO()
    names = {"worker": worker}
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    names["with_upstream"].shutdown()
    return {"prompt": worker.tasks[0].input_str, "printed": printed.getvalue()}


def tools(host):
    """Tasks of upstream's that this package does not know, for a worker of upstream's under a tag of its own."""
    from tensorrt_llm.scaffolding.task import MCPCallTask

    class Agent(Controller):
        """As upstream's chats with tools: a question to the model, a call of a tool, and the answer with its result."""

        class WorkerTag(Enum):
            TOOLCALL = "tool_call"

        def process(self, tasks, **kwargs):
            yield from NativeGenerationController().process(tasks)
            call = MCPCallTask(worker_tag=self.WorkerTag.TOOLCALL, tool_name="add", args={"a": 3, "b": 4})
            yield [call]
            tasks[0].input_str += f" {call.result_str}"
            yield from NativeGenerationController().process(tasks)

    class Tools(Worker):
        async def call(self, task):
            task.result_str = str(sum(task.args.values()))
            return TaskStatus.SUCCESS

        task_handlers = {MCPCallTask: call}  # noqa: RUF012

    texts = {}
    for name, tool in {"plain": Tools(), "budgeted": BudgetedWorker(Tools(), max_calls=1)}.items():
        others = {Agent.WorkerTag.TOOLCALL: tool}
        with open_host(host, Agent(), ScriptedWorker(lambda task: f"<{task.input_str}>"), others=others) as llm:
            texts[name] = llm.generate("3 + 4 =").outputs[0].text
    return texts


def classes(host):
    """Whose classes the package stands on."""
    return {
        "upstream": UPSTREAM,
        "modules": {cls.__name__: cls.__module__ for cls in (Controller, Worker, GenerationTask, ParallelProcess)},
        "controllers": {name: [cls.__module__ for cls in type(make()).__mro__] for name, make in CONTROLLERS.items()},
        "worker": [cls.__module__ for cls in ScriptedWorker.__mro__],
    }


if __name__ == "__main__":
    scenario, host = sys.argv[1:]
    sys.stdout.write(json.dumps(globals()[scenario](host)))
