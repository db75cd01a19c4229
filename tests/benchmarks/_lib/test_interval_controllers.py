"""A controller that decodes chains an interval at a time, on chains made by hand."""

from benchmarks._lib.interval_controllers import INTERVAL, Chain, confidence_momentum


def chain(answer: int, num_intervals: int, rest: int = 100) -> Chain:
    """A chain that gives its answer at every probe."""
    return Chain(answer, num_intervals * INTERVAL + rest, (answer,) * num_intervals)


def test_confidence_momentum_opens_no_chain_while_confidence_grows() -> None:
    agreed = confidence_momentum([chain(1, 8)] * 64)
    split = confidence_momentum([chain(number % 4, 8 + number % 7) for number in range(64)])
    assert agreed.answer == 1
    assert agreed.num_tokens < split.num_tokens / 2


def test_confidence_momentum_drops_what_keeps_disagreeing() -> None:
    chains = [*[chain(1, 1)] * 4, chain(2, 60), chain(1, 60)]
    spread = confidence_momentum([*chains[:4], chain(1, 60), chain(1, 60)])
    assert confidence_momentum(chains).answer == spread.answer == 1


def test_more_beta_spends_more() -> None:
    chains = [chain(number % 3, 4 + number % 5) for number in range(64)]
    spent = [confidence_momentum(chains, beta=beta).num_tokens for beta in (0.0, 0.5, 1.0)]
    assert spent == sorted(spent)
    assert spent[0] < spent[-1]
