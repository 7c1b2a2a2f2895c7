r"""Two classes: the log odds of the second as a function of predicted ones, by logistic regression.

With p the predicted probability of the second class and t = log p − log(1 − p),

    affine:     σ(c + b t)                                (Platt 1999, of the log odds)
    quadratic:  σ(c + b t + a t²)
    beta:       σ(c + α log p − β log(1 − p)),  α, β ≥ 0  (Kull, Silva Filho and Flach 2017)

each without a penalty. Where a function of these features separates the classes without error, no finite
coefficients are best; that is said.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchbayes.calibration.calibrator import ClassCalibrator
from torchbayes.calibration.newton import OfSecond, Optimum, minimised
from torchbayes.calibration.rows import LEAST, Rows
from torchbayes.calibration.scaling import LogLinear
from torchbayes.checks import check_numbers, plain

_ALONE = 1e-12  # penalty that picks one of several optima, of features that are functions of each other on these rows


class SeparableError(ValueError):
    """Held-out rows that a calibrator's curve separates without error: no finite coefficients are best."""


@dataclass(frozen=True)
class LogOddsScaling(ClassCalibrator):
    """Two classes: log odds t of the second become bias + slope t + curvature t².

    A curvature makes it fall again beyond some t, so that the order of rows may change.

    Attributes:
        bias: c.
        slope: b.
        curvature: a; 0 is affine scaling.
    """

    bias: float
    slope: float
    curvature: float = 0.0

    def __post_init__(self) -> None:
        plain(self)
        check_numbers(bias=self.bias, slope=self.slope, curvature=self.curvature)

    @property
    def num_classes(self) -> int:
        return 2

    def _mapped(self, log_probs_BK: Tensor) -> Tensor:
        odds_B = _odds(log_probs_BK)
        odds_B = self.bias + self.slope * odds_B + self.curvature * odds_B.square()
        return torch.log_softmax(torch.stack([torch.zeros_like(odds_B), odds_B], -1), -1)


def affine_of(rows: Rows) -> LogOddsScaling:
    """Return affine scaling of the log odds."""
    bias, slope = _fitted(rows, "affine", _powers(rows, 1)).coefficients_P.tolist()
    return LogOddsScaling(bias, slope)


def quadratic_of(rows: Rows) -> LogOddsScaling:
    """Return quadratic scaling of the log odds."""
    return LogOddsScaling(*_fitted(rows, "quadratic", _powers(rows, 2)).coefficients_P.tolist())


def beta_of(rows: Rows) -> LogLinear:
    """Return Beta calibration: of the sets of coefficients that are 0, the one with the least loss."""
    features_BP = torch.cat([torch.ones(len(rows.weights_B), 1).double(), _beta_features(rows)], 1)
    check_two(rows, "beta")
    check_separable(rows, features_BP, "beta")
    optima: list[tuple[float, list[float]]] = []
    for free in ([0, 1, 2], [0, 1], [0, 2], [0]):
        optimum = _logistic(rows, features_BP[:, free])
        coefficients = torch.zeros(3, dtype=torch.float64)
        coefficients[free] = optimum.coefficients_P
        if (coefficients[1:] >= 0).all():
            optima.append((optimum.loss, coefficients.tolist()))
        if len(free) == len(features_BP.T) and optima:
            break  # no bound holds, so this is the optimum
    bias, alpha, beta = min(optima)[1]
    return LogLinear(torch.tensor([beta, alpha]), torch.tensor([0.0, bias]))


def check_two(rows: Rows, name: str) -> None:
    """Raise a ValueError unless there are two classes."""
    if rows.classes != 2:
        raise ValueError(f"{name!r} is for two classes; got {rows.classes}. Use 'sms' or 'svs'.")


def check_separable(rows: Rows, features_BP: Tensor, name: str) -> None:
    r"""Raise a SeparableError if a direction d has φ d ≥ 0 for the second class, ≤ 0 for the first, not all 0.

    The linear program of Albert and Anderson (1984): the most Σ_b ± φ_b d with |d_i| ≤ 1.
    """
    from scipy.optimize import linprog  # slow to import

    scaled_BP = features_BP / features_BP.abs().amax(0).clamp_min(torch.finfo(torch.float64).tiny)
    signed_BP = torch.cat([scaled_BP[rows.shares_BK[:, 1] > 0], -scaled_BP[rows.shares_BK[:, 0] > 0]]).numpy()
    optimum = linprog(-signed_BP.mean(0), A_ub=-signed_BP, b_ub=torch.zeros(len(signed_BP)).numpy(), bounds=(-1, 1))
    if -optimum.fun > 1e-9:
        raise SeparableError(
            f"{name!r} separates the {len(rows.weights_B)} held-out rows without error, so that no finite coefficients "
            f"are best. Hold out more rows, or use 'ts-mix'."
        )


def _fitted(rows: Rows, name: str, features_BP: Tensor) -> Optimum:
    check_two(rows, name)
    check_separable(rows, features_BP, name)
    return _logistic(rows, features_BP)


def _logistic(rows: Rows, features_BP: Tensor) -> Optimum:
    """Return the coefficients of a logistic regression; it begins at the predictions as they are."""
    start_P = torch.zeros(features_BP.shape[1], dtype=torch.float64)
    start_P[1:2] = 1.0
    return minimised(OfSecond(features_BP), rows, start_P=start_P, penalty_P=torch.full_like(start_P, _ALONE))


def _odds(log_probs_BK: Tensor) -> Tensor:
    first_B, second_B = log_probs_BK.clamp_min(LEAST).unbind(-1)
    return second_B - first_B


def _powers(rows: Rows, degree: int) -> Tensor:
    check_two(rows, "affine" if degree == 1 else "quadratic")
    odds_B = _odds(torch.log_softmax(rows.log_probs_BK, -1))
    return torch.stack([odds_B**power for power in range(degree + 1)], -1)


def _beta_features(rows: Rows) -> Tensor:
    check_two(rows, "beta")
    first_B, second_B = torch.log_softmax(rows.log_probs_BK, -1).clamp_min(LEAST).unbind(-1)
    return torch.stack([second_B, -first_B], -1)
