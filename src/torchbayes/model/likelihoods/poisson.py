"""Poisson: counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from torchbayes.model.likelihoods.protocol import NONE, Likelihood, Listed, Parameters, target_columns
from torchbayes.model.likelihoods.shapes import check_shape, columns_of, like, per_datum


class Counts(distributions.Poisson):
    """A Poisson distribution with a distribution function."""

    def cdf(self, value: Tensor) -> Tensor:
        """Return P(Y <= value) = Q(floor(value) + 1, rate), the regularised upper incomplete gamma function."""
        return torch.where(value < 0, 0.0, torch.special.gammaincc(value.clamp_min(0).floor() + 1, self.rate))


@dataclass(frozen=True)
class Poisson(Likelihood):
    """y ~ Poisson(e^f): counts; outputs are log rates."""

    listed: ClassVar = Listed(
        "poisson",
        "counts, whose log rate is the output; targets are not standardised",
        "regression",
        target_columns,
        prepare=lambda data: data.counts(),
    )

    def distribution(self, outputs: Tensor, parameters: Parameters = NONE) -> Distribution:
        """Return Poisson(exp(f))."""
        return Counts(outputs.exp(), validate_args=False)

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Parameters = NONE) -> Tensor:
        """Return Σ_k y_k f_k − e^{f_k} − log y_k!."""
        targets = like(targets, outputs.shape[-1]).to(outputs.dtype)
        return per_datum(targets * outputs - outputs.exp() - torch.lgamma(targets + 1), targets)

    def check(self, outputs: Tensor, targets: Any) -> None:
        """Raise ValueError if the targets are no counts of the outputs' shape: negative, fractional or not finite."""
        check_shape(targets, outputs.shape)
        real = targets.double()
        if not (torch.isfinite(real) & (real >= 0) & (real == real.round())).all():
            raise ValueError(f"counts must be whole numbers >= 0; got values in {real.min():g}..{real.max():g}.")

    def curvature_root(self, outputs: Tensor, targets: Tensor, parameters: Parameters) -> Tensor:
        """Return columns of diag(e^f), (K, B, ...)."""
        return columns_of((0.5 * outputs).exp())
