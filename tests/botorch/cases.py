"""Surrogates with known answers."""

import math

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.linalg import Dense

pytest.importorskip("botorch")

NOISE = 0.3


def bayesian_line(columns: int = 2, targets: int = 1) -> tuple[tb.Gaussian, Tensor, Tensor]:
    """The exact posterior of linear regressions y = W x + ε, W ~ N(0, 1), ε ~ N(0, 0.3²), with its rows."""
    source = torch.Generator().manual_seed(1)
    X = torch.rand(6, columns, generator=source, dtype=torch.float64)
    Y = X @ torch.randn(columns, targets, generator=source, dtype=torch.float64)
    Y = Y + NOISE * torch.randn(6, targets, generator=source, dtype=torch.float64)
    return line_given(X, Y), X, Y


def line_given(X: Tensor, Y: Tensor) -> tb.Gaussian:
    """The same, given rows."""
    network = nn.Linear(X.shape[1], Y.shape[1], bias=False).double()
    model = tb.Model(network, tb.likelihoods.Gaussian(NOISE), tb.priors.Normal(1.0))
    precision = X.T @ X / NOISE**2 + torch.eye(X.shape[1]).double()
    mean = torch.linalg.solve(precision, X.T @ Y / NOISE**2).T.reshape(1, -1)
    whole = torch.block_diag(*[precision] * Y.shape[1])
    return tb.Gaussian(model, mean, Dense.of_precision(whole.unsqueeze(0)), linear=True)


def drawn_networks(columns: int = 2, outputs: int = 1, *, draws: int = 12, dtype: torch.dtype = torch.float64, **kw):
    """A posterior of so many networks of two layers, with weights from a normal."""
    network = tb.networks.mlp((columns,), outputs, hidden=(5,), activation="tanh").to(dtype)
    model = tb.Model(network, kw.pop("likelihood", tb.likelihoods.Gaussian(NOISE)), tb.priors.Normal())
    weights = torch.randn(draws, model.layout.size, generator=torch.Generator().manual_seed(3), dtype=dtype)
    return tb.Draws(model, weights.unsqueeze(0))


def points(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 5) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def normal_ei(mean: Tensor, scale: Tensor, best: float) -> Tensor:
    """E max(f − best, 0) for f ~ N(mean, scale²)."""
    z = (mean - best) / scale
    return (mean - best) * torch.special.ndtr(z) + scale * torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
