"""Scores of the density that particles stand for: ∇log q̂ at the particles, as a linear combination of them.

With the RBF kernel of n particles X, K_ij = exp(−‖x_i − x_j‖²/h), all estimators have one form,

    ∇log q̂(x_i) = −Σ_j (C R)_ij x_j,     R = (2/h) (diag(K 1) − K)

    kde     C = diag(K 1)⁻¹               density of the sum of kernels at the particles, i itself among them
    sge     C = (K + η I)⁻¹               Stein gradient estimator (Li and Turner 2018), ridge η
    ssge    C = Σ_{r ≤ J} u_r u_rᵀ/λ_r    spectral one (Shi, Sun and Zhu 2018), eigenpairs (λ_r, u_r) of K

`ssge` also has a value elsewhere: with the eigenfunctions ψ_r(x) = (√n/λ_r) Σ_j u_rj k(x, x_j) and β_r = −(1/n) Σ_m
∇ψ_r(x_m) it is Σ_r β_r ψ_r(x). J is the least number of eigenvalues that sum to a share of all.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from torchbayes.methods.particles.kernels import Pairs, median_bandwidth, squared_distances

Score = Literal["kde", "sge", "ssge"]
RIDGE, SPECTRUM = 0.01, 0.99  # η, and the share of the eigenvalues
_ROUNDING = 1e-10  # share of the largest eigenvalue below which others are rounding errors


def score_matrix(pairs: Pairs, score: Score, *, ridge: float = RIDGE, spectrum: float = SPECTRUM) -> Tensor:
    """Return A with ∇log q̂(x_i) = Σ_j A_ij x_j, float64 (M, M).

    The pairs are those of an RBF kernel, `ridge` is η of sge, and `spectrum` the share of the eigenvalues that ssge
    keeps.
    """
    values_MM, repulsion_MM, _ = pairs
    if score == "kde":
        return -repulsion_MM / values_MM.sum(1, keepdim=True)
    if score == "sge":
        ridged = values_MM + ridge * torch.eye(len(values_MM), dtype=values_MM.dtype, device=values_MM.device)
        return -torch.linalg.solve(ridged, repulsion_MM)
    vectors_MR, values_R = _leading(values_MM, spectrum)
    return -(vectors_MR / values_R) @ (vectors_MR.T @ repulsion_MM)


def score_elsewhere(
    gram_PP: Tensor, count: int, *, bandwidth: float | None = None, spectrum: float = SPECTRUM
) -> Tensor:
    """Return A (M, P − M), float64, with ∇log q̂(y_i) = Σ_j A_ij x_j: the spectral score at points y, from draws x.

    Unless it is set, the bandwidth is that of the median over all pairs of draws and points: a kernel of the draws
    alone would not reach points that lie outside. `gram_PP` are inner products of the M (`count`) points and then the
    draws, about any origin, float64. `spectrum` is the share of the eigenvalues that are kept.
    """
    squares_PP = squared_distances(gram_PP)
    h = median_bandwidth(squares_PP) if bandwidth is None else bandwidth
    values_PP = torch.exp(squares_PP / -h)
    drawn = values_PP[count:, count:]
    vectors, values = _leading(drawn, spectrum)
    repulsion = (torch.diag(drawn.sum(1)) - drawn) * (2 / h)
    return -(values_PP[:count, count:] @ (vectors / values.square())) @ (vectors.T @ repulsion)


def _leading(values_MM: Tensor, spectrum: float) -> tuple[Tensor, Tensor]:
    """Return the leading eigenvectors (M, J) and eigenvalues (J,) of a kernel matrix, largest first.

    NaN where the matrix is not finite, as after a step that diverged, so that the error names the divergence and not
    linear algebra.
    """
    if not bool(torch.isfinite(values_MM).all()):
        return torch.full_like(values_MM[:, :1], math.nan), torch.full_like(values_MM[0, :1], math.nan)
    # on the CPU, because for some dozen rows a GPU would be slower and round differently
    values, vectors = torch.linalg.eigh(values_MM.cpu())
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    count = int((values.cumsum(0) < spectrum * values.sum() * (1 - math.ulp(1.0))).sum()) + 1
    count = max(1, min(count, int((values > _ROUNDING * values[0]).sum())))
    return vectors[:, :count].to(values_MM.device), values[:count].to(values_MM.device)
