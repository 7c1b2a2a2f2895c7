"""Random directions from a network, scaled to its filters."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from torchbayes.model.layout import Layout
from torchbayes.model.model import PREFIX
from torchbayes.native.seeds import Purpose, generator


def normal(count: int, size: int, *, seed: int) -> Tensor:
    """Return the standard normal numbers of which directions are made, float64 (K, D): of K and D, the same for all."""
    return torch.randn(count, size, generator=generator(Purpose.BASIN, seed), dtype=torch.float64)


def filtered(layout: Layout, weights_D: Tensor, normal_KD: Tensor) -> Tensor:
    r"""Return directions whose filters have the norms of those of the network (Li et al. 2018).

        d_j ← d_j |w_j| / |d_j|    of every filter, or row of a weight matrix, j

    Biases and parameters of norms, and learned parameters of the likelihood, stay where they are. A network of ReLU
    units without biases has the same surface when one layer is scaled up and the next one down.

    Args:
        layout: names and shapes of the weights.
        weights_D: the network.
        normal_KD: standard normal numbers, float64, on the CPU.

    Returns:
        Float64 tensor (K, D).

    Raises:
        ValueError: if no weight matrix is random and not zero.
    """
    own, found_KD = layout.split(weights_D.detach().double().cpu()), normal_KD.clone()
    for name, part_K in layout.split(found_KD).items():
        if own[name].ndim < 2 or name.startswith(PREFIX):
            part_K.zero_()
            continue
        drawn_K, wanted = part_K.flatten(2), own[name].flatten(1).norm(dim=1)
        drawn_K *= (wanted / drawn_K.norm(dim=2).clamp_min(1e-300)).unsqueeze(-1)
    if not found_KD.any():
        raise ValueError("filters need a random weight matrix that is not zero; got none. Use shape='sphere'.")
    return found_KD


def scaled(layout: Layout, weights_D: Tensor, normal_KD: Tensor, *, shape: Literal["filters", "sphere"]) -> Tensor:
    """Return directions with the norms of the filters of a network, or of length 1, float64 (K, D).

    Args:
        layout: names and shapes of the weights.
        weights_D: the network.
        normal_KD: standard normal numbers, float64, on the CPU.
        shape: which of the two.

    Raises:
        ValueError: if no weight matrix is random and not zero, with filters.
    """
    if shape == "filters":
        return filtered(layout, weights_D, normal_KD)
    return normal_KD / normal_KD.norm(dim=1, keepdim=True)
