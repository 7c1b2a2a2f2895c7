"""Exact answers that tests compare with: closed forms and plain loops, all in float64, none of it from the package."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Return standard normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def classes(rows: int, count: int, seed: int = 0) -> Tensor:
    """Return `rows` labels in 0..count−1, int64."""
    return torch.randint(count, (rows,), generator=torch.Generator().manual_seed(seed))


def assert_close(actual: Any, expected: Any, *, rtol: float = 1e-10, atol: float = 1e-12) -> None:
    """Compare numbers, arrays or tensors of any floating dtype; shapes must agree, and NaN equals nothing."""
    actual, expected = (torch.as_tensor(value, dtype=torch.float64).detach() for value in (actual, expected))
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


@dataclass(frozen=True)
class LinearGaussian:
    """Bayesian linear regression y = wᵀx + b + noise, with prior N(0, prior_scale²) on every weight and on b.

    Weights come in the order of `nn.Linear(F, 1)`: w (F), then b. D = F + 1.

    Attributes:
        inputs_NF: inputs, float64.
        targets_N: targets, float64.
        prior_scale: standard deviation of the prior.
        noise_scale: standard deviation of the noise, known.
        temperature: T of the posterior p(w|D)^(1/T), likelihood and prior alike.
    """

    inputs_NF: Tensor
    targets_N: Tensor
    prior_scale: float
    noise_scale: float
    temperature: float = 1.0

    @staticmethod
    def features(inputs_BF: Tensor) -> Tensor:
        """Return the inputs with a column of ones, (B, D)."""
        return torch.cat([inputs_BF, torch.ones_like(inputs_BF[:, :1])], dim=1)

    def posterior(self) -> tuple[Tensor, Tensor]:
        """Return mean (D,) and covariance (D, D): Σ = T (ΦᵀΦ/s² + I/s_p²)⁻¹, μ = (ΦᵀΦ/s² + I/s_p²)⁻¹ Φᵀy/s²."""
        features = self.features(self.inputs_NF)
        identity = torch.eye(features.shape[1], dtype=features.dtype)
        precision = features.T @ features / self.noise_scale**2 + identity / self.prior_scale**2
        covariance = torch.linalg.inv(precision)
        return covariance @ features.T @ self.targets_N / self.noise_scale**2, self.temperature * covariance

    def predictive(self, inputs_BF: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean (B,) and variance (B,) of new targets, noise included."""
        features, (mean, covariance) = self.features(inputs_BF), self.posterior()
        return features @ mean, (features @ covariance * features).sum(1) + self.noise_scale**2

    def log_evidence(self) -> float:
        """Return log p(y) = log N(y; 0, s_p² ΦΦᵀ + s² I) at T = 1, in nats."""
        features = self.features(self.inputs_NF)
        identity = torch.eye(len(features), dtype=features.dtype)
        covariance = self.prior_scale**2 * features @ features.T + self.noise_scale**2 * identity
        square = self.targets_N @ torch.linalg.solve(covariance, self.targets_N)
        return -0.5 * (square + torch.logdet(2 * math.pi * covariance)).item()

    def log_joint(self, weights_D: Tensor) -> float:
        """Return log p(y|w) + log p(w), tempered, in nats."""
        residual = self.targets_N - self.features(self.inputs_NF) @ weights_D
        total = -0.5 * (residual @ residual).item() / self.noise_scale**2
        total -= 0.5 * (weights_D @ weights_D).item() / self.prior_scale**2
        total -= len(residual) * math.log(self.noise_scale * math.sqrt(2 * math.pi))
        total -= len(weights_D) * math.log(self.prior_scale * math.sqrt(2 * math.pi))
        return total / self.temperature


class SwagMoments(NamedTuple):
    """The moments of Maddox et al. (2019): mean and variance (D,) of all snapshots, deviations (K, D) of the last K."""

    mean_D: np.ndarray
    variance_D: np.ndarray
    deviations_KD: np.ndarray

    def covariance(self) -> np.ndarray:
        """Return ½ diag(v) + DᵀD / (2(K − 1)), (D, D)."""
        low_rank = self.deviations_KD.T @ self.deviations_KD / (len(self.deviations_KD) - 1)
        return 0.5 * (np.diag(self.variance_D) + low_rank)


def swag_moments(snapshots: Sequence[Any], rank: int) -> SwagMoments:
    """Return the moments of a list of snapshots (D,), oldest first, from their definitions and without recurrences."""
    stacked = np.stack([np.asarray(snapshot, dtype=np.float64) for snapshot in snapshots])
    mean_D = stacked.mean(0)
    variance_D = (stacked**2).mean(0) - mean_D**2
    deviations = np.stack([stacked[t] - stacked[: t + 1].mean(0) for t in range(len(stacked))])
    return SwagMoments(mean_D, variance_D, deviations[-rank:])


def mlp_outputs(weights_D: Tensor, widths: Sequence[int], inputs_BF: Tensor) -> Tensor:
    """Return outputs (B, K) of a tanh MLP; its flat weights hold each layer's matrix, row by row, then its bias.

    Args:
        weights_D: flat weights.
        widths: units per layer from F to K, such as (3, 5, 2).
        inputs_BF: inputs.
    """
    hidden, start = inputs_BF, 0
    for layer, (fan_in, fan_out) in enumerate(pairwise(widths)):
        matrix = weights_D[start : start + fan_out * fan_in].reshape(fan_out, fan_in)
        start += fan_out * fan_in
        hidden = hidden @ matrix.T + weights_D[start : start + fan_out]
        start += fan_out
        hidden = hidden.tanh() if layer < len(widths) - 2 else hidden
    assert start == len(weights_D), "the widths do not use up the weights"
    return hidden


def mlp_log_joint(
    weights_D: Tensor, widths: Sequence[int], data: tuple[Tensor, Tensor], *, prior_scale: float, num_data: int
) -> Tensor:
    """Return (N/B) Σ_b log softmax(f(x_b))_{y_b} + log N(w; 0, prior_scale²), a scalar, row by row.

    Args:
        weights_D: flat weights of `mlp_outputs`.
        widths: units per layer.
        data: inputs (B, F) and classes (B,).
        prior_scale: standard deviation of the prior.
        num_data: N.
    """
    outputs = mlp_outputs(weights_D, widths, data[0])
    total = torch.zeros((), dtype=torch.float64)
    for row, target in zip(outputs, data[1].tolist(), strict=True):
        total = total + (row[target].exp() / row.exp().sum()).log()
    density = (-0.5 * (weights_D / prior_scale) ** 2).exp() / (prior_scale * math.sqrt(2 * math.pi))
    return num_data / len(outputs) * total + density.log().sum()


def finite_differences(function: Callable[[Tensor], Any], at: Tensor, step: float = 1e-6) -> Tensor:
    """Return the gradient of a scalar function at a point by central differences: error about step² in float64."""
    gradient = torch.zeros_like(at)
    for i in range(at.numel()):
        shift = torch.zeros_like(at).flatten()
        shift[i] = step
        shift = shift.view_as(at)
        gradient.view(-1)[i] = (float(function(at + shift)) - float(function(at - shift))) / (2 * step)
    return gradient


def mass(log_prob: Callable[[Tensor], Tensor], low: float = -60.0, high: float = 60.0, points: int = 400_001) -> float:
    """Return ∫ exp(log_prob(x)) dx over [low, high] by the trapezoid rule, for a density of float64 points (P,)."""
    grid = torch.linspace(low, high, points, dtype=torch.float64)
    return torch.trapezoid(log_prob(grid).exp(), grid).item()
