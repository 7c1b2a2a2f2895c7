"""Inverse problems whose posteriors are known."""

import math
from typing import Any

import torch
from torch import nn

import torchbayes as tb
from torchbayes.inverse import Problem, derivatives

DOUBLE = torch.float64
NOISE_U, NOISE_F = 0.3, 0.5


class Sines(nn.Module):
    """Features sin(j x + j), j = 1, 2, 3."""

    def __init__(self):
        super().__init__()
        self.register_buffer("j", torch.arange(1, 4, dtype=DOUBLE))

    def forward(self, x):
        return torch.sin(x * self.j + self.j)


def linear():
    """A problem that is linear in its weights, u″ + 2u = f, its rows, and mean and covariance of its posterior."""
    torch.manual_seed(1)
    problem = Problem(
        nn.Sequential(Sines(), nn.Linear(3, 1, bias=False, dtype=DOUBLE)),
        {"u": lambda u, x, k: u(x), "f": lambda u, x, k: derivatives(u, x, order=2)[2] + 2 * u(x)},
        noise={"u": NOISE_U, "f": NOISE_F},
        prior=tb.priors.Normal(1.5),
    )
    x_u, x_f = torch.linspace(-1, 1, 4, dtype=DOUBLE), torch.linspace(-2, 2, 6, dtype=DOUBLE)
    y_u, y_f = torch.sin(3 * x_u), torch.cos(2 * x_f)
    j = torch.arange(1, 4, dtype=DOUBLE)
    design_u = torch.sin(x_u[:, None] * j + j) / NOISE_U
    design_f = torch.sin(x_f[:, None] * j + j) * (2 - j**2) / NOISE_F
    design, targets = torch.cat([design_u, design_f]), torch.cat([y_u / NOISE_U, y_f / NOISE_F])
    covariance = torch.linalg.inv(design.T @ design + torch.eye(3, dtype=DOUBLE) / 1.5**2)
    return problem, problem.rows({"u": (x_u, y_u), "f": (x_f, y_f)}), covariance @ design.T @ targets, covariance


class Wave(nn.Module):
    """u(x) = sin 2x, without weights."""

    def __init__(self):
        super().__init__()
        self.register_buffer("frequency", torch.tensor(2.0, dtype=DOUBLE))

    def forward(self, x):
        return torch.sin(self.frequency * x)


POINTS = torch.linspace(0.1, 2, 5, dtype=DOUBLE)
SLOPES = 0.8 * 2 * torch.cos(2 * POINTS) + 0.1 * torch.tensor([1, -1, 0.5, 0.3, -0.4], dtype=DOUBLE)


def scalar(belief, noise: Any = 0.3):
    """Return a problem whose only unknown is k in k u′ = f, and its rows."""
    problem = Problem(
        Wave(),
        {"f": lambda u, x, k: k["k"] * derivatives(u, x)[1]},
        coefficients={"k": belief},
        noise={"f": noise},
    )
    return problem, problem.rows({"f": (POINTS, SLOPES)})


def moments(log_prior, low, high, noise=0.3):
    """Return mean and standard deviation of k, by quadrature."""
    k = torch.linspace(low, high, 40_001, dtype=DOUBLE)[1:-1]
    residuals = SLOPES - k[:, None] * 2 * torch.cos(2 * POINTS)
    log = log_prior(k) - residuals.square().sum(1) / (2 * noise**2)
    weights = (log - log.max()).exp()
    weights = weights / weights.sum()
    mean = float((weights * k).sum())
    return mean, math.sqrt(float((weights * (k - mean) ** 2).sum()))
