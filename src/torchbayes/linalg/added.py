"""A curvature plus the precision of a correlated prior, as one task leaves them to the next, in one structure."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbayes.linalg.curvature import Curvature
from torchbayes.linalg.kronecker import Factored
from torchbayes.linalg.structure import Form, Structure, aligned, unscaled


def plus_precision(curvature: Curvature, covariance: Structure, factor: float = 1.0) -> Curvature:
    """Return H + factor · Σ⁻¹ in the structure of H, for Σ of one member.

    It is exact for dense, diagonal and equal blocks of them; `KroneckerCurvature.plus` describes the sum of Kronecker
    products. Raises a ValueError if the two do not add up to a structure.
    """
    scale_MD, inner = unscaled(covariance)
    total = curvature.plus(inner, factor**0.5 / scale_MD)
    if total is None:
        raise ValueError(
            f"a prior with {covariance.kind} covariance and a {curvature.kind} curvature do not add up to a structure. "
            f"Use structure='dense', or that of the earlier posterior where the prior is one."
        )
    return total


def precision_trace(prior: Structure, covariance: Structure) -> Tensor:
    """Return tr Σ₀⁻¹ Σ, float64 (M,), for `prior` Σ₀ of one member, where Σ⁻¹ of M members is a curvature plus Σ₀⁻¹."""
    (first_MD, inner), (second_MD, outer) = unscaled(prior), unscaled(covariance)
    return _trace(inner, outer, second_MD / first_MD)


def _trace(prior: Structure, covariance: Structure, scale_MD: Tensor) -> Tensor:
    """Return tr Σ₀⁻¹ diag(c) Σ diag(c), float64 (M,)."""
    groups = covariance.groups
    wheres = [group.where for group in groups if group.where is not None]
    priors = aligned(wheres, prior) if len(wheres) == len(groups) > 0 else None
    if priors is not None:
        each = zip(priors, groups, wheres, strict=True)
        return torch.stack([_trace(block, group.structure, scale_MD[:, where]) for block, group, where in each]).sum(0)
    forms = [None if each.groups else each.form() for each in (prior, covariance)]
    if forms[0] is not None and forms[1] is not None:
        trace_M = _trace_of_forms(forms[0], forms[1], scale_MD)
        if trace_M is not None:
            return trace_M
    inverse_MDD = torch.linalg.inv(prior.dense().double())
    scaled_MDD = scale_MD.unsqueeze(-1) * covariance.dense() * scale_MD.unsqueeze(-2)
    return (inverse_MDD * scaled_MDD).sum((-2, -1))


def _trace_of_forms(prior: Form, covariance: Form, scale_MD: Tensor) -> Tensor | None:
    """Return tr Σ₀⁻¹ diag(c) Σ diag(c) from eigenvalues in bases of one grid; None without such bases."""
    if prior.variance is None or covariance.variance is None:
        return None
    if prior.is_diagonal and covariance.is_diagonal:
        terms_MD = scale_MD**2 * covariance.variance.flatten(1) / prior.variance.flatten(1)
        return terms_MD.sum(-1, dtype=torch.float64)
    if not (prior.is_spectral and covariance.is_spectral) or prior.shape != covariance.shape:
        return None
    prior, covariance = prior.completed(), covariance.completed()
    if prior.bases is None or covariance.bases is None or prior.variance is None or covariance.variance is None:
        return None
    scale_MGOI = scale_MD.unflatten(1, covariance.shape)
    if not torch.allclose(scale_MGOI, scale_MGOI[:, :, :1].expand_as(scale_MGOI)):
        return None
    rows, columns = covariance.bases
    side = Factored(1 / prior.variance, prior.bases[0], scale_MGOI[:, :, 0].unsqueeze(-1) * prior.bases[1])
    return (side.diagonal(rows, columns) * covariance.variance).flatten(1).sum(-1, dtype=torch.float64)
