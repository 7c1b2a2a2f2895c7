r"""Vector, matrix and Dirichlet scaling: log p' = log softmax(W z + c), linear in log probabilities z.

Structured scaling (Berta, Holzmüller, Jordan and Bach 2026, "Structured matrix scaling for multi-class calibration")
takes z after temperature scaling mixed with the uniform distribution, and W = I + D. On n held-out rows it minimises
the mean log loss plus

    SVS, D diagonal:    (K/n) (‖c‖² + ‖D‖²)
    SMS, D full:        (K/n) (‖c‖² + ‖diag D‖²) + (K (K − 1) / n) ‖offdiag D‖²,

so that few rows leave the temperature alone. Times n it is a posterior mode under normal priors, of variance
1/(2K) and, off the diagonal, 1/(2K(K−1)).

Dirichlet calibration (Kull et al. 2019, "Beyond temperature scaling") takes z = log p as it is, with
λ (‖c‖² + ‖offdiag W‖²) in the place of these ("ODIR"), λ by five-fold cross-validation; the diagonal is free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchbayes.calibration.calibrator import ClassCalibrator
from torchbayes.calibration.newton import ByClass, ByMatrix, Optimum, minimised
from torchbayes.calibration.rows import LEAST, Rows
from torchbayes.calibration.temperature import TemperatureScaling, mixed_temperature_of
from torchbayes.checks import check_tensor

STRENGTHS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
"""Penalties λ of Dirichlet calibration among which folds choose."""
FOLDS = 5
_FREE = 1e-9  # penalty of Dirichlet's diagonal: rows that are separable leave it no optimum


@dataclass(frozen=True, eq=False)
class LogLinear(ClassCalibrator):
    """log p' = log softmax(W z + c), z the log probabilities after a temperature, at least −87.3.

    Attributes:
        weight: W: its diagonal (K,), or a matrix (K, K), float64.
        bias: c, (K,), float64.
        temperature: T before it; 1 where there is none.
        uniform: share of the uniform distribution mixed in before it.
    """

    weight: Tensor
    bias: Tensor
    temperature: float = 1.0
    uniform: float = 0.0

    def __post_init__(self) -> None:
        check_tensor(weight=self.weight)
        check_tensor("K", bias=self.bias)
        classes = len(self.bias)
        if self.weight.shape not in {(classes,), (classes, classes)}:
            raise ValueError(
                f"`weight` must have shape ({classes},) or ({classes}, {classes}); got {tuple(self.weight.shape)}."
            )
        for name in ("weight", "bias"):
            if not getattr(self, name).isfinite().all():
                raise ValueError(f"`{name}` holds NaN or infinite values.")
            object.__setattr__(self, name, getattr(self, name).detach().double().cpu())
        _ = self._first

    @property
    def num_classes(self) -> int:
        return len(self.bias)

    @property
    def _first(self) -> TemperatureScaling:
        return TemperatureScaling(self.temperature, self.uniform)

    def _mapped(self, log_probs_BK: Tensor) -> Tensor:
        z_BK = self._first.transform(log_probs_BK).clamp_min(LEAST)
        weight, bias_K = self.weight.to(z_BK.device), self.bias.to(z_BK.device)
        return torch.log_softmax((z_BK * weight if weight.ndim == 1 else z_BK @ weight.T) + bias_K, -1)


def vector_of(rows: Rows) -> LogLinear:
    """Return structured vector scaling (SVS) of rows."""
    first, values_BK = _scaled(rows)
    classes = rows.classes
    start_P = torch.cat([torch.ones(classes), torch.zeros(classes)]).double()
    penalty_P = torch.full_like(start_P, classes / rows.count)
    optimum = minimised(ByClass(values_BK), rows, start_P=start_P, penalty_P=penalty_P)
    weight_K, bias_K = optimum.coefficients_P.chunk(2)
    return LogLinear(weight_K, bias_K, first.temperature, first.uniform)


def matrix_of(rows: Rows) -> LogLinear:
    """Return structured matrix scaling (SMS) of rows."""
    first, values_BK = _scaled(rows)
    classes = rows.classes
    strength_KK = torch.full((classes, classes), classes * (classes - 1) / rows.count, dtype=torch.float64)
    strength_KK.fill_diagonal_(classes / rows.count)
    weight_KK, bias_K, _ = _matrix(values_BK, rows, strength_KK, classes / rows.count)
    return LogLinear(weight_KK, bias_K, first.temperature, first.uniform)


def dirichlet_of(rows: Rows) -> LogLinear:
    """Return Dirichlet calibration of rows, the strength of its penalty by five-fold cross-validation."""
    strength = min(STRENGTHS, key=lambda each: cross_validated(rows, lambda fold: _dirichlet(fold, each)))
    return _dirichlet(rows, strength)


def cross_validated(rows: Rows, fit: Callable[[Rows], ClassCalibrator]) -> float:
    """Return the mean log loss of rows, each under a calibrator fitted on the other four fifths (every fifth row)."""
    total, count = 0.0, len(rows.weights_B)
    for fold in range(min(FOLDS, count) if count > 1 else 0):
        outside_B = torch.arange(count) % FOLDS == fold
        test = _some(rows, outside_B)
        total += test.loss(fit(_some(rows, ~outside_B)).transform(test.log_probs_BK)) * test.count
    return total / rows.count


def _some(rows: Rows, chosen_B: Tensor) -> Rows:
    return Rows(rows.log_probs_BK[chosen_B], rows.shares_BK[chosen_B], rows.weights_B[chosen_B])


def _dirichlet(rows: Rows, strength: float) -> LogLinear:
    strength_KK = torch.full((rows.classes, rows.classes), strength, dtype=torch.float64).fill_diagonal_(_FREE)
    values_BK = torch.log_softmax(rows.log_probs_BK, -1).clamp_min(LEAST)
    return LogLinear(*_matrix(values_BK, rows, strength_KK, strength)[:2])


def _scaled(rows: Rows) -> tuple[TemperatureScaling, Tensor]:
    """Return temperature scaling of rows, mixed, and their log probabilities after it."""
    first = mixed_temperature_of(rows)
    return first, first.transform(rows.log_probs_BK).clamp_min(LEAST)


def _matrix(values_BK: Tensor, rows: Rows, strength_KK: Tensor, of_bias: float) -> tuple[Tensor, Tensor, Optimum]:
    """Return the weight, drawn to the identity by these penalties, and the bias, drawn to 0."""
    classes = rows.classes
    start_P = torch.cat([torch.eye(classes).flatten(), torch.zeros(classes)]).double()
    penalty_P = torch.cat([strength_KK.flatten(), torch.full((classes,), of_bias, dtype=torch.float64)])
    optimum = minimised(ByMatrix(values_BK), rows, start_P=start_P, penalty_P=penalty_P)
    weight_KK = optimum.coefficients_P[:-classes].view(classes, classes)
    return weight_KK, optimum.coefficients_P[-classes:], optimum
