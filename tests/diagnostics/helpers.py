"""Chains with known properties, and arviz as the oracle."""

import tempfile
import warnings
from unittest import mock

import torch
from torch import Tensor

# On its first import of a day arviz 0.23 warns of version 1 and leaves a note of it in the user's cache.
with (
    tempfile.TemporaryDirectory() as cache,
    mock.patch("platformdirs.user_cache_dir", return_value=cache),
    warnings.catch_warnings(action="ignore"),
):
    import arviz

__all__ = ["ar1", "arviz", "chains"]


def ar1(num_chains: int, num_draws: int, num_quantities: int, rho: float, seed: int = 0) -> Tensor:
    """Stationary chains x_s = rho x_{s-1} + sqrt(1 - rho²) e_s with standard normal margins, shape (M, S, D)."""
    source = torch.Generator().manual_seed(seed)
    draws = torch.randn(num_chains, num_draws, num_quantities, generator=source, dtype=torch.float64)
    for s in range(1, num_draws):
        draws[:, s] = rho * draws[:, s - 1] + (1 - rho**2) ** 0.5 * draws[:, s]
    return draws


def chains(num_chains: int, num_draws: int, rho: float, seed: int = 0) -> Tensor:
    """Chains of every kind that challenges a diagnostic, shape (M, S, 8)."""
    draws = ar1(num_chains, num_draws, 8, rho, seed)
    draws[..., 1] = (2 * draws[..., 1]).round()  # ties everywhere
    draws[..., 2] = draws[..., 2].sinh() ** 5  # tails so heavy that no variance is of use
    draws[0, num_draws // 3 :, 3] = 0.3  # a chain that gets stuck
    draws[0, :, 4] += 3  # a chain somewhere else
    draws[0, :, 5] *= 5  # a chain of another spread
    draws[:, 1::3, 6] = draws[:, : num_draws - 1 : 3, 6]  # proposals refused
    draws[..., 7] = 1e3 + 0.1 * draws[..., 7]  # far from zero
    return draws
