"""lm-evaluation-harness: `--model scaffolding_ext --model_args config=configs:dynasor_cot`.

Releases that read the entry point `lm_eval.models` find the model; for others, `python -m
scaffolding_ext.plugins.lm_eval` takes the arguments of `lm_eval` and registers the model first.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from scaffolding_ext.answers.stop_strings import StopStrings
from scaffolding_ext.documents import as_json
from scaffolding_ext.errors import MissingDependencyError
from scaffolding_ext.plugins import behind_thinking, told
from scaffolding_ext.stack.build import load_stack

try:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError as error:
    raise MissingDependencyError("lm-evaluation-harness", "lm-eval") from error

_log = logging.getLogger(__name__)
_OF_THE_STACK = ("temperature", "top_p", "top_k", "max_gen_toks")  # task settings that the stack decides


@register_model("scaffolding_ext")
class ScaffoldingExtLM(LM):  # type: ignore[misc]
    """A stack as a generating model.

    The stack decides how to sample and how long chains may be; a task's sampling settings are ignored with a warning. A
    task sees the text after the thinking, up to the first of its `until` strings.

    Args:
        overrides: `key.path=value` changes of the stack, separated by semicolons.
        seed: Seed of the run; overrides the stack's.
        ledger_path: JSONL file to append each request's ledger, trace and text to.
        batch_size: Not used, like `max_batch_size` and `device`: the stack decides.
    """

    def __init__(
        self,
        config: str,
        overrides: str = "",
        seed: int | None = None,
        ledger_path: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__()
        changes = [change for change in overrides.split(";") if change]
        self.llm = load_stack(config, [*changes, *([] if seed is None else [f"seed={seed}"])])
        self.ledger_path = None if ledger_path is None else Path(ledger_path)
        self._has_warned = False

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answer requests of (context, generation arguments), concurrently as far as the stack allows.

        If one request fails, finished answers are kept in the ledger file and in the harness's cache (`--use_cache`),
        so a rerun with the cache repeats only the others.

        Raises:
            Exception: The first failure, once all have ended; no empty text stands in for it.
        """
        results = [self.llm.generate_async(request.args[0]) for request in requests]
        failures = [error for result in results if (error := result.exception()) is not None]
        texts = []
        for request, result in zip(requests, results, strict=True):
            if result.exception() is not None:
                continue
            text = self._stops(request.args[1]).cut(behind_thinking(result))
            self._keep(request, result.outputs[0].text, told(result))
            self.cache_hook.add_partial("generate_until", request.args, text)
            texts.append(text)
        if failures:
            _log.error("%d of %d requests failed; the other answers are kept", len(failures), len(requests))
            raise failures[0]
        return texts

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        raise NotImplementedError("a stack generates; choose tasks of output_type generate_until")

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        raise NotImplementedError("a stack generates; choose tasks of output_type generate_until")

    def _stops(self, arguments: dict[str, Any]) -> StopStrings:
        asked = sorted(name for name in _OF_THE_STACK if name in arguments)
        if asked and not self._has_warned:
            self._has_warned = True
            _log.warning("the stack file decides how to sample; ignoring the task's %s", ", ".join(asked))
        until = arguments.get("until") or []
        return StopStrings(tuple(filter(None, [until] if isinstance(until, str) else until)))

    def _keep(self, request: Instance, text: str | None, fields: dict[str, Any]) -> None:
        if self.ledger_path is not None:
            self.ledger_path.parent.mkdir(parents=True, exist_ok=True)
            row = {"task": request.task_name, "doc_id": request.doc_id, "text": text, **fields}
            with self.ledger_path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, default=as_json) + "\n")


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
