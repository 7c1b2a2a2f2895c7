"""The directions in which the loss is most curved."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchbayes.checks import as_seed, check_choice, check_counts, check_memory
from torchbayes.geometry.lanczos import Leading, leading
from torchbayes.geometry.operators import MATRICES, Matrix, Products
from torchbayes.geometry.single import Weights, place_of
from torchbayes.model.model import Model
from torchbayes.posteriors.problems import note
from torchbayes.randomness.seeds import Purpose, generator

_ENOUGH = 0.01  # residual, relative to the eigenvalue, up to which an eigenvector counts as converged


def curved_directions(
    model: Model,
    data: Any,
    weights: Weights,
    *,
    rank: int = 5,
    matrix: Matrix = "ggn",
    steps: int = 60,
    seed: int = 0,
    chunk_size: int = 1024,
) -> Leading:
    """Return the eigenvectors of the curvature of the summed loss with the largest eigenvalues, by Lanczos.

    The data determine these directions best, and a posterior is narrowest along them: `Subspace(model, weights,
    leading.vectors_RD)` is a subspace along them. The matrix is that of `spectrum`. Cost: `steps` products with a
    vector, and memory for `steps` times D numbers.

    Args:
        model: the model.
        data: as for `fit`.
        weights: where: a point posterior of one member, a module, or a tensor (D,).
        rank: R, directions.
        matrix: `hessian` or `ggn`; with `+prior`, −∇² log p(w) is added.
        steps: of the iteration, at least `rank`.
        seed: seed of the starting vector.
        chunk_size: rows that go through the network at once.

    Returns:
        Eigenvalues (R,), float64, largest absolute value first, eigenvectors (R, D), and how far each product
        with the matrix is from the value times the vector. Fewer than R where the matrix has a lower rank.

    Raises:
        TypeError: as for `spectrum`.
        ValueError: as for `spectrum`, or if there are fewer steps than directions, or more directions than
            weights.
    """
    check_choice(MATRICES, matrix=matrix)
    check_counts(rank=rank, steps=steps, chunk_size=chunk_size)
    seed, place = as_seed(seed), place_of(model, data, weights)
    size = place.weights_D.numel()
    if rank > min(steps, size):
        raise ValueError(
            f"`rank` must be at most the {min(steps, size)} {'steps' if steps < size else 'weights'}; got {rank}."
        )
    check_memory(steps * place.weights_D.nbytes, "the vectors of the iteration", place.weights_D.device, steps=steps)
    start_D = torch.randn(size, generator=generator(Purpose.CURVED, seed), dtype=torch.float64)
    pairs = leading(Products(place, matrix, chunk_size), start_D.to(place.weights_D), steps, count=rank)
    is_nonzero = pairs.values_R.abs() > _rounding(pairs, place.weights_D)
    pairs = Leading(*(part[is_nonzero.to(part.device)] for part in pairs))
    loose = pairs.residuals_R > _ENOUGH * pairs.values_R.abs()
    if loose.any():
        note(
            f"{int(loose.sum())} of {len(loose)} directions have not converged in {steps} steps, the first of them to "
            f"{float((pairs.residuals_R / pairs.values_R.abs()).max()):.0%}. Raise `steps`."
        )
    return pairs


def _rounding(found: Leading, like: Tensor) -> float:
    """Return the size below which an eigenvalue is rounding error."""
    return 100 * torch.finfo(like.dtype).eps * float(found.values_R.abs().max())
