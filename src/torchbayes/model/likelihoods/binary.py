"""Binary and multi-label targets: Bernoulli, hard or soft, and Probit, by the normal distribution function."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, distributions
from torch.distributions import Distribution

from torchbayes.model.likelihoods.protocol import NONE, Likelihood, Listed, Parameters, log_mean_exp, two_classes
from torchbayes.model.likelihoods.shapes import check_shape, columns_of, like, per_datum
from torchbayes.settings import Checked

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_TURN = -1.0  # below it Φ is small, and its logarithm is taken by the scaled complementary error function


@dataclass(frozen=True)
class Bernoulli(Checked, Likelihood):
    """y_k ~ Bernoulli(sigmoid(f_k)): binary (K = 1) or multi-label targets 0/1 of the outputs' shape.

    Attributes:
        soft: whether targets may lie anywhere in [0, 1], each the probability q of a 1: the log probability is the mean
            over labels drawn from it, q log σ(f) + (1 − q) log σ(−f).
    """

    listed: ClassVar = Listed(
        "bernoulli",
        "one of two classes, from one output: the log odds of the second",
        "classification",
        lambda _: 1,
        prepare=two_classes,
    )

    soft: bool = False

    def distribution(self, outputs: Tensor, parameters: Parameters = NONE) -> Distribution:
        """Return Bernoulli(logits=f)."""
        return distributions.Bernoulli(logits=outputs, validate_args=False)

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Parameters = NONE) -> Tensor:
        """Return Σ_k y_k log σ(f_k) + (1 − y_k) log σ(−f_k)."""
        targets = like(targets, outputs.shape[-1]).to(outputs.dtype)
        return per_datum(targets * outputs - F.softplus(outputs), targets)

    def check(self, outputs: Tensor, targets: Any) -> None:
        """Raise ValueError if the shape differs from the outputs', or a value is neither 0 nor 1 and not soft."""
        if not self.soft:
            _check_binary(targets, outputs.shape)
            return
        check_shape(targets, outputs.shape)
        if not ((targets >= 0) & (targets <= 1)).all():
            raise ValueError(f"soft binary targets must lie in [0, 1]; got values in {_extent(targets)}.")

    def average_log_prob(self, outputs_SBK: Tensor, targets: Tensor, parameters: Parameters = NONE) -> Tensor:
        """Return the log probability under the average; for a soft label, q log p̄ + (1 − q) log(1 − p̄)."""
        if self.soft and outputs_SBK[0, 0].numel() == 1:
            positive, negative = (log_mean_exp(F.logsigmoid(f)) for f in (outputs_SBK, -outputs_SBK))
            outputs_SBK = (positive - negative).unsqueeze(0)
        return log_mean_exp(self.log_prob(outputs_SBK, targets, parameters))

    def curvature_root(self, outputs: Tensor, targets: Tensor, parameters: Parameters) -> Tensor:
        """Return columns of diag(σ(f) σ(−f)), (K, B, ...)."""
        return columns_of((0.5 * (F.logsigmoid(outputs) + F.logsigmoid(-outputs))).exp())

    def score_root(self, outputs: Tensor, targets: Tensor, parameters: Parameters) -> Tensor:
        """Return y − σ(f), and for soft labels columns of the covariance of labels drawn from them, diag(q (1 − q))."""
        targets = like(targets, outputs.shape[-1]).to(outputs.dtype)
        mean = (targets - outputs.sigmoid()).unsqueeze(0)
        return torch.cat([mean, columns_of((targets * (1 - targets)).sqrt())]) if self.soft else mean


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
        logits = log_cdf(outputs) - log_cdf(-outputs)
        return distributions.Bernoulli(logits=logits, validate_args=False)

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Parameters = NONE) -> Tensor:
        """Return Σ_k log Φ(±f_k), + where y_k is 1."""
        targets = like(targets, outputs.shape[-1]).to(outputs.dtype)
        return per_datum(log_cdf((2 * targets - 1) * outputs), targets)

    def check(self, outputs: Tensor, targets: Any) -> None:
        """Raise ValueError if the shape differs from the outputs', or a value is neither 0 nor 1."""
        _check_binary(targets, outputs.shape)

    def curvature_root(self, outputs: Tensor, targets: Tensor, parameters: Parameters) -> Tensor:
        """Return columns of the Fisher information, diag(φ(f)²/(Φ(f) Φ(−f))), (K, B, ...)."""
        both = log_cdf(outputs) + log_cdf(-outputs)
        return columns_of((-0.5 * (outputs.square() + both) - _HALF_LOG_2PI).exp())


def _check_binary(targets: Any, shape: torch.Size) -> None:
    """Raise ValueError if the shape of targets differs, or a value is neither 0 nor 1."""
    check_shape(targets, shape)
    if not ((targets == 0) | (targets == 1)).all():
        raise ValueError(
            f"binary targets must be 0 or 1; got values in {_extent(targets)}. Probabilities are Bernoulli(soft=True)."
        )


def _extent(targets: Tensor) -> str:
    return f"{targets.min().item():g}..{targets.max().item():g}"


def log_cdf(values: Tensor) -> Tensor:
    """Return log Φ, elementwise, with the precision of the values everywhere.

    `torch.special.log_ndtr` is the same, but cannot be vectorised by `vmap`.
    """
    low, high = values.clamp_max(_TURN), values.clamp_min(_TURN)  # keeps the slopes of both branches finite
    below = (0.5 * torch.special.erfcx(-low / math.sqrt(2))).log() - 0.5 * low.square()
    above = torch.log1p(-0.5 * torch.erfc(high / math.sqrt(2)))
    return torch.where(values < _TURN, below, above)
