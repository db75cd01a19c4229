"""A pre-flight's findings on one page of 80 columns, and as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaffolding_ext.evaluation.preflight.arms import TARGET_ALONE
from scaffolding_ext.evaluation.preflight.worth import ArmForecast, PreflightFindings, SignalQuality
from scaffolding_ext.evaluation.tables import amount
from scaffolding_ext.stats.intervals import Estimate

_POOLS = {
    "calibrated": "a calibration on half of these questions",
    "growing": "pools that grow (8 questions a turn first)",
    "first_turn": "the first turn's pool",
}


def gates_of(found: PreflightFindings) -> dict[str, bool]:
    """Yes or no for each gate: yes only where the whole 95 % interval says so."""
    gates: dict[str, bool] = {}
    for name, signal in (("score knows chains", found.score), ("verdict knows chains", found.verdict)):
        if signal is not None:
            gates[name] = signal.within.low > 0.5
    if found.first_score is not None:
        gates["score knows questions"] = found.first_score.across.low > 0.5
    for name, begins in (("take-over pays", "draft/target"), ("router pays", "router"), ("judge pays", ", ")):
        own = [each.pays for each in found.forecasts if begins in each.name and _is_of(name, each)]
        told = [pays for pays in own if pays is not None]
        if told:
            gates[name] = any(told)
    if found.skip_gate is not None:
        gates["skip gate pays"] = found.skip_gate.passes > 0 and found.skip_gate.loss.high <= 0.05
    return gates


def _is_of(gate: str, forecast: ArmForecast) -> bool:
    return gate != "judge pays" or forecast.name.endswith("by verdict")


def text_of(found: PreflightFindings) -> str:
    price = found.price
    num_questions = len(found.arms[0].by_question)
    lines = [f"Pre-flight on {num_questions} questions; intervals are 95 %, from resampling questions.", ""]
    unit = price.unit
    scale, shown = (1000.0, "ms") if unit == "s" else (1.0, unit)
    told = {"draft": price.draft, "target": price.target, "scored": price.scored, "judged": price.judged}
    lines.append(
        f"a token costs ({shown}): " + ", ".join(f"{name} {scale * each:.3g}" for name, each in told.items() if each)
    )
    lines += ["", f"{'a question':32}{'draft':>9}{'target':>9}{'scored':>9}{'judged':>9}  tokens"]
    for arm in found.arms:
        sums = [
            sum(getattr(chain, name) for chain in arm.chains) / num_questions
            for name in ("num_draft", "num_target", "num_scored", "num_judged")
        ]
        lines.append(
            f"{_cut(f'{arm.name}, {arm.num_chains} chains'):32}" + "".join(f"{amount(each):>9}" for each in sums)
        )
    lines += ["", f"{'AUC for a right answer':32}{'within a question':>24}{'across':>24}"]
    signals = (("score of the chunks", found.score), ("first chunk's score", found.first_score))
    for name, signal in (*signals, ("verdict", found.verdict)):
        if signal is not None:
            lines.append(f"{name:32}{_auc(signal.within):>24}{_auc(signal.across):>24}")
    if found.coins:
        lines += ["", "decisions by coin, %"]
        lines += [f"  {_POOLS[name]:46}{100 * share:6.1f}" for name, share in found.coins.items()]
        lines += ["", "one calibration on half, applied to the other half: rate, %"]
        lines += [
            f"  alpha {each.alpha:<8g}{100 * each.rate.value:6.1f} ({100 * each.rate.low:.0f} to "
            f"{100 * each.rate.high:.0f} in 95 % of the halves)"
            for each in found.calibrations
        ]
    lines += ["", f"{'right, %':32}{'n':>3}{'accuracy':>19}{'cost':>9}{'over target':>17}"]
    for each in found.forecasts:
        gain = "" if each.gain is None else _points(each.gain)
        cost = amount(each.cost)
        lines.append(f"{_cut(each.name):32}{each.num_chains:>3}{_percent(each.accuracy):>19}{cost:>9}{gain:>17}")
    lines.append(f"cost: {'seconds' if unit == 's' else unit} of all models for a question. Last column: points above")
    lines.append("votes of the target alone (without a target: of the samples) at this cost.")
    if found.completion is not None:
        alone, in_step, large = found.completion
        lines.append(
            f"last chain ends, {unit}, calls side by side: {alone:.3g}, in step {in_step:.3g}, target alone {large:.3g}"
        )
    if found.skip_gate is not None:
        lines.append(
            f"skip gate passes {100 * found.skip_gate.passes:.0f} % of the questions and loses there, points: "
            f"{_points(found.skip_gate.loss)}"
        )
    lines.append("")
    lines += [f"{name + ':':24}{'yes' if says else 'no'}" for name, says in gates_of(found).items()]
    if all(arm.name != TARGET_ALONE for arm in found.arms) and found.score is not None:
        lines.append("not recorded: the target alone; whether a take-over pays needs it.")
    return "\n".join(line.rstrip() for line in lines)


def document_of(found: PreflightFindings) -> dict[str, Any]:
    return {
        "num_questions": len(found.arms[0].by_question),
        "price": found.price._asdict(),
        "score": _signal(found.score),
        "first_score": _signal(found.first_score),
        "verdict": _signal(found.verdict),
        "decided_by_coin": found.coins,
        "one_calibration": [{"alpha": each.alpha, **each.rate._asdict()} for each in found.calibrations],
        "forecasts": [_forecast(each) for each in found.forecasts],
        "completion": None if found.completion is None else found.completion._asdict(),
        "skip_gate": None
        if found.skip_gate is None
        else {"passes": found.skip_gate.passes, "loss": found.skip_gate.loss._asdict()},
        "gates": gates_of(found),
    }


def _signal(signal: SignalQuality | None) -> Mapping[str, Any] | None:
    if signal is None:
        return None
    return {"within": signal.within._asdict(), "across": signal.across._asdict(), "num_mixed": signal.num_mixed}


def _forecast(each: ArmForecast) -> dict[str, Any]:
    told = each._asdict() | {"accuracy": each.accuracy._asdict(), "pays": each.pays}
    return told | {"gain": None if each.gain is None else each.gain._asdict()}


def _auc(each: Estimate) -> str:
    return f"{each.value:.2f} ({each.low:.2f} to {each.high:.2f})"


def _percent(each: Estimate) -> str:
    return f"{100 * each.value:.1f} ({100 * each.low:.0f} to {100 * each.high:.0f})"


def _points(each: Estimate) -> str:
    return f"{100 * each.value:+.1f} ({100 * each.low:+.0f}, {100 * each.high:+.0f})"


def _cut(text: str) -> str:
    return text if len(text) <= 31 else text[:30] + "…"
