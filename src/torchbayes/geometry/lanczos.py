"""The Lanczos iteration with full reorthogonalisation, for several starting vectors in step.

    A Q_m = Q_m T_m + β_m q_{m+1} e_mᵀ,     Q_mᵀ Q_m = I,     T_m = Y Θ Yᵀ tridiagonal

The Gauss rule q_1ᵀ f(A) q_1 = Σ_i ω_i f(θ_i), ω_i = Y_{1i}², is exact for polynomials f of degree up to 2m − 1
(Golub and Welsch 1969). Because |A Q y_i − θ_i Q y_i| = β_m |Y_{mi}|, an eigenvalue lies within that distance of
θ_i.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

_BLOCK = 2**18  # numbers of the basis that are used twice while they are in the cache
_ASYMMETRY = 1e-3  # of a product, relative to the largest entry of T
_STOP = 1e-10  # β, relative to the largest entry of T, at which the space is invariant


class Ritz(NamedTuple):
    """Gauss rules, one for each starting vector."""

    values_PK: Tensor  # Ritz values, ascending, float64; a probe of fewer steps repeats its last one
    weights_PK: Tensor  # sum to one; 0 where a value is repeated
    residuals_PK: Tensor  # bounds on the distance of each value to an eigenvalue
    steps: tuple[int, ...]  # of each probe


class Leading(NamedTuple):
    """Ritz values of largest absolute value.

    Attributes:
        values_R: float64, largest absolute value first.
        vectors_RD: orthonormal.
        residuals_R: bounds on how far each value is from an eigenvalue.
    """

    values_R: Tensor
    vectors_RD: Tensor
    residuals_R: Tensor


class _Run(NamedTuple):
    """An iteration: the diagonals of T, (P, m), the steps taken, and Q, (P, m, D)."""

    diagonal_PK: Tensor
    beside_PK: Tensor
    taken: list[int]
    basis_PKD: Tensor


def lanczos(product: Callable[[Tensor], Tensor], start_PD: Tensor, steps: int) -> Ritz:
    """Return the Gauss rules of a symmetric matrix at several vectors that are not zero, in `steps` steps at most.

    `product` maps vectors (P, D) to their products with the matrix; it gets fewer vectors once some probes have
    ended. Every new vector is made orthogonal to all earlier ones twice. Memory: P times `steps` times D numbers.
    Raises a ValueError if the products show that the matrix is not symmetric.
    """
    run = _iterated(product, start_PD, steps)
    return _rules(run.diagonal_PK, run.beside_PK, run.taken)


def leading(product: Callable[[Tensor], Tensor], start_D: Tensor, steps: int, *, count: int) -> Leading:
    """Return the `count` Ritz values θ of largest absolute value, their vectors Q y, and |A Q y − θ Q y| of each.

    `product` and errors are as for `lanczos`. There are fewer than `count` where the iteration ends before.
    """
    run = _iterated(product, start_D.unsqueeze(0), steps)
    taken = run.taken[0]
    values_K, vectors_KK = torch.linalg.eigh(_tridiagonal(run.diagonal_PK[0, :taken], run.beside_PK[0, : taken - 1]))
    chosen = values_K.abs().argsort(descending=True)[:count]
    vectors_RD = vectors_KK[:, chosen].T.to(start_D) @ run.basis_PKD[0, :taken]
    return Leading(values_K[chosen], vectors_RD, run.beside_PK[0, taken - 1] * vectors_KK[-1, chosen].abs())


def _iterated(product: Callable[[Tensor], Tensor], start_PD: Tensor, steps: int) -> _Run:
    """Return the tridiagonal matrices of an iteration, and its bases."""
    probes, size = start_PD.shape
    steps = min(steps, size)
    basis_PKD = start_PD.new_empty(probes, steps, size)
    diagonal_PK = torch.zeros(probes, steps, dtype=torch.float64)
    beside_PK = torch.zeros(probes, steps, dtype=torch.float64)
    taken = [steps] * probes
    vectors_PD = start_PD / start_PD.norm(dim=1, keepdim=True)
    alive = list(range(probes))
    floor = max(_STOP, 10 * torch.finfo(start_PD.dtype).eps)
    for step in range(steps):
        for place, probe in enumerate(alive):
            basis_PKD[probe, step] = vectors_PD[place]
        new_PD, remaining = product(vectors_PD), []
        for place, probe in enumerate(alive):
            projections = _orthogonalise_(new_PD[place], basis_PKD[probe, : step + 1])
            diagonal_PK[probe, step] = float(projections[step])
            beside_PK[probe, step] = beta = float(new_PD[place].norm())
            largest = max(float(diagonal_PK[probe].abs().max()), float(beside_PK[probe].max()))
            _check_symmetric(projections[:step].double().cpu(), beside_PK[probe, :step], largest)
            if beta <= floor * largest:
                taken[probe] = step + 1
            else:
                remaining.append(place)
        if not remaining or step + 1 == steps:
            break
        vectors_PD = new_PD[remaining]
        alive = [alive[place] for place in remaining]
        vectors_PD /= beside_PK[alive, step].to(vectors_PD).unsqueeze(1)
    return _Run(diagonal_PK, beside_PK, taken, basis_PKD)


def _check_symmetric(found_K: Tensor, beside_K: Tensor, largest: float) -> None:
    """Check the coordinates of a product along all but the last vector: zeros and then β for a symmetric matrix."""
    if not len(found_K):
        return
    error = float(torch.cat([found_K[:-1], found_K[-1:] - beside_K[-1:]]).abs().max())
    if error > _ASYMMETRY * largest:
        raise ValueError(
            f"the matrix is not symmetric: products differ from those of a symmetric one by {error:.3g}, of a largest "
            f"entry of {largest:.3g}. A layer has a wrong second derivative, such as a `torch.autograd.Function` that "
            f"is differentiable once; write it in plain operations of torch."
        )


def _orthogonalise_(vector_D: Tensor, basis_KD: Tensor) -> Tensor:
    """Make a vector orthogonal to a basis, twice and in place, and return its coordinates in the basis.

    It works in blocks of columns: the second coordinates are summed while the block is still in the cache, so the
    basis is read three times instead of four.
    """
    first_K = basis_KD @ vector_D
    second_K = torch.zeros_like(first_K)
    width = max(_BLOCK // len(basis_KD), 1024)
    for start in range(0, len(vector_D), width):
        block, part = basis_KD[:, start : start + width], vector_D[start : start + width]
        part.addmv_(block.T, first_K, alpha=-1)
        second_K.addmv_(block, part)
    vector_D.addmv_(basis_KD.T, second_K, alpha=-1)
    return first_K + second_K


def _tridiagonal(diagonal_K: Tensor, beside_K: Tensor) -> Tensor:
    return torch.diag(diagonal_K) + torch.diag(beside_K, 1) + torch.diag(beside_K, -1)


def _rules(diagonal_PK: Tensor, beside_PK: Tensor, taken: list[int]) -> Ritz:
    """Return the Gauss rules of tridiagonal matrices."""
    longest = max(taken)
    values_PK, weights_PK, residuals_PK = torch.zeros(3, len(taken), longest, dtype=torch.float64)
    for probe, steps in enumerate(taken):
        matrix_KK = _tridiagonal(diagonal_PK[probe, :steps], beside_PK[probe, : steps - 1])
        values_K, vectors_KK = torch.linalg.eigh(matrix_KK)
        values_PK[probe] = values_K[-1]
        values_PK[probe, :steps] = values_K
        weights_PK[probe, :steps] = vectors_KK[0].square()
        residuals_PK[probe] = beside_PK[probe, steps - 1] * vectors_KK[-1, -1].abs()
        residuals_PK[probe, :steps] = beside_PK[probe, steps - 1] * vectors_KK[-1].abs()
    return Ritz(values_PK, weights_PK, residuals_PK, tuple(taken))
