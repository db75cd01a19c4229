"""Answers in OpenAI's shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scaffolding_ext.controllers.chain.ending import forced_answers
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol.notes import Purpose
from scaffolding_ext.request.program import Program
from scaffolding_ext.request.results import ScaffoldingResult
from scaffolding_ext.serving.texts import Reading, Shown

_NO_SHARE = {"audio_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}


def finish_reason(result: ScaffoldingResult, shown: Shown) -> str:
    """`length` if a budget ended the text, otherwise `stop`."""
    return "length" if result.exit_reason == "length" and not shown.is_stopped else "stop"


def extras(result: ScaffoldingResult, seed: int | None, with_trace: bool) -> dict[str, Any]:
    """The field `scaffolding` of a choice: answer, exit reason, ledger, seed, what was forced, perhaps the trace."""
    program = result.program
    bounds = [event for event in program.trace if event["event"] == "thinking_budget"]
    forced = forced_answers(program.trace)
    return {
        "id": program.identity.id,
        "answer": result.answer,
        "exit_reason": result.exit_reason,
        "ledger": program.ledger.to_json(),
        "seed": seed,
        **({"thinking_budget": bounds} if bounds else {}),
        **({"forced_answers": forced} if forced else {}),
        **({"trace": program.trace} if with_trace else {}),
    }


def usage(programs: Sequence[Program], num_prompt_tokens: int | None, num_shown_tokens: int | None) -> dict[str, Any]:
    """The tokens that a request has used: its prompt once, and all decoded tokens, whatever their purpose.

    Args:
        programs: The programs of its choices.
        num_prompt_tokens: Tokens of its prompts; None takes the tokens of the first read.
        num_shown_tokens: Tokens of the text that the client sees; None if thinking cannot be told apart.
    """
    decoded: dict[str, int] = {}
    read = []
    for program in programs:
        for kind, counts in program.ledger.by_purpose.items():
            if kind == Purpose.PROMPT:
                read.append(counts)
            if counts.decoded:
                name = f"{kind}_tokens"
                decoded[name] = decoded.get(name, 0) + counts.decoded
    prompt = read[0].prefilled + read[0].reused if num_prompt_tokens is None and read else num_prompt_tokens or 0
    completion = sum(decoded.values())
    reasoning = 0 if num_shown_tokens is None else max(0, completion - num_shown_tokens)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": min(prompt, sum(counts.reused for counts in read)),
            "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": reasoning,
            **_NO_SHARE,
            **decoded,
        },
    }


def chat_logprobs(result: ScaffoldingResult, reading: Reading, prompting: Prompting, num_top: int) -> dict[str, Any]:
    """Log-probabilities of the answer's tokens, in the shape of `/v1/chat/completions`."""
    entries, text = [], ""
    is_said = reading.think_close is None
    for token, step in _steps(result):
        written = prompting.decode([token])
        if is_said:
            tops = sorted(step.items(), key=lambda item: -item[1].logprob)[:num_top]
            entries.append(
                {
                    **_entry(written, step[token].logprob),
                    "top_logprobs": [_entry(prompting.decode([name]), each.logprob) for name, each in tops],
                }
            )
        text += written
        is_said = is_said or (reading.think_close or "") in text
    return {"content": entries, "refusal": None}


def text_logprobs(result: ScaffoldingResult, prompting: Prompting, num_top: int) -> dict[str, Any]:
    """Log-probabilities of a text's tokens, in the shape of `/v1/completions`."""
    tokens, values, tops, offsets, offset = [], [], [], [], 0
    for token, step in _steps(result):
        written = prompting.decode([token])
        best = sorted(step.items(), key=lambda item: -item[1].logprob)[:num_top]
        tokens.append(written)
        values.append(step[token].logprob)
        tops.append({prompting.decode([name]): each.logprob for name, each in best})
        offsets.append(offset)
        offset += len(written)
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}


def _steps(result: ScaffoldingResult) -> list[tuple[int, Any]]:
    output: Any = result.outputs[0]
    return list(zip(output.token_ids or (), getattr(output, "logprobs", None) or (), strict=False))


def _entry(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}
