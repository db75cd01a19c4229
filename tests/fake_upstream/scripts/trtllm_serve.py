"""`trtllm-serve`, as far as its start goes: refuses options and settings that the release lacks."""

import argparse
from pathlib import Path

import yaml
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs

parser = argparse.ArgumentParser()
parser.add_argument("model")
for name in ("--host", "--port", "--extra_llm_api_options", "--reasoning_parser"):
    parser.add_argument(name)
for name in ("--max_seq_len", "--max_batch_size", "--max_num_tokens"):
    parser.add_argument(name, type=int)
parser.add_argument("--enable_chunked_prefill", action="store_true")
given = {name: value for name, value in vars(parser.parse_args()).items() if value}
extra = given.pop("extra_llm_api_options", None)
settings = {name: given[name] for name in given.keys() - {"host", "port"}}
TorchLlmArgs(**settings, **(yaml.safe_load(Path(extra).read_text()) if extra else {}))
