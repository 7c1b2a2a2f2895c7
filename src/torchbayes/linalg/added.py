"""Curvature and the precision of a correlated prior: what one task leaves to the next, in the structure of both."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbayes.linalg.curvature import Curvature
from torchbayes.linalg.kronecker import Factored
from torchbayes.linalg.structure import Form, Structure, aligned, unscaled


def plus_precision(curvature: Curvature, covariance: Structure, factor: float = 1.0) -> Curvature:
    """Return H + factor · Σ⁻¹ in the structure of H.

    Exact for dense, diagonal and equal blocks of them; `KroneckerCurvature.plus` says what the sum of two Kronecker
    products is.

    Args:
        curvature: H, in units of the weights.
        covariance: Σ, of one member.
        factor: on its inverse.

    Returns:
        The sum.

    Raises:
        ValueError: if the two do not add up to a structure.
    """
    scale_MD, inner = unscaled(covariance)
    found = curvature.plus(inner, factor**0.5 / scale_MD)
    if found is None:
        raise ValueError(
            f"a prior with {covariance.kind} covariance and a {curvature.kind} curvature do not add up to a structure. "
            f"Use structure='dense', or that of the earlier posterior where the prior is one."
        )
    return found


def precision_trace(prior: Structure, covariance: Structure) -> Tensor:
    """Return tr Σ₀⁻¹ Σ, float64 (M,), for a covariance Σ whose precision is a curvature plus Σ₀⁻¹.

    Args:
        prior: Σ₀, of one member.
        covariance: Σ, of M members.
    """
    (first_MD, inner), (second_MD, outer) = unscaled(prior), unscaled(covariance)
    return _trace(inner, outer, second_MD / first_MD)


def _trace(prior: Structure, covariance: Structure, scale_MD: Tensor) -> Tensor:
    """Return tr Σ₀⁻¹ diag(c) Σ diag(c), float64 (M,)."""
    groups = covariance.groups
    wheres = [group.where for group in groups if group.where is not None]
    same = aligned(wheres, prior) if len(wheres) == len(groups) > 0 else None
    if same is not None:
        each = zip(same, groups, wheres, strict=True)
        return torch.stack([_trace(own, group.structure, scale_MD[:, where]) for own, group, where in each]).sum(0)
    forms = [None if each.groups else each.form() for each in (prior, covariance)]
    if forms[0] is not None and forms[1] is not None:
        found = _trace_of_forms(forms[0], forms[1], scale_MD)
        if found is not None:
            return found
    inverse_MDD = torch.linalg.inv(prior.dense().double())
    scaled_MDD = scale_MD.unsqueeze(-1) * covariance.dense() * scale_MD.unsqueeze(-2)
    return (inverse_MDD * scaled_MDD).sum((-2, -1))


def _trace_of_forms(prior: Form, covariance: Form, scale_MD: Tensor) -> Tensor | None:
    """Return tr Σ₀⁻¹ diag(c) Σ diag(c) from eigenvalues in bases of one grid; None where there are none."""
    if prior.variance is None or covariance.variance is None:
        return None
    if prior.is_diagonal and covariance.is_diagonal:
        each_MD = scale_MD**2 * covariance.variance.flatten(1) / prior.variance.flatten(1)
        return each_MD.sum(-1, dtype=torch.float64)
    if not (prior.is_spectral and covariance.is_spectral) or prior.bases is None or covariance.bases is None:
        return None
    if prior.variance.shape[1:] != covariance.variance.shape[1:]:
        return None
    scale_MGOI = scale_MD.unflatten(1, covariance.variance.shape[1:])
    if not torch.allclose(scale_MGOI, scale_MGOI[:, :, :1].expand_as(scale_MGOI)):
        return None
    rows, columns = covariance.bases
    side = Factored(1 / prior.variance, prior.bases[0], scale_MGOI[:, :, 0].unsqueeze(-1) * prior.bases[1])
    return (side.diagonal(rows, columns) * covariance.variance).flatten(1).sum(-1, dtype=torch.float64)
