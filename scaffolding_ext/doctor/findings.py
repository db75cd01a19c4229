"""Diagnoses of a stack's prompt, sampling and workers, one function each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from scaffolding_ext.answers import extract
from scaffolding_ext.answers.reading import SplitText, split_unknown
from scaffolding_ext.controllers.base import BaseController, attributes_of
from scaffolding_ext.controllers.chain.stopping.base import StoppingRule
from scaffolding_ext.controllers.chain.stopping.confidence import AnswerConfidence
from scaffolding_ext.doctor.exchange import Exchange, ServedTask, Written
from scaffolding_ext.prompts.model_files import config_of, family_name, written_marks
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.prompts.tokenizers import COLLECTIONS, model_folder
from scaffolding_ext.protocol.meta import CONTINUED_TURNS
from scaffolding_ext.protocol.worker import WorkerTag, declared, model_of
from scaffolding_ext.workers.shared.sampling_defaults import SamplingDefaults

if TYPE_CHECKING:
    from scaffolding_ext.stack.config import StackConfig

BOX = 'prompt: {prompt_suffix: "\\nPlease reason step by step, and put your final answer within \\\\boxed{}."}'
_MOST_UNCLOSED = 0.5  # of the ended chains, if the family is right
_TOKENIZER = "workers.generation.args.tokenizer: FOLDER_OR_HUB_NAME  # or --tokenizer; its files then tell the family"
_HIDDEN = 32  # tokens that may be missing from a text: marks and the end token


class Finding(NamedTuple):
    """Something about a stack that its owner should know.

    Attributes:
        name: Name of the diagnosis.
        message: The observation.
        change: The line of the stack file, or another step, that fixes it; empty if nothing needs to change.
        is_wrong: True if the stack should not be run as it is.
    """

    name: str
    message: str
    change: str = ""
    is_wrong: bool = True


class Examined(NamedTuple):
    """Input of the diagnoses.

    Attributes:
        config: The stack file.
        controller: The stack's outermost controller.
        prompting: Its prompting; None if prompts go to the model unchanged.
        exchanges: The questions and the replies.
        context_len: Maximum prompt and generated tokens of the worker `generation`; None if unknown.
    """

    config: StackConfig
    controller: Any
    prompting: Prompting | None
    exchanges: Sequence[Exchange]
    context_len: int | None = None

    @property
    def budget(self) -> int | None:
        """Tokens after the prompt that the stack's own limits allow; None if unknown."""
        if not isinstance(self.controller, BaseController):
            return None
        needs = self.controller.needs_by_tag().get(WorkerTag.GENERATION.value)
        return None if needs is None else needs.max_tokens

    @property
    def thinks(self) -> bool:
        """True if the model is treated as a reasoning model: it has marks of thinking, and prompts do not close it."""
        return self.prompting is not None and self.prompting.family.thinks and not self.prompting.closes_thinking

    @property
    def tokenized(self) -> Prompting | None:
        """The prompting, if the tokenizer is known."""
        return self.prompting if self.prompting is not None and self.prompting.has_tokenizer else None

    @property
    def written(self) -> list[Written]:
        """All chains of the requests that succeeded."""
        return [chain for exchange in self.exchanges if exchange.error is None for chain in exchange.written]

    @property
    def readings(self) -> list[tuple[Written, SplitText]]:
        """The chains, each split into thinking and answer."""
        prompting = self.prompting
        return [
            (chain, split_unknown(chain.text) if prompting is None else prompting.split(exchange.prompt, chain.text))
            for exchange in self.exchanges
            if exchange.error is None
            for chain in exchange.written
        ]

    @property
    def chains(self) -> list[ServedTask]:
        return [call for exchange in self.exchanges for call in exchange.chains]


def findings(examined: Examined) -> list[Finding]:
    """Run all diagnoses; problems come first."""
    said = [finding for diagnosis in DIAGNOSES for finding in diagnosis(examined)]
    return sorted(said, key=lambda finding: not finding.is_wrong)


def failed(examined: Examined) -> Iterator[Finding]:
    for exchange in examined.exchanges:
        if exchange.error is not None:
            yield Finding("failed", f"the question {exchange.question!r} failed: {exchange.error}", "see the message")
            return


def long_budget(examined: Examined) -> Iterator[Finding]:
    """The stack allows more tokens than fit into the worker's context behind a prompt."""
    budget, length = examined.budget, examined.context_len
    longest = max((len(call.task.input_tokens or ()) for call in examined.chains), default=0)
    if budget is None or length is None or budget + longest <= length:
        return
    is_lowered = examined.tokenized is not None
    fate = f"chains get {length - longest} tokens or fewer" if is_lowered else "the server refuses such requests"
    yield Finding(
        "budget",
        f"the stack's own budget, without --max_tokens, is {budget} tokens after the prompt, and the worker "
        f"takes {length} in all: {fate}",
        f"max_tokens: {max(1, length - 2 * longest - 1)}  # or serve the model with a longer context",
        is_wrong=not is_lowered,
    )


def no_prompting(examined: Examined) -> Iterator[Finding]:
    """Neither the stack nor a server renders the prompt."""
    prompting = examined.prompting
    if prompting is None or (examined.tokenized is None and not prompting.chat):
        yield Finding(
            "no_template",
            "prompts go to the model without its chat template: no worker names a model, or prompt is null",
            "prompt: {model: FOLDER_OR_HUB_NAME}",
            is_wrong=False,
        )


def no_box(examined: Examined) -> Iterator[Finding]:
    """Chains end without a readable answer."""
    ended = [reading for chain, reading in examined.readings if chain.has_ended]
    unread = [
        reading for reading in ended if extract(reading.answer if reading.has_thought else reading.thinking) is None
    ]
    if not unread:
        return
    answered = [exchange for exchange in examined.exchanges if exchange.error is None and exchange.written]
    lost = [exchange for exchange in answered if exchange.answer is None]
    message = f'{len(unread)} of {len(ended)} chains ended without \\boxed{{}} and without "the answer is"'
    prompt = examined.config.prompt
    asks = prompt is not None and prompt.prompt_suffix is not None and "boxed" in prompt.prompt_suffix
    insists = attributes_of(examined.controller).needs.continues_answers
    change = BOX
    if asks and insists:
        change = "controller.args.probe: {type: AnswerProbe, args: {max_tokens: 64}}  # room for the answer it asks for"
    elif asks:
        change = "controller: {type: DynasorCoTController}  # it asks for the answer if a chain ends without one"
        if any(CONTINUED_TURNS in declared(call.worker).refused for call in examined.chains):
            change += ", and needs workers.generation.args.endpoint: completions"
    if lost:
        yield Finding(
            "no_box", f"{message}, and the stack has no answer to {len(lost)} of {len(answered)} questions", change
        )
    else:
        yield Finding("no_box", f"{message}; the stack asked for the answer", "" if asks else change, is_wrong=False)


def no_thinking_mark(examined: Examined) -> Iterator[Finding]:
    """Thinking marks are missing from a reasoning model, or present in another model."""
    prompting = examined.prompting
    if prompting is None:
        return
    family = prompting.family
    written = examined.written
    if not examined.thinks:
        seen = next((marks for chain in written for marks in written_marks(chain.text)), None)
        if seen is not None:
            yield Finding(
                "no_thinking_mark",
                f"the family is {prompting.choice}, but the model writes {seen.think_open!r} or {seen.think_close!r}: "
                "probes and budgets mistake its thinking for the answer",
                _TOKENIZER if examined.tokenized is None else f"prompt: {{family: {family_name(seen)}}}",
            )
        return
    readings = examined.readings
    unopened = [reading for _, reading in readings if reading.has_thought and not reading.thinking]
    unclosed = [reading for chain, reading in readings if chain.has_ended and not reading.has_thought]
    if unclosed:
        which = f"{len(unclosed)} of {len(written)} chains ended without {family.think_close!r}"
        if prompting.choice.name == "gpt_oss":
            yield Finding(
                "no_thinking_mark",
                f"{which}: the server stops at <|end|>, which ends only the thinking",
                'in generation_config.json: "eos_token_id": [200002, 199999, 200012]',
            )
            return
        num_ended = sum(chain.has_ended for chain, _ in readings)
        if len(unclosed) <= _MOST_UNCLOSED * num_ended:
            message = f"{which}, and the others with it: the family is right, and these have no answer behind thinking"
            yield Finding("no_thinking_mark", message, is_wrong=False)
            return
        yield Finding(
            "no_thinking_mark",
            f"{which}: the family is {prompting.choice}; this model closes its thinking otherwise, or does not think",
            _TOKENIZER if examined.tokenized is None else "prompt: {family: instruct}",
        )
    elif unopened:
        yield Finding(
            "no_thinking_mark",
            f"neither the prompt nor the model opens thinking with {family.think_open!r} in {len(unopened)} of "
            f"{len(written)} chains, so the model may skip it",
            'prompt: {assistant_prefix: "<think>\\n"}' if family.think_open == "<think>" else "",
        )


def dropped_thinking(examined: Examined) -> Iterator[Finding]:
    """Thinking is generated but lost on the way."""
    prompting = examined.tokenized
    if prompting is not None and examined.thinks and prompting.shows_special:
        mark = prompting.family.think_close
        for call in examined.chains:
            flavor = getattr(call.worker, "flavor", None)
            if flavor is not None and flavor.shows_special is None:
                yield Finding(
                    "dropped_thinking",
                    f"the tokenizer has {mark!r} as a special token, and a server of flavor {flavor.name!r} cannot be "
                    "asked to show it, so the end of thinking goes unseen",
                    f'in the server\'s tokenizer_config.json, at {mark}: "special": false',
                )
                return
    if prompting is not None:
        for call in examined.chains:
            shown = len(prompting.encode(call.text) or ())
            if (
                call.num_decoded is not None
                and call.num_decoded > 2 * shown + _HIDDEN
                and call.finish_reason is not None
            ):
                yield Finding(
                    "dropped_thinking",
                    f"the worker counts {call.num_decoded} tokens, but its text has {shown}: the server hides the "
                    "thinking",
                    f"workers.{call.tag}.args.endpoint: completions, and start the server without a reasoning parser",
                )
                break
    yield from _dropped_by_chat(examined)


def _dropped_by_chat(examined: Examined) -> Iterator[Finding]:
    """A chat server continues an unfinished answer with a template that changes it."""
    for tag, worker in examined.config.workers.items():
        if worker.args.get("endpoint") != "chat" or not attributes_of(examined.controller).needs.continues_answers:
            continue
        try:
            prompting = Prompting.for_model(str(worker.args.get("tokenizer") or worker.args.get("model")))
        except Exception as error:  # the tokenizer is not available; only the server knows its template
            message = f"cannot check that the server's template keeps unfinished thinking: {error}"
            yield Finding("dropped_thinking", message, is_wrong=False)
            continue
        if prompting.changes_unfinished_turns:
            yield Finding(
                "dropped_thinking",
                "the chat template changes an unfinished answer that the server continues, so probes ask about a "
                "chain that the model does not see",
                f"workers.{tag}.args.endpoint: completions",
            )


def greedy_thinking(examined: Examined) -> Iterator[Finding]:
    """A reasoning model is decoded greedily."""
    prompting = examined.prompting
    if prompting is None or not examined.thinks or prompting.choice.name in COLLECTIONS:
        return
    greedy = [call for call in examined.chains if _temperature(call) == 0]
    if greedy:
        model = model_of(greedy[0].worker)
        own = config_of(model_folder(model), "generation_config.json") if model else {}
        temperature, top_p = own.get("temperature") or 0.6, own.get("top_p") or 0.95
        yield Finding(
            "greedy_thinking",
            f"{len(greedy)} of {len(examined.chains)} chains are decoded greedily, which makes reasoning models repeat "
            "themselves",
            f"sampling: {{temperature: {temperature}, top_p: {top_p}}}",
        )


def missing_logprobs(examined: Examined) -> Iterator[Finding]:
    """Requested log-probabilities did not come back."""
    for exchange in examined.exchanges:
        for call in exchange.calls:
            wanted = call.task.num_logprobs
            if wanted and not call.has_logprobs and call.text:
                yield Finding(
                    "missing_logprobs",
                    f"{type(call.worker).__name__} was asked for {wanted} log-probabilities and returned none",
                    f"workers: {{{call.tag}: {{type: ..., args: ...}}}}  # one that returns them (docs/servers.md), or "
                    "a rule, weight or scorer that needs none",
                )
                return


def stop_ids(examined: Examined) -> Iterator[Finding]:
    """The model continues past the end of its turn."""
    prompting = examined.tokenized
    if prompting is None or prompting.family.hidden:  # in harmony the end of a message is not the end of a turn
        return
    end = prompting.turn_end()
    if end is None:
        return
    is_line = end.shown.startswith("\n") and bool(end.shown.strip())  # "\nuser\n", say; a word may stand anywhere
    for call in examined.chains:
        passed = end.token_id is not None and end.token_id in (call.token_ids or [])[:-1]
        if not passed and not (is_line and end.shown in call.text):
            continue
        what = f"token {end.token_id}, which ends its turn" if passed else f"{end.shown!r}, the start of the next turn"
        changes = [f"sampling: {{stop: [{_quoted(end.shown)}]}}"] if is_line else []
        changes += [] if end.token_id is None else [f'in generation_config.json: "eos_token_id": [{end.token_id}]']
        message = f"a chain continues past {what}: the worker does not stop there"
        yield Finding("stop_ids", message, ", or ".join(changes))
        return


def unanswered_probe(examined: Examined) -> Iterator[Finding]:
    """Probes get no readable answer."""
    chains = [chain for exchange in examined.exchanges for chain in exchange.written]
    probes = [chain.probe for chain in chains if chain.probe is not None]
    silent = [probe for probe in probes if probe.answer is None]
    if probes and len(silent) == len(probes):
        needs = attributes_of(examined.controller).needs.continues_answers
        yield Finding(
            "unanswered_probe",
            f"{len(silent)} of {len(probes)} probes got no answer in a closed box, the first {silent[0].response!r}",
            "prompt: {family: ...}  # another family's probe, or controller.args.probe: {type: AnswerProbe, args: "
            "{max_tokens: 40}} for longer answers",
            is_wrong=needs,
        )


def out_of_reach(examined: Examined) -> Iterator[Finding]:
    seen = [confidence for exchange in examined.exchanges for confidence in exchange.confidences]
    rules = [rule for rule in _rules_in(examined.controller, set()) if isinstance(rule, AnswerConfidence)]
    if not seen or not rules:
        return
    least = min(rule.threshold for rule in rules)
    reached = sum(confidence >= least for confidence in seen)
    yield Finding(
        "threshold",
        f"{reached} of {len(seen)} probes reached the rule's confidence threshold of {least:g}; the highest was "
        f"{max(seen):.3f}",
        ""
        if reached
        else "the threshold of {type: confidence, args: {threshold: ...}} in controller.args.rule: lower, "
        "or without this rule {type: consecutive}, which requires only equal answers; `tune` chooses",
        is_wrong=False,
    )


def _rules_in(part: Any, seen: set[int]) -> Iterator[StoppingRule]:
    """Stopping rules of a controller, of its inner controllers, and of composite rules."""
    if id(part) in seen:
        return
    seen.add(id(part))
    if isinstance(part, StoppingRule):
        yield part
    for value in vars(part).values():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, StoppingRule | BaseController):
                yield from _rules_in(each, seen)


def never_ends(examined: Examined) -> Iterator[Finding]:
    """Every chain hit its token limit."""
    chains = [call for call in examined.chains if call.finish_reason is not None]
    cut = [call for call in chains if call.finish_reason == "length"]
    asked = [exchange for exchange in examined.exchanges if exchange.exit_reason == "length"]
    if chains and len(cut) == len(chains) and len(asked) == len(examined.exchanges):
        yield Finding(
            "never_ends",
            "every chain hit its token limit, so this check saw little of how chains end",
            "check --max_tokens N, with a larger N",
            is_wrong=False,
        )


DIAGNOSES: tuple[Callable[[Examined], Iterator[Finding]], ...] = (
    failed,
    long_budget,
    no_prompting,
    no_thinking_mark,
    dropped_thinking,
    greedy_thinking,
    stop_ids,
    no_box,
    missing_logprobs,
    unanswered_probe,
    out_of_reach,
    never_ends,
)


def _temperature(call: ServedTask) -> float | None:
    """Temperature of a call; None if only its server knows."""
    if call.task.temperature is not None:
        return call.task.temperature
    model = model_of(call.worker)
    if model is None or hasattr(call.worker, "flavor"):  # no model, or a server
        return None
    return SamplingDefaults.of_model(model_folder(model)).selection(call.task).temperature


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
