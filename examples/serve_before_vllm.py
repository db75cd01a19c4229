"""A vote over DynasorCoT before a vLLM server, asked by the openai client.

    python examples/serve_before_vllm.py                                         # the small model that ships
    python examples/serve_before_vllm.py http://localhost:8000/v1 Qwen/Qwen3-4B   # yours

In a terminal the same is `scaffolding-ext serve --config stack.yaml`. A client changes its base_url, and nothing else.
"""

import sys
from contextlib import ExitStack

from openai import OpenAI

from scaffolding_ext import load_config, load_stack
from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.server import FrontThread
from scaffolding_ext.serving.settings import Limits

with ExitStack() as running:
    if len(sys.argv) == 3:
        url, model = sys.argv[1:]
    else:
        model = "tinylm/target"
        engine = ServedStack(model, load_stack("configs:native"), Limits())
        running.callback(engine.llm.shutdown)
        url = running.enter_context(FrontThread(Front([engine], Limits()))).url + "/v1"
    chain = {"type": "DynasorCoTController", "args": {"max_tokens": 1200, "chunk_size": 64, "rule": "consecutive"}}
    config = load_config(
        {
            "controller": {
                "type": "MajorityVoteController",
                "args": {"generation_controller": chain, "default_sample_num": 4},
            },
            "sampling": {"temperature": 0.7},
            "workers": {"generation": {"type": "OpenAIWorker", "args": {"base_url": url, "model": model}}},
            "seed": 0,
        }
    )
    stack = ServedStack("vote", load_stack(config.model_dump(exclude_unset=True)), Limits(), config=config)
    running.callback(stack.llm.shutdown)
    front = running.enter_context(FrontThread(Front([stack], Limits())))
    client = running.enter_context(OpenAI(base_url=f"{front.url}/v1", api_key="none"))
    answer = client.chat.completions.create(
        model="vote",
        messages=[{"role": "user", "content": "Start with 5. Apply a+3,b-2. Find the total."}],
    )
    said = answer.choices[0]
    print(said.message.content)
    print(said.scaffolding["answer"], said.scaffolding["exit_reason"], answer.usage.completion_tokens)
