"""Stacking: weights of a mixture of predictive densities by what it says of rows that were not fitted.

The weights of K densities maximise the mean log density of the mixture over N rows,

    max_w (1/N) Σ_n log Σ_k w_k p_k(y_n)    with w_k ≥ 0, Σ_k w_k = 1

(Yao, Vehtari, Simpson and Gelman 2018, "Using stacking to average Bayesian predictive distributions"). The objective
is concave. With g_k = (1/N) Σ_n p_k(y_n) / Σ_j w_j p_j(y_n), no other weights give more than log max_k g_k beyond
what w gives, so the distance from the optimum is known. It is found by sequential quadratic programming: each step
solves a problem of non-negative least squares (Kim, Carbonetto, Stephens and Anitescu 2020).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.checks import check_not_negative, seen
from torchbayes.diagnostics._blocks import check_floating

_TOLERANCE = 1e-9  # nats per row
_ROUNDS = 1000
_SHARES = (1.0, 0.9, 0.5, 0.25, 0.1, 0.01)  # of a step that are tried; with pseudo-rows none may reach a weight of 0
_ROUNDING = 1e-14  # of the mean log density; near the optimum a step gains less than that
_RIDGE = 1e-12  # share of the largest curvature that is added, because copies of a density make it singular


class Stacked(NamedTuple):
    """Weights of a mixture of K densities."""

    weights_K: Tensor  # float64, sum 1
    log_score: float  # mean log density of the mixture over the rows, in nats
    gap: float  # at most this is missing to the optimum, pseudo-rows included, in nats per row


def stacking_weights(
    log_densities_NK: Tensor, *, row_weights_N: Tensor | None = None, pseudo_rows: float = 1.0
) -> Stacked:
    """Return the weights of K predictive densities whose mixture describes N rows best.

    Args:
        log_densities_NK: log p_k(y_n), (N, K), of rows that were not fitted, or of leave-one-out predictions. −∞
            where a density is zero.
        row_weights_N: what each row counts; 1 if None.
        pseudo_rows: rows, shared evenly, at which a single model is possible each: the mode under a Dirichlet prior
            with concentration 1 + pseudo_rows / K. Above 0 every model keeps some weight, which protects where rows
            are few.

    Raises:
        TypeError: if log densities or weights are not floating-point tensors.
        ValueError: if there are no rows or models, a log density is NaN or ∞, a row is impossible under every model,
            or weights or `pseudo_rows` are negative.
    """
    densities_NK, weights_N, shift = _checked(log_densities_NK, row_weights_N)
    check_not_negative(pseudo_rows=pseudo_rows)
    models = densities_NK.shape[1]
    prior_K = torch.full((models,), pseudo_rows / models, dtype=torch.float64, device="cpu")
    every_RK = torch.cat([densities_NK, torch.eye(models, dtype=torch.float64, device="cpu")])
    every_R = torch.cat([weights_N, prior_K])
    every_RK, every_R = every_RK[every_R > 0], every_R[every_R > 0] / every_R.sum()
    weights_K = torch.full((models,), 1 / models, dtype=torch.float64, device="cpu")
    for _ in range(_ROUNDS):
        gradient_K = _gradient(every_RK, every_R, weights_K)
        if math.log(gradient_K.max()) < _TOLERANCE:
            break
        weights_K = _improved(every_RK, every_R, weights_K, gradient_K)
    gap = max(math.log(_gradient(every_RK, every_R, weights_K).max()), 0.0)
    log_score = float(weights_N @ (densities_NK @ weights_K).log() / weights_N.sum()) + shift
    return Stacked(weights_K.to(log_densities_NK.device), log_score, gap)


def _checked(log_densities_NK: Tensor, row_weights_N: Tensor | None) -> tuple[Tensor, Tensor, float]:
    """Return densities, the largest of each row 1, the weights of rows, and the mean log factor that was taken out."""
    check_floating("log_densities_NK", log_densities_NK)
    if log_densities_NK.ndim != 2 or not log_densities_NK.numel():
        raise ValueError(
            f"`log_densities_NK` must have a row for each observation and a column for each model, shape (N, K); got "
            f"shape {tuple(log_densities_NK.shape)}."
        )
    values_NK = log_densities_NK.detach().double().cpu()
    if bool((values_NK.isnan() | (values_NK == math.inf)).any()):
        raise ValueError("`log_densities_NK` must be finite, or −∞ where a density is zero; some are NaN or infinite.")
    largest_N = values_NK.amax(1)
    if bool((largest_N == -math.inf).any()):
        row = int((largest_N == -math.inf).nonzero()[0])
        raise ValueError(f"row {row} of `log_densities_NK` is impossible under every model: no mixture describes it.")
    weights_N = torch.ones(len(values_NK), dtype=torch.float64, device="cpu")
    if row_weights_N is not None:
        check_floating("row_weights_N", row_weights_N)
        weights_N = row_weights_N.detach().double().cpu()
        if weights_N.shape != largest_N.shape or not bool((weights_N >= 0).all()) or not float(weights_N.sum()) > 0:
            raise ValueError(
                f"`row_weights_N` must be {len(values_NK)} numbers of at least 0, not all 0; got {seen(row_weights_N)}."
            )
    shift = float(weights_N @ largest_N / weights_N.sum())
    return (values_NK - largest_N.unsqueeze(1)).exp(), weights_N, shift


def _gradient(densities_RK: Tensor, weights_R: Tensor, weights_K: Tensor) -> Tensor:
    """Return g_k, the derivative of the mean log density of the mixture."""
    return (weights_R / (densities_RK @ weights_K)) @ densities_RK


def _improved(densities_RK: Tensor, weights_R: Tensor, weights_K: Tensor, gradient_K: Tensor) -> Tensor:
    """Return better weights: along the step of the quadratic model, or else by expectation maximisation."""
    scaled_RK = densities_RK * (weights_R.sqrt() / (densities_RK @ weights_K)).unsqueeze(1)
    curvature_KK = scaled_RK.mT @ scaled_RK
    ridge = _RIDGE * float(curvature_KK.diagonal().max())
    curvature_KK.diagonal().add_(ridge)
    # with u = Σ_k w_k p_k(y) / (mixture now), the model is mean(u²/2 − 2 u) + Σ_k w_k, and the ridge is around w now
    slope_K = 2 * gradient_K - 1 + ridge * weights_K
    root_KK = torch.linalg.cholesky(curvature_KK)
    goal_K = torch.linalg.solve_triangular(root_KK, slope_K.unsqueeze(1), upper=False)
    step_K = torch.linalg.solve_triangular(root_KK.mT, goal_K, upper=True).squeeze(1)
    if bool((step_K < 0).any()):
        from scipy.optimize import nnls

        step_K = torch.as_tensor(nnls(root_KK.mT.numpy(), goal_K.squeeze(1).numpy())[0])
    now = weights_R @ (densities_RK @ weights_K).log()
    for share in _SHARES if float(step_K.sum()) > 0 else ():
        moved_K = weights_K + share * (step_K / step_K.sum() - weights_K)
        if weights_R @ (densities_RK @ moved_K).log() >= now - _ROUNDING:
            return moved_K
    return weights_K * gradient_K / (weights_K @ gradient_K)
