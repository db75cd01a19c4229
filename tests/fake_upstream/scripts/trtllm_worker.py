"""TRTLLMWorker on the fake's own classes: its tasks, and its host. Prints what came out as one JSON document."""

import asyncio
import json
import sys

from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.host.llm import ScaffoldingLlm as OurHost
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol import UPSTREAM, Worker
from scaffolding_ext.request.program import Program, enter_program
from scaffolding_ext.request.results import completion_of
from scaffolding_ext.workers.trtllm.worker import TRTLLMWorker

from tensorrt_llm.scaffolding import ScaffoldingLlm, task  # isort: skip  (ours first: it keeps stdout clean)
from tensorrt_llm.scaffolding import Worker as UpstreamWorker  # isort: skip

MODEL = "tinylm/draft"
PROMPT = "Start with 5. Apply a+3,b-2. Find the total."


def chat(worker):
    """A chat of one turn, the count of its tokens, and a chat with tools."""
    asked = task.ChatTask(
        messages=[task.UserMessage(PROMPT)], max_tokens=8, temperature=0.0, enable_token_counting=True
    )
    asyncio.run(worker.run_task(asked))
    return {
        "roles": [message.role for message in asked.messages],
        "content": asked.messages[-1].content,
        "output": asked.output_str,
        "counted": [asked.prompt_tokens_num, asked.completion_tokens_num],
        "tokens": [len(asked.input_tokens), len(asked.output_tokens)],
        "tools": refusal(worker, task.ChatTask(messages=asked.messages, tools=[1], max_tokens=1)),
        "dropped": dropped(worker, task.DropKVCacheTask(asked, "generation")),
    }


def dropped(worker, asked):
    """The trace and the status of a task that asks for KV to be dropped."""
    program = Program()

    async def inside():
        enter_program(program)
        return await worker.run_task(asked)

    status = asyncio.run(inside())
    return [status.value, [event["event"] for event in program.trace]]


def refusal(worker, asked):
    try:
        asyncio.run(worker.run_task(asked))
    except ValueError as error:
        return str(error)
    return None


def counted(worker):
    """The tokens of a text, where the release asks for them."""
    kind = getattr(task, "TokenizeTask", None)
    if kind is None:
        return None
    asked = kind(content=PROMPT)
    asyncio.run(worker.run_task(asked))
    return asked.token_count


def answered(host, worker):
    """A controller of ours, on one of the hosts."""
    controller = DynasorCoTController(chunk_size=16, max_tokens=64, sampling_params={"temperature": 0.0})
    controller.prompting = Prompting.for_model(MODEL)
    workers = {"generation": worker}
    controller.bind(workers)
    with host(controller, workers) as llm:
        output = completion_of(llm.generate(PROMPT))
    return {"text": output.text, "answer": output.answer, "decoded": output.program.ledger.total.decoded}


with TRTLLMWorker(MODEL) as served:
    document = {
        "upstream": UPSTREAM and Worker is UpstreamWorker and isinstance(served, UpstreamWorker),
        "chat": chat(served),
        "counted": counted(served),
        "hosts": [answered(host, served) for host in (OurHost, ScaffoldingLlm)],
    }
sys.stdout.write(json.dumps(document))
