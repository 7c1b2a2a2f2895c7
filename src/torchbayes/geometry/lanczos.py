"""The Lanczos iteration with full reorthogonalisation, for several starting vectors in step.

    A Q_m = Q_m T_m + β_m q_{m+1} e_mᵀ,     Q_mᵀ Q_m = I,     T_m = Y Θ Yᵀ tridiagonal

The Gauss rule q_1ᵀ f(A) q_1 = Σ_i ω_i f(θ_i), ω_i = Y_{1i}², is exact for polynomials f of degree up to 2m − 1
(Golub and Welsch 1969). Because |A Q y_i − θ_i Q y_i| = β_m |Y_{mi}|, an eigenvalue lies within that distance of
θ_i.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

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
    rules = []
    for probe, taken in enumerate(run.taken):
        values_K, vectors_KK, residuals_K = _ritz(run, probe)
        rules.append(Ritz(values_K[None], vectors_KK[:1].square(), residuals_K[None], (taken,)))
    return joined(rules)


def joined(rules: Sequence[Ritz]) -> Ritz:
    """Return the rules of several calls as one."""
    longest = max(rule.values_PK.shape[1] for rule in rules)

    def widened(tables: Iterable[Tensor], mode: str) -> Tensor:
        return torch.cat([functional.pad(table, (0, longest - table.shape[1]), mode=mode) for table in tables])

    return Ritz(
        widened((rule.values_PK for rule in rules), "replicate"),
        widened((rule.weights_PK for rule in rules), "constant"),
        widened((rule.residuals_PK for rule in rules), "replicate"),
        tuple(step for rule in rules for step in rule.steps),
    )


def leading(product: Callable[[Tensor], Tensor], start_D: Tensor, steps: int, *, count: int) -> Leading:
    """Return the `count` Ritz values θ of largest absolute value, their vectors Q y, and |A Q y − θ Q y| of each.

    `product` and errors are as for `lanczos`. There are fewer than `count` where the iteration ends before.
    """
    run = _iterated(product, start_D.unsqueeze(0), steps)
    values_K, vectors_KK, residuals_K = _ritz(run, 0)
    chosen = values_K.abs().argsort(descending=True)[:count]
    vectors_RD = vectors_KK[:, chosen].T.to(start_D) @ run.basis_PKD[0, : run.taken[0]]
    return Leading(values_K[chosen], vectors_RD, residuals_K[chosen])


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
        block, chunk = basis_KD[:, start : start + width], vector_D[start : start + width]
        chunk.addmv_(block.T, first_K, alpha=-1)
        second_K.addmv_(block, chunk)
    vector_D.addmv_(basis_KD.T, second_K, alpha=-1)
    return first_K + second_K


def _ritz(run: _Run, probe: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return Ritz values, ascending, eigenvectors of the tridiagonal matrix, (K, K), and residuals of a probe."""
    steps = run.taken[probe]
    diagonal_K, beside_K = run.diagonal_PK[probe, :steps], run.beside_PK[probe, : steps - 1]
    matrix_KK = torch.diag(diagonal_K) + torch.diag(beside_K, 1) + torch.diag(beside_K, -1)
    values_K, vectors_KK = torch.linalg.eigh(matrix_KK)
    return values_K, vectors_KK, run.beside_PK[probe, steps - 1] * vectors_KK[-1].abs()
