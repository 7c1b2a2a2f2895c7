"""Temperature scaling, alone or mixed with the uniform distribution.

With z = log p of the model average, log p' = log softmax(z / T) (Guo, Pleiss, Sun and Weinberger 2017). Mixed,
p'' = (1 − u) p' + u / K with u = 1 / (n + 1) for n held-out rows: Laplace's rule, as if there were another row of which
nothing is known, so that no probability is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchbayes.calibration.calibrator import ClassCalibrator
from torchbayes.calibration.rows import Rows, joined, rows_of
from torchbayes.checks import check_positive, check_share, plain
from torchbayes.metrics.temperature import fit_temperature
from torchbayes.native.process import undisturbed_methods
from torchbayes.predictive.average import Predictive


@undisturbed_methods
@dataclass(frozen=True)
class TemperatureScaling(ClassCalibrator):
    """Post-hoc calibration of a model average: p ∝ p̄^{1/T} (Guo et al. 2017), averaged first, then scaled.

    This order keeps an ensemble calibrated (Rahaman and Thiery 2021).

    Attributes:
        temperature: T; above 1 makes predictions less confident.
        uniform: share of the uniform distribution that is mixed in afterwards.
    """

    temperature: float
    uniform: float = 0.0

    def __post_init__(self) -> None:
        plain(self)
        check_positive(temperature=self.temperature)
        check_share(uniform=self.uniform)

    @property
    def keeps_argmax(self) -> bool:
        return True

    @classmethod
    def fit(cls, predictive: Predictive, targets: Any) -> TemperatureScaling:
        """Choose T by the likelihood of held-out targets, without mixing.

        Args:
            predictive: predictive of a classification, on rows that were not used for fitting.
            targets: (B, ...), as `evaluate` takes them: classes, possibly ignored or weighted, soft or binary.

        Returns:
            The calibrator.

        Raises:
            TypeError: if the predictive or the targets are not over classes.
            ValueError: if targets do not fit the likelihood, or none counts.
        """
        return temperature_of(joined([rows_of(predictive, targets)]))

    def _mapped(self, log_probs_BK: Tensor) -> Tensor:
        scaled_BK = torch.log_softmax(log_probs_BK / self.temperature, -1)
        if not self.uniform:
            return scaled_BK
        floor = torch.tensor(math.log(self.uniform / scaled_BK.shape[1])).to(scaled_BK)
        return torch.logaddexp(math.log1p(-self.uniform) + scaled_BK, floor)


def temperature_of(rows: Rows) -> TemperatureScaling:
    """Return the temperature that fits rows best."""
    return TemperatureScaling(fit_temperature(rows.log_probs_BK, rows.shares_BK, weights_B=rows.weights_B))


def mixed_temperature_of(rows: Rows) -> TemperatureScaling:
    """Return the temperature that fits rows best, mixed with the uniform distribution."""
    return TemperatureScaling(temperature_of(rows).temperature, 1 / (rows.count + 1))
