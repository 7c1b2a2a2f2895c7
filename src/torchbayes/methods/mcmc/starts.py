"""Where chains start on a density of named parameters when no start is given."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchbayes.density.dynamics import Density
from torchbayes.methods.faults import is_fault, worded
from torchbayes.randomness.seeds import Purpose, generator

RADIUS, ATTEMPTS = 2.0, 100  # as in Stan


def dispersed(density: Density, size: int, seeds: Sequence[int]) -> Tensor:
    """Return starts uniform on (−2, 2), float64 (M, D), redrawn where the density is not finite.

    As in Stan (reference manual, "Starts"). Raises ValueError if the density or its gradient is finite at none of 100
    points.
    """
    return torch.stack([_one(density, size, seed, chain) for chain, seed in enumerate(seeds)])


def _one(density: Density, size: int, seed: int, chain: int) -> Tensor:
    """Return the start of one chain; ValueError if there is none."""
    random, reason = generator(Purpose.DISPERSED, seed), "it is not finite"
    for _ in range(ATTEMPTS):
        start_D = RADIUS * (2 * torch.rand(size, dtype=torch.float64, generator=random) - 1)
        try:
            value = density(start_D.unsqueeze(0))
        except Exception as error:
            if not is_fault(error, density):
                raise
            reason = worded(error)
            continue
        if torch.isfinite(value.log_density).all() and torch.isfinite(value.gradient).all():
            return start_D
    raise ValueError(
        f"no start for chain {chain}: at {ATTEMPTS} points, uniform on (-{RADIUS:g}, {RADIUS:g}) without constraints, "
        f"the log density or its gradient could not be computed or is not finite (last: {reason}). Give `start_MD`."
    )
