r"""Class probabilities that are uncertain themselves: p ~ Dir(α), y ~ Categorical(p), with α_k = e^{f_k}.

With α₀ = Σ α the mean of p is α/α₀ = softmax(f), so that log p(y|f) is that of a Categorical, and

    Var p_k = p̄_k (1 − p̄_k) / (α₀ + 1)
    mutual information = H(p̄) − E H(p) = Σ_k p̄_k g(α_k) − g(α₀),    g(a) = ψ(a + 1) − log a ≈ 1/(2a)

in nats, about (K − 1)/(2 (α₀ + 1)). Given p̄ it falls with α₀, from H(p̄) to 0, so p̄ and mutual information fix α.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from torchbayes.model.likelihoods.categorical import Categorical
from torchbayes.model.likelihoods.protocol import NONE, Counted, Parameters

_SHIFT = 8  # arguments above it are in reach of the asymptotic series, to 1e-12
_SERIES = (1 / 2, -1 / 12, 0.0, 1 / 120, 0.0, -1 / 252, 0.0, 1 / 240, 0.0, -1 / 132)  # of a^-1, a^-2, ...
_FAR = 60.0  # |log α| beyond which the mutual information is at one of its limits to 1e-26
_STEPS = 100  # of bisection: from 2 · 60 down to the rounding of float64


class DirichletCategorical(distributions.Categorical):
    """The distribution of a class whose probabilities have the distribution Dir(e^f)."""

    def __init__(self, log_concentration: Tensor) -> None:
        self.log_concentration = log_concentration
        super().__init__(logits=log_concentration, validate_args=False)

    def mutual_information(self) -> Tensor:
        """Return what the class says of its probabilities, (...), in nats."""
        return mutual_information(self.log_concentration)

    def total_variance(self) -> Tensor:
        """Return the sum of the variances of its class probabilities, (1 − Σ p²) / (1 + Σ α), (...)."""
        return (1 - self.probs.square().sum(-1)) / (1 + self.log_concentration.logsumexp(-1).exp())


@dataclass(frozen=True)
class Dirichlet(Categorical):
    """A `Categorical` likelihood whose outputs are log α, and whose class probabilities are uncertain."""

    def distribution(self, outputs: Tensor, parameters: Parameters = NONE) -> Distribution:
        """Return the distribution of classes under Dir(e^f)."""
        return DirichletCategorical(outputs)

    def scored(self, outputs: Tensor, targets: Tensor) -> Counted:
        """Return the labels, with weight 0 where they are ignored."""
        return super().scored(outputs, targets)


def mutual_information(log_concentration: Tensor) -> Tensor:
    """Return H(E p) − E H(p) under Dir(e^f), (...), of f (..., K): at least 0, in nats.

    By elementary functions alone, so that it exports where the digamma function does not exist.
    """
    log_total = log_concentration.logsumexp(-1)
    inner = (log_concentration.softmax(-1) * _excess(log_concentration)).sum(-1)
    return (inner - _excess(log_total)).clamp_min(0.0)


def concentration(probs: Tensor, information: Tensor) -> Tensor:
    """Return log α₀, (...), of the Dirichlet of mean `probs` (..., K) with this mutual information (...), by bisection.

    Information outside of (0, H(p̄)) gives an end of the range, ±60.
    """
    log_probs = probs.double().clamp_min(torch.finfo(torch.float64).tiny).log()
    low = torch.full_like(log_probs[..., 0], -_FAR)
    high = -low
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        above = mutual_information(log_probs + middle.unsqueeze(-1)) > information
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (0.5 * (low + high)).to(probs.dtype)


def _excess(log_a: Tensor) -> Tensor:
    """Return g(a) = ψ(a + 1) − log a of log a, by its asymptotic series after ψ(x + 1) = ψ(x) + 1/x."""
    log_a = log_a.clamp(-_FAR, _FAR)
    near = log_a.clamp_max(math.log(_SHIFT)).exp()  # both branches stay finite, and so do their gradients
    shifted = near + _SHIFT
    steps = sum((1 / (near + i) for i in range(1, _SHIFT + 1)), torch.zeros_like(near))
    below = _series(1 / shifted) + shifted.log() - log_a - steps
    return torch.where(log_a > math.log(_SHIFT), _series((-log_a.clamp_min(0.0)).exp()), below)


def _series(inverse: Tensor) -> Tensor:
    total = torch.zeros_like(inverse)
    for term in reversed(_SERIES):
        total = inverse * (total + term)
    return total
