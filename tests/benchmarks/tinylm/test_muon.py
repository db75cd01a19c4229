"""Muon: one step by hand, orthogonal updates, and torch's own Muon as the reference."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from benchmarks.tinylm.muon import Muon, orthogonalize  # noqa: E402  # needs torch


def matrix(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(8, 8), (6, 20), (20, 6)])
def test_singular_values_move_near_to_one_and_vectors_stay(shape: tuple[int, int]) -> None:
    given = matrix(3, *shape)
    found = orthogonalize(given)
    for one, other in zip(given, found, strict=True):
        u, values, v = torch.linalg.svd(one, full_matrices=False)
        rotated = u.T @ other @ v.T
        large = values > 0.05 * values.max()
        diagonal = rotated.diagonal()[large]
        assert ((diagonal > 0.6) & (diagonal < 1.3)).all()
        off_diagonal = rotated - torch.diag(rotated.diagonal())
        assert off_diagonal.abs().max() < 1e-3


def test_matrices_that_are_stacked_do_not_touch_each_other() -> None:
    stacked = matrix(4, 5, 7)
    for alone, together in zip(stacked, orthogonalize(stacked), strict=True):
        torch.testing.assert_close(orthogonalize(alone[None])[0], together)


def test_no_gradient_leads_nowhere() -> None:
    assert torch.equal(orthogonalize(torch.zeros(1, 3, 4)), torch.zeros(1, 3, 4))


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch 2.9 and newer have a Muon of their own")
def test_steps_agree_with_torchs_muon_up_to_bfloat16() -> None:
    ours = [torch.nn.Parameter(matrix(12, 30)), torch.nn.Parameter(matrix(30, 12)), torch.nn.Parameter(matrix(12, 30))]
    theirs = [torch.nn.Parameter(parameter.detach().clone()) for parameter in ours]
    optimizers = (
        Muon(ours, lr=0.05, momentum=0.9, weight_decay=0.1),
        torch.optim.Muon(theirs, lr=0.05, momentum=0.9, weight_decay=0.1),
    )
    started = [parameter.detach().clone() for parameter in ours]
    for step in range(3):
        for i, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            one.grad = matrix(*one.shape, seed=10 * step + i)
            other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for start, one, other in zip(started, ours, theirs, strict=True):
        assert (one - other).norm() < 0.05 * (one - start).norm()


def test_a_parameter_without_gradient_stays_and_the_closure_is_called() -> None:
    parameter = torch.nn.Parameter(matrix(3, 3))
    before = parameter.detach().clone()
    assert Muon([parameter]).step(lambda: 2.5) == 2.5
    assert torch.equal(parameter, before)


def test_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match=r"takes matrices, not a parameter of shape \(3,\)"):
        Muon([torch.nn.Parameter(torch.zeros(3))])
