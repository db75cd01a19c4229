"""How many questions a calibration needs."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from scaffolding_ext.cli.main import main
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.calibrate.enough import needed_for_agreement, needed_for_rate


@pytest.mark.parametrize("alpha", [0.1, 0.4])
def test_with_enough_questions_the_rate_is_near_and_with_half_of_them_it_is_not(alpha: float) -> None:
    """Simulated: uniform scores, the rate of a threshold at the rank that alpha gives."""
    rng = np.random.default_rng(0)

    def near(num: int) -> float:
        rank = max(1, int((num + 1) * alpha))
        rates = np.sort(rng.random((4000, num)), axis=1)[:, rank - 1]
        return float((np.abs(rates - alpha) <= 0.1).mean())

    enough = needed_for_rate(alpha).enough
    assert near(enough) >= 0.9 - 0.02  # three standard errors of 4,000 draws
    assert near(enough // 2) < 0.9


def test_numbers_by_hand() -> None:
    assert needed_for_rate(0.1).least == 9  # a p-value among eight scores is at least 1 / 9
    assert needed_for_agreement(0.99).enough == 230  # .99 ** 230 is below .1
    assert needed_for_agreement(1.0).enough > 2000
    assert needed_for_agreement(0.99).check(230) is None
    told = needed_for_agreement(0.99).check(10)
    assert told is not None
    assert "10 questions are few: 230 are needed" in told
    with pytest.raises(ConfigError, match="has 3 questions; a calibration needs at least 4, and 230"):
        needed_for_agreement(0.99).check(3)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["conformal", "--config", "configs:conformal_draft_target", "--alpha", "0.1"], "needs at least 9, and"),
        (["branching", "--config", "configs:kv_share_branching"], "needs at least 4, and 230"),
    ],
)
def test_three_questions_are_refused_before_anything_runs(command: list[str], told: str) -> None:
    result = CliRunner().invoke(main, ["calibrate", *command, "--limit", "3", "--output_path", "out.yaml"])
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())
