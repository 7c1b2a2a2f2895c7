"""Problems whose evidence is known, exactly or by quadrature, and what their estimates are compared with."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor, distributions, nn

from tests.oracles import LinearGaussian, normal
from tests.targets import logistic_data
from torchbayes.evidence import Evidence, FunctionTarget
from torchbayes.model import Model, likelihoods, priors

Data = tuple[Tensor, Tensor]


def linear_problem() -> tuple[Model, Data, LinearGaussian]:
    """A linear regression with 3 weights and 10 rows, and its oracle."""
    inputs = normal(10, 2, seed=11)
    targets = inputs @ torch.tensor([1.0, -0.6], dtype=torch.float64) + 0.4 + 0.5 * normal(10, seed=12)
    model = Model(nn.Linear(2, 1).double(), likelihoods.Gaussian(0.5), priors.Normal(0.8))
    return model, (inputs, targets), LinearGaussian(inputs, targets, 0.8, 0.5)


def tanh_problem() -> tuple[Model, Data]:
    """A network of one tanh unit, with 4 weights, and 8 rows."""
    inputs = torch.linspace(-2, 2, 8, dtype=torch.float64).unsqueeze(1)
    targets = 1.2 * torch.tanh(1.5 * inputs[:, 0] - 0.4) + 0.3 * normal(8, seed=3)
    network = nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1)).double()
    return Model(network, likelihoods.Gaussian(0.3), priors.Normal(1.0)), (inputs, targets)


@lru_cache
def tanh_log_evidence(points: int = 801) -> float:
    """log p(D) of `tanh_problem`: the last layer by the closed form, the first by the trapezoid rule on [−8, 8]²."""
    _, (inputs, targets) = tanh_problem()
    axis = torch.linspace(-8, 8, points, dtype=torch.float64)
    parts = []
    for slope in axis:
        units_PN = torch.tanh(slope * inputs[:, 0] + axis.unsqueeze(1))
        features_PND = torch.stack([units_PN, torch.ones_like(units_PN)], dim=-1)
        covariance = features_PND @ features_PND.mT + 0.09 * torch.eye(8, dtype=torch.float64)
        evidence_P = distributions.MultivariateNormal(torch.zeros(8).double(), covariance).log_prob(targets)
        parts.append(evidence_P - 0.5 * (slope**2 + axis**2) - math.log(2 * math.pi))
    return float(torch.stack(parts).logsumexp((0, 1))) + 2 * math.log(16 / (points - 1))


def logistic_problem() -> tuple[Model, Data]:
    """A logistic regression with 3 weights and 20 rows."""
    inputs_ND, signs_N = logistic_data()
    model = Model(nn.Linear(2, 1).double(), likelihoods.Bernoulli(), priors.Normal(2.0))
    return model, (inputs_ND[:, :2], (signs_N + 1) / 2)


@lru_cache
def logistic_log_evidence(points: int = 121) -> float:
    """log p(D) of `logistic_problem` by the trapezoid rule on [−15, 15]³."""
    inputs_ND, signs_N = logistic_data()
    axis = torch.linspace(-15, 15, points, dtype=torch.float64)
    rest_PD = torch.cartesian_prod(axis, axis)
    parts = []
    for first in axis:
        grid_PD = torch.cat([first.expand(len(rest_PD), 1), rest_PD], dim=1)
        log_likelihood_P = nn.functional.logsigmoid(grid_PD @ (signs_N[:, None] * inputs_ND).T).sum(1)
        log_prior_P = -0.125 * grid_PD.square().sum(1) - 3 * math.log(2 * math.sqrt(2 * math.pi))
        parts.append((log_likelihood_P + log_prior_P).logsumexp(0))
    return float(torch.stack(parts).logsumexp(0)) + 3 * math.log(30 / (points - 1))


def normal_draws(scale: float, size: int):
    """Return the draws of N(0, scale² I)."""

    def draw(count: int, seed: int) -> Tensor:
        source = torch.Generator().manual_seed(seed)
        return scale * torch.randn(count, size, generator=source, dtype=torch.float64)

    return draw


def bimodal() -> tuple[FunctionTarget, float]:
    """Two modes of different mass in two dimensions: p(D|w) = Σ_j a_j N(w; c_j, s_j²), prior N(0, 2² I)."""
    shares = torch.tensor([0.3, 0.7], dtype=torch.float64)
    centres = torch.tensor([[-2.0, 1.0], [1.5, 0.5]], dtype=torch.float64)
    scales = torch.tensor([0.5, 0.3], dtype=torch.float64)

    def mixture(at_MD: Tensor, variances: Tensor) -> Tensor:
        squares = (at_MD.unsqueeze(1) - centres).square().sum(-1)
        return (shares.log() - 0.5 * squares / variances - (2 * math.pi * variances).log()).logsumexp(-1)

    prior = distributions.Normal(torch.tensor(0.0).double(), 2.0)
    target = FunctionTarget(
        lambda w: prior.log_prob(w).sum(-1), lambda w: mixture(w, scales**2) - 5.0, normal_draws(2.0, 2)
    )
    return target, float(mixture(torch.zeros(1, 2).double(), scales**2 + 4.0)) - 5.0


def skewed() -> tuple[FunctionTarget, float]:
    """A rate λ = e^w with prior Gamma(2, 0.5) and 3 Poisson counts: prior and posterior of w are skewed.

    p(D) = b^a Γ(a + Σy) / (Γ(a) (b + n)^{a + Σy} Π y!), the negative binomial.
    """
    shape, rate, counts = 2.0, 0.5, torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)

    def log_prior(w: Tensor) -> Tensor:
        return (shape * w - rate * w.exp())[:, 0] + shape * math.log(rate) - math.lgamma(shape)

    def log_likelihood(w: Tensor) -> Tensor:
        return (counts * w - w.exp() - torch.lgamma(counts + 1)).sum(-1)

    def draw(count: int, seed: int) -> Tensor:
        exponentials = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).log()
        return (-exponentials.sum(1, keepdim=True) / rate).log()  # Gamma(2) is a sum of two exponentials

    total, number = float(counts.sum()), len(counts)
    exact = shape * math.log(rate) + math.lgamma(shape + total) - math.lgamma(shape)
    exact -= (shape + total) * math.log(rate + number) + float(torch.lgamma(counts + 1).sum())
    return FunctionTarget(log_prior, log_likelihood, draw), exact


def assert_within(actual: Evidence, exact: float, errors: float = 4.0, least: float = 0.0) -> None:
    """Compare an estimate with the exact answer, in its own error bars, of which it must have one of a useful size."""
    assert 0 < actual.error < 0.5
    assert abs(actual.log_evidence - exact) < errors * max(actual.error, least), (actual, exact)


def assert_calibrated(scores: list[float], low: float = 0.75, high: float = 1.3) -> None:
    """Check that errors in units of error bars have a root mean square near 1, and no sign of their own."""
    scores_R = torch.tensor(scores, dtype=torch.float64)
    spread, mean = float(scores_R.square().mean().sqrt()), float(scores_R.mean())
    assert low < spread < high, (spread, mean)
    assert abs(mean) < 4 / math.sqrt(len(scores)) + 0.2, (spread, mean)
