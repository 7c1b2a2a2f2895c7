"""Effective samples of a half-Cauchy scale that D weights share: by NUTS on weights without centre, and by plain Gibbs.

The model is linear, so that Gibbs sampling can draw all weights given the scale exactly, which it cannot in a network.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import torchbayes as tb
from torchbayes.diagnostics import ess_bulk

NOISE, SCALE = 0.5, 1.0
SWEEPS, BURN_IN, STEPS = 10_000, 500, 2_500


def gibbs(gram: Tensor, pull: Tensor, *, seed: int) -> np.ndarray:
    """Return log scales of sweeps: w | v is normal; v | w, c and c | v are inverse gamma numbers."""
    source = np.random.default_rng(seed)
    eigen, axes = np.linalg.eigh(gram.numpy())
    eigen, pulled, v = eigen.clip(0), axes.T @ pull.numpy(), SCALE**2
    samples = np.empty(BURN_IN + SWEEPS)
    for sweep in range(len(samples)):
        precision = eigen + 1 / v
        w = pulled / precision + source.standard_normal(len(eigen)) / np.sqrt(precision)
        rate = source.gamma(1.0) / (1 / SCALE**2 + 1 / v)  # 1/c
        v = (rate + 0.5 * (w**2).sum()) / source.gamma(0.5 + len(eigen) / 2)
        samples[sweep] = 0.5 * math.log(v)
    return samples[BURN_IN:]


def nuts(gram: Tensor, pull: Tensor) -> tuple[Tensor, int]:
    """Return log scales of one chain, and the gradients that they took after burn-in."""
    size, counts = len(pull), [0]

    def log_density(rows: Tensor) -> Tensor:
        counts[-1] += len(rows)
        w, u = rows[:, :size] * rows[:, size:].exp(), rows[:, size] - math.log(SCALE)
        prior = -0.5 * rows[:, :size].square().sum(1) - u - F.softplus(-2 * u)
        return w @ pull - 0.5 * (w * (w @ gram)).sum(1) + prior

    method, start = tb.NUTS(1, STEPS, BURN_IN, target_acceptance=0.9), torch.zeros(1, size + 1, dtype=torch.float64)
    density = tb.FunctionDensity(log_density)
    chains = tb.sample(density, method, start, callbacks=(lambda _: counts.append(0),), seed=1)
    return chains.weights_MSD[..., size].double(), sum(counts[BURN_IN:])


def main() -> None:
    """Print a line for each size."""
    warnings.simplefilter("ignore", tb.ProblemWarning)
    for size in (5, 50, 500):
        for rows in (max(size // 5, 2), 2 * size):
            source = torch.Generator().manual_seed(size)
            inputs = torch.randn(rows, size, generator=source, dtype=torch.float64)
            weights = 0.3 * torch.randn(size, generator=source, dtype=torch.float64)
            targets = inputs @ weights + NOISE * torch.randn(rows, generator=source, dtype=torch.float64)
            about = inputs.T @ inputs / NOISE**2, inputs.T @ targets / NOISE**2
            swept = torch.from_numpy(np.stack([gibbs(*about, seed=seed) for seed in range(2)]))
            drawn, gradients = nuts(*about)
            print(
                f"{size} weights, {rows} rows: {float(ess_bulk(swept)) / swept.numel():.3f} a sweep of Gibbs; "
                f"{float(ess_bulk(drawn)) / drawn.numel():.3f} a draw of NUTS, of {gradients / drawn.numel():.0f} "
                f"gradients; mean {float(swept.mean()):.2f}, {float(drawn.mean()):.2f}"
            )


if __name__ == "__main__":
    main()
