"""Predictions and targets by formulas, which other libraries can be given too."""

import torch

import torchbayes as tb
from torchbayes.conformal import Forecast


def forecast(rows: int, start: int = 0) -> tuple[Forecast, torch.Tensor]:
    i = torch.arange(start, start + rows, dtype=torch.float64)
    mean, scale = torch.sin(i), 0.5 + 0.3 * torch.cos(1.7 * i)
    return Forecast(mean, scale, mean - scale, mean + scale), mean + 1.3 * scale * torch.sin(2.3 * i * i)


def classes(rows: int, start: int = 0) -> tuple[tb.Predictive, torch.Tensor]:
    i = torch.arange(start, start + rows)
    logits = 2 * torch.cos(torch.outer(i + 1.0, torch.tensor([0.7, 1.9, 2.3, 3.1])).double())
    return tb.Predictive.from_probs(logits.softmax(-1)), (7 * i * i + 3 * i + i // 3) % 4


def average(rows: int, draws: int = 5, seed: int = 0, *, scale: float = 0.6) -> tuple[tb.Predictive, torch.Tensor]:
    """A mixture of normal distributions, and targets that are not quite from it."""
    source = torch.Generator().manual_seed(seed)
    outputs = torch.randn(draws, rows, 1, generator=source, dtype=torch.float64)
    centre = torch.linspace(-1, 1, rows, dtype=torch.float64).unsqueeze(-1)
    noise = torch.randn(rows, 1, generator=source, dtype=torch.float64)
    return tb.Predictive(centre + outputs, tb.likelihoods.Gaussian(scale)), centre + 1.3 * noise
