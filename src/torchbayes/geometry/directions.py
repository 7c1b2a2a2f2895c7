"""Random directions from a network, scaled to its filters."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from torchbayes.model.model import Model
from torchbayes.model.priors.axes import Axes, axes_of
from torchbayes.randomness.seeds import Purpose, generator


def normal(count: int, size: int, *, seed: int) -> Tensor:
    """Return the standard normal numbers of which directions are made, float64 (K, D): of K and D, the same for all."""
    return torch.randn(count, size, generator=generator(Purpose.BASIN, seed), dtype=torch.float64)


def filtered(model: Model, weights_D: Tensor, normal_KD: Tensor) -> Tensor:
    r"""Return directions whose filters have the norms of those of the network (Li et al. 2018).

        d_j ← d_j |w_j| / |d_j|    of the weights of every output unit or channel j

    Where a module is not known, they are those of the first axis. Biases and parameters of norms, and learned
    parameters of the likelihood, stay where they are. A network of ReLU units without biases has the same surface when
    one layer is scaled up and the next one down.

    Args:
        model: whose weights they are.
        weights_D: the network.
        normal_KD: standard normal numbers, float64, on the CPU.

    Returns:
        Float64 tensor (K, D).

    Raises:
        ValueError: if no weight matrix is random and not zero.
    """
    layout, axes = model.layout, axes_of(model.network.module, model.network.layout.names)
    own, found_KD = layout.split(weights_D.detach().double().cpu()), normal_KD.clone()
    for name, part_K in layout.split(found_KD).items():
        grid = _filters(axes.get(name), tuple(own[name].shape))
        if grid is None:
            part_K.zero_()
            continue
        drawn_K, wanted = part_K.view(-1, *grid), own[name].view(grid).square().sum((-3, -1), keepdim=True).sqrt()
        drawn_K *= wanted / drawn_K.square().sum((-3, -1), keepdim=True).sqrt().clamp_min(1e-300)
    if not found_KD.any():
        raise ValueError("filters need a random weight matrix that is not zero; got none. Use shape='sphere'.")
    return found_KD


def _filters(axes: Axes | None, shape: tuple[int, ...]) -> tuple[int, int, int, int] | None:
    """Return how a parameter is cut into filters, as of `Axes.grid`; None if it has none, or is random in part."""
    if axes is None or axes.shape != shape or (axes.outputs is None and not axes.unknown):
        return None
    return axes.grid(axes.outputs or 0)


def scaled(model: Model, weights_D: Tensor, normal_KD: Tensor, *, shape: Literal["filters", "sphere"]) -> Tensor:
    """Return directions with the norms of the filters of a network, or of length 1, float64 (K, D).

    Args:
        model: whose weights they are.
        weights_D: the network.
        normal_KD: standard normal numbers, float64, on the CPU.
        shape: which of the two.

    Raises:
        ValueError: if no weight matrix is random and not zero, with filters.
    """
    if shape == "filters":
        return filtered(model, weights_D, normal_KD)
    return normal_KD / normal_KD.norm(dim=1, keepdim=True)
