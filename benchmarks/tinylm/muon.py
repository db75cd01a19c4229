"""Muon in single precision, for processors without bfloat16 units."""

from __future__ import annotations

from collections.abc import Iterable

import torch

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic with the steepest slope at zero
_NUM_ITERATIONS = 5


class Muon(torch.optim.Optimizer):  # type: ignore[misc]  # torch is not followed by the type checker
    """Gradient descent whose momentum is orthogonalised before each step; for matrices alone.

    Prefer it to `torch.optim.Muon` on a CPU: that one orthogonalises in bfloat16, which takes fifteen times as long
    there where the processor has no units for it, and two thirds of a whole training step of the embedded models.

    Args:
        params: Matrices.
        lr: Learning rate; a matrix with more rows than columns takes sqrt(rows / columns) times as much.
        momentum: Share of the running mean that each step keeps, in [0, 1).
        weight_decay: Decoupled, a share of the weights for each unit of the learning rate.

    Reference: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024).
    Deviation: Matrices of one shape are orthogonalised together, in the type that the parameters have.
    """

    def __init__(
        self, params: Iterable[torch.Tensor], lr: float = 0.006, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def step(self) -> None:  # type: ignore[override, unused-ignore]
        (group,) = self.param_groups
        by_shape: dict[torch.Size, list[torch.Tensor]] = {}
        for parameter in group["params"]:
            by_shape.setdefault(parameter.shape, []).append(parameter)
        for (num_rows, num_columns), parameters in by_shape.items():
            updates = orthogonalize(torch.stack([self._momentum(each, group["momentum"]) for each in parameters]))
            scale = group["lr"] * max(1.0, num_rows / num_columns) ** 0.5
            for parameter, update in zip(parameters, updates, strict=True):
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-scale)

    def _momentum(self, parameter: torch.Tensor, momentum: float) -> torch.Tensor:
        """The gradient looked ahead along its running mean (Nesterov)."""
        mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
        return parameter.grad.lerp(mean.lerp_(parameter.grad, 1 - momentum), momentum)


def orthogonalize(matrices: torch.Tensor) -> torch.Tensor:
    """Move the singular values of each matrix near to one, by Newton-Schulz iteration.

    Args:
        matrices: Of shape (number, rows, columns).

    Returns:
        Matrices of the same singular vectors, with singular values of about 0.7 to 1.2 wherever they were not zero.
    """
    a, b, c = _COEFFICIENTS
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)  # no singular value is above one
    for _ in range(_NUM_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x
