"""Random directions from a network, scaled to its filters."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from torchbayes.model.model import Model
from torchbayes.model.priors.axes import Axes, axes_of
from torchbayes.randomness.seeds import Purpose, generator


def normal(count: int, size: int, *, seed: int) -> Tensor:
    """Return standard normal numbers, float64 (K, D), that depend only on K, D and the seed."""
    return torch.randn(count, size, generator=generator(Purpose.BASIN, seed), dtype=torch.float64)


def filtered(model: Model, weights_D: Tensor, normal_KD: Tensor) -> Tensor:
    """Return float64 directions (K, D) whose filters have the norms of those of the network (Li et al. 2018).

        d_j ← d_j |w_j| / |d_j|    for the weights of every output unit or channel j

    In an unknown module, filters lie along the first axis. Biases, parameters of norms and learned parameters of
    the likelihood do not move. The surface of a network of ReLU units without biases then does not change when one
    layer is scaled up and the next one down. `normal_KD` is float64, on the CPU. Raises a ValueError if no weight
    matrix is random and not zero.
    """
    layout, axes = model.layout, axes_of(model.network.module, model.network.layout.names)
    weights, directions_KD = layout.split(weights_D.detach().double().cpu()), normal_KD.clone()
    for name, part_K in layout.split(directions_KD).items():
        grid = _filters(axes.get(name), tuple(weights[name].shape))
        if grid is None:
            part_K.zero_()
            continue
        drawn_K, norms = part_K.view(-1, *grid), weights[name].view(grid).square().sum((-3, -1), keepdim=True).sqrt()
        drawn_K *= norms / drawn_K.square().sum((-3, -1), keepdim=True).sqrt().clamp_min(1e-300)
    if not directions_KD.any():
        raise ValueError("filters need a random weight matrix that is not zero; got none. Use shape='sphere'.")
    return directions_KD


def _filters(axes: Axes | None, shape: tuple[int, ...]) -> tuple[int, int, int, int] | None:
    """Return how a parameter is cut into filters, as `Axes.grid`; None if it has none, or is random only in part."""
    if axes is None or axes.shape != shape or (axes.outputs is None and not axes.unknown):
        return None
    return axes.grid(axes.outputs or 0)


def scaled(model: Model, weights_D: Tensor, normal_KD: Tensor, *, shape: Literal["filters", "sphere"]) -> Tensor:
    """Return float64 directions (K, D) with the norms of the filters of a network, or of length 1.

    `normal_KD` is float64, on the CPU. Raises a ValueError as `filtered` does.
    """
    if shape == "filters":
        return filtered(model, weights_D, normal_KD)
    return normal_KD / normal_KD.norm(dim=1, keepdim=True)
