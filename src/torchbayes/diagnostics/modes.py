"""Counts of draws near the modes of a posterior."""

from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.checks import check_positive
from torchbayes.diagnostics._blocks import BLOCK_CPU, check_finite, check_floating


class Modes(NamedTuple):
    """Draws near each of K centres.

    Attributes:
        counts_K: draws within the radius of each centre, int64. A draw counts only for its nearest centre.
        visited: number of centres with at least one draw.
        share: share of all draws that count for a centre, in [0, 1].
    """

    counts_K: Tensor
    visited: int
    share: float


@torch.no_grad()
def modes_visited(draws_MSD: Tensor, centres_KD: Tensor, radius: float) -> Modes:
    r"""Return how many draws have centre k nearest and within the radius, $\lVert w - c_k \rVert_2 \leq r$.

    Also the number of centres visited, and the share of draws near any. For one chain at a time pass
    ``draws_MSD[m]``. In weight space the symmetric copies of a network are separate modes; in function space they
    are one.

    Args:
        draws_MSD: Draws, or points, shape (S, D).
        centres_KD: Centres of the modes.
        radius: Largest distance from a centre, in the units of the draws.

    Raises:
        TypeError: If draws or centres are not floating tensors.
        ValueError: If shapes do not fit, values are not finite, or the radius is not positive.
    """
    check_floating("draws_MSD", draws_MSD)
    check_floating("centres_KD", centres_KD)
    _check_places(draws_MSD, centres_KD)
    check_positive(radius=radius)
    check_finite("centres_KD", centres_KD)
    points_SD = draws_MSD.flatten(0, -2)
    squared_SK = _squared_distances(points_SD, centres_KD)
    least_S, nearest_S = squared_SK.min(-1)
    near_S = nearest_S[least_S.sqrt() <= radius]
    counts_K = torch.bincount(near_S, minlength=len(centres_KD))
    return Modes(counts_K, int((counts_K > 0).sum()), len(near_S) / len(points_SD))


def _squared_distances(points_SD: Tensor, centres_KD: Tensor) -> Tensor:
    """Return squared distances in float64, (S, K), over one block of weights at a time."""
    num_weights = points_SD.shape[-1]
    step = max(1, BLOCK_CPU // len(points_SD))
    squared_SK = points_SD.new_zeros(len(points_SD), len(centres_KD), dtype=torch.float64)
    for first in range(0, num_weights, step):
        last = min(first + step, num_weights)
        block_SD = points_SD[:, first:last].double()
        check_finite("draws_MSD", block_SD, f" for weights {first} to {last - 1}")
        for k, centre_D in enumerate(centres_KD[:, first:last].double()):
            # The difference is taken first, because products of large weights would round away a small distance.
            squared_SK[:, k] += (block_SD - centre_D).square().sum(-1)
    return squared_SK


def _check_places(draws_MSD: Tensor, centres_KD: Tensor) -> None:
    shape, centres = tuple(draws_MSD.shape), tuple(centres_KD.shape)
    if draws_MSD.ndim not in {2, 3}:
        raise ValueError(f"`draws_MSD` must have the shape (M, S, D) or (S, D); got shape {shape}. Flatten the rest.")
    if centres_KD.ndim != 2 or centres[-1] != shape[-1]:
        raise ValueError(f"`centres_KD` must have the shape (K, {shape[-1]}), like the draws; got shape {centres}.")
    if draws_MSD.numel() == 0 or centres_KD.numel() == 0:
        raise ValueError(f"Draws and centres must not be empty; got shapes {shape} and {centres}.")
    if draws_MSD.device != centres_KD.device:
        raise ValueError(
            f"`centres_KD` is on {centres_KD.device}, the draws on {draws_MSD.device}. "
            f"Move it with .to('{draws_MSD.device}')."
        )
