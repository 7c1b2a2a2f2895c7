"""sample: run a sampler on any density, in memory; `fit` does the same for a model, with files and resume."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchbayes.inference.sampler import Sampler
from torchbayes.model.dynamics import Density
from torchbayes.model.seeds import member_seeds


@dataclass(frozen=True)
class Chains:
    """What a sampler leaves.

    Attributes:
        weights_MSD: kept weights.
        numbers: name -> float64 (M, steps), what every step saw, burn-in included.
        state: the last state.
    """

    weights_MSD: Tensor
    numbers: dict[str, Tensor]
    state: Any


def sample(density: Density, method: Sampler, start_MD: Tensor, *, seed: int = 0) -> Chains:
    """Draw from a density, which need not be a network's.

    Args:
        density: the target: a `LogDensity` with data, or a `FunctionDensity`.
        method: the sampler, such as `HMC()`; its number of chains is that of the rows of `start_MD`.
        start_MD: where the chains start.
        seed: seed of the chains.

    Returns:
        Kept weights and what every step saw.

    Raises:
        ValueError: if the density is not finite at the start.
    """
    state = method.init(density, start_MD, seeds=member_seeds(seed, len(start_MD)))
    weights, numbers = [], []
    for _ in range(method.steps):
        state, info = method.step(density, state)
        numbers.append(info.means())
        if method.keeps(state.step):
            weights.append(state.weights_MD.clone())
    stacked = {name: torch.stack([n[name] for n in numbers], dim=1).double() for name in numbers[0]}
    return Chains(torch.stack(weights, dim=1), stacked, state)
