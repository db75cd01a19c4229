"""`trtllm-build`, as far as `config.json` goes: writes what its flags say."""

import json
import sys
from pathlib import Path

flags = dict(zip([*sys.argv[1:], ""], [*sys.argv[2:], "", ""], strict=True))
limits = {name: int(flags[f"--{name}"]) for name in ("max_batch_size", "max_seq_len", "max_num_tokens")}
build = limits | {
    "gather_context_logits": "--gather_context_logits" in flags,
    "gather_generation_logits": False,
    "kv_cache_type": flags["--kv_cache_type"].upper(),
    "plugin_config": {"use_paged_context_fmha": flags["--use_paged_context_fmha"] == "enable"},
}
folder = Path(flags["--output_dir"])
folder.mkdir(parents=True)
(folder / "config.json").write_text(json.dumps({"version": "1.2.1", "pretrained_config": {}, "build_config": build}))
