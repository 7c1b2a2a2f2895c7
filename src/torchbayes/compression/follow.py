"""New values of the weights that stay when others are set to zero: the conditional mean of a Gaussian.

    E(w_R | w_P = 0) = μ_R − Σ_RP Σ_PP⁻¹ μ_P,    or with Λ = Σ⁻¹    Λ_RR (E(w_R | w_P = 0) − μ_R) = Λ_RP μ_P

One weight at a time this is the update of the optimal brain surgeon (Hassibi and Stork 1993). Solves are by conjugate
gradients over the smaller of the two sets, for any covariance that multiplies vectors.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from torchbayes.compression.plain import Plain
from torchbayes.posteriors.posterior import Posterior

_ITERATIONS, _TOLERANCE = 300, 1e-6


@torch.no_grad()
def follow(posterior: Posterior, plain: Plain, gone: Mapping[str, Tensor]) -> None:
    """Move the weights of a network at the means, in place, to their expectation given that those in `gone` are zero.

    `gone` maps parameters to masks of elements. Raises a ValueError if the posterior has no covariance.
    """
    gaussian = getattr(posterior, "gaussian", None)
    if gaussian is None:
        raise ValueError("`surgeon` needs a covariance, which a point has not. Fit by Laplace, or prune without it.")
    layout, covariance = posterior.model.layout, gaussian.covariance
    mean_D = gaussian.mean_MD[0].double()
    zero_D = layout.join({
        name: gone.get(name, torch.zeros(shape, dtype=torch.bool, device=mean_D.device)).double()
        for name, shape in layout.shapes.items()
    }).bool()
    like = gaussian.mean_MD

    def times(operation: Callable[[Tensor], Tensor], vector_D: Tensor) -> Tensor:
        return operation(vector_D.to(like)[None])[0].double()

    if int(zero_D.sum()) <= zero_D.numel() // 2:
        shares_D = _solved(lambda v: times(covariance.matvec, v), mean_D, zero_D, covariance.diagonal()[0].double())
        moved_D = mean_D - times(covariance.matvec, shares_D)
    else:
        target_D = times(covariance.solve, torch.where(zero_D, mean_D, 0.0))
        scale_D = covariance.diagonal()[0].double().reciprocal()
        moved_D = mean_D + _solved(lambda v: times(covariance.solve, v), target_D, ~zero_D, scale_D)
    views = layout.split(moved_D)
    for name, parameter in plain.network.named_parameters():
        if name in views:
            parameter.copy_(views[name])


def _solved(product: Callable[[Tensor], Tensor], target_D: Tensor, where_D: Tensor, scale_D: Tensor) -> Tensor:
    """Return x, zero outside of a set, with (A x) = b inside it, by preconditioned conjugate gradients.

    `product` is A of a vector, `target_D` is b, `where_D` is the set, and `scale_D` approximates the diagonal of A.
    """
    solution_D = torch.zeros_like(target_D)
    residual_D = torch.where(where_D, target_D, 0.0)
    tolerance = _TOLERANCE * float(residual_D.norm())
    preconditioned_D = residual_D / scale_D
    direction_D, square = preconditioned_D, residual_D @ preconditioned_D
    for _ in range(_ITERATIONS):
        if float(residual_D.norm()) <= tolerance:
            return solution_D
        image_D = torch.where(where_D, product(direction_D), 0.0)
        step = square / (direction_D @ image_D)
        solution_D, residual_D = solution_D + step * direction_D, residual_D - step * image_D
        preconditioned_D = residual_D / scale_D
        square, before = residual_D @ preconditioned_D, square
        direction_D = preconditioned_D + (square / before) * direction_D
    share = float(residual_D.norm()) / (tolerance / _TOLERANCE)
    if share > 0.01:
        warnings.warn(
            f"the solve behind `surgeon` left {share:.1%} of its right-hand side after {_ITERATIONS} iterations: the "
            f"weights that stay follow in part.",
            stacklevel=4,
        )
    return solution_D
