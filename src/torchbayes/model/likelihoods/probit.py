"""Probit: binary targets whose probability is the normal distribution function of the output."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from torchbayes.model.likelihoods.protocol import NONE, Likelihood, Listed, Parameters, two_classes
from torchbayes.model.likelihoods.shapes import check_shape, columns_of, like, per_datum

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_TURN = -1.0  # below it Φ is small, and its logarithm is taken by the scaled complementary error function


@dataclass(frozen=True)
class Probit(Likelihood):
    """y_k ~ Bernoulli(Φ(f_k)), Φ the standard normal distribution function: targets 0/1 of the outputs' shape.

    y = 1 if f + ε > 0 with ε ~ N(0, 1): under f ~ N(m, v) its probability has the closed form Φ(m/√(1 + v)).
    """

    listed: ClassVar = Listed(
        "probit",
        "one of two classes, from one output: the second if it and standard normal noise are above 0",
        "classification",
        lambda _: 1,
        prepare=two_classes,
    )

    def distribution(self, outputs: Tensor, parameters: Parameters = NONE) -> Distribution:
        """Return Bernoulli(Φ(f)), by its log odds."""
        del parameters
        logits = log_cdf(outputs) - log_cdf(-outputs)
        return distributions.Bernoulli(logits=logits, validate_args=False)

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Parameters = NONE) -> Tensor:
        """Return Σ_k log Φ(±f_k), + where y_k is 1."""
        del parameters
        targets = like(targets, outputs.shape[-1]).to(outputs.dtype)
        return per_datum(log_cdf((2 * targets - 1) * outputs), targets)

    def check(self, outputs: Tensor, targets: Any) -> None:
        """Raise ValueError if the shape differs from the outputs', or a value is neither 0 nor 1."""
        check_shape(targets, outputs.shape)
        if not ((targets == 0) | (targets == 1)).all():
            low, high = targets.min().item(), targets.max().item()
            raise ValueError(f"binary targets must be 0 or 1; got values in {low:g}..{high:g}.")

    def curvature_root(self, outputs: Tensor, targets: Tensor, parameters: Parameters) -> Tensor:
        """Return columns of the Fisher information, diag(φ(f)²/(Φ(f) Φ(−f))), (K, B, ...)."""
        del targets, parameters
        both = log_cdf(outputs) + log_cdf(-outputs)
        return columns_of((-0.5 * (outputs.square() + both) - _HALF_LOG_2PI).exp())


def log_cdf(values: Tensor) -> Tensor:
    """Return log Φ, elementwise, with the precision of the values everywhere.

    `torch.special.log_ndtr` is the same, but cannot be vectorised by `vmap`.
    """
    low, high = values.clamp_max(_TURN), values.clamp_min(_TURN)  # keeps the slopes of both branches finite
    below = (0.5 * torch.special.erfcx(-low / math.sqrt(2))).log() - 0.5 * low.square()
    above = torch.log1p(-0.5 * torch.erfc(high / math.sqrt(2)))
    return torch.where(values < _TURN, below, above)
