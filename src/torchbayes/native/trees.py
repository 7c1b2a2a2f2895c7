"""Iterations of NUTS, as dense.cpp takes them."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.native.dense import DenseKernel, call


class Chains(NamedTuple):
    """Where M chains are, and what an iteration needs.

    Attributes:
        weights_MD: weights.
        gradient_MD: gradient of the log density there.
        log_density_M: log density there, as far as the kernel has it, float64.
        log_likelihood_M: log likelihood there, float64.
        momentum_MD: momenta v as Rᵀ v, where the inverse mass is R Rᵀ.
        kinetic_M: their kinetic energy, float64.
        factor: R: its diagonal (M, D), or lower triangular (M, D, D).
        step_size_M: step size of each, float64.
        streams_M: hashes, int64 with the bits of `seeds.streams`, that those of doublings and their numbers go on with.
    """

    weights_MD: Tensor
    gradient_MD: Tensor
    log_density_M: Tensor
    log_likelihood_M: Tensor
    momentum_MD: Tensor
    kinetic_M: Tensor
    factor: Tensor
    step_size_M: Tensor
    streams_M: Tensor


class Seen(NamedTuple):
    """What the trajectories of M chains came to, each (M,).

    Attributes:
        acceptance_M: sum of the probabilities of acceptance of all points, float64.
        leapfrogs_M: number of these, int64.
        divergent_M: whether the energy error was too large at one of them, bool.
        outside_M: whether it was not finite, bool.
        saturated_M: whether the trajectory was cut short, bool.
    """

    acceptance_M: Tensor
    leapfrogs_M: Tensor
    divergent_M: Tensor
    outside_M: Tensor
    saturated_M: Tensor


class _Growth(ctypes.Structure):
    """`Growth` of trees.hpp."""

    _fields_ = [
        ("step_sizes", ctypes.c_void_p),
        ("factors", ctypes.c_void_p),
        ("dense", ctypes.c_bool),
        ("streams", ctypes.c_void_p),
        ("doublings", ctypes.c_int64),
        ("divergence", ctypes.c_double),
        ("kinetic", ctypes.c_void_p),
        ("densities", ctypes.c_void_p),
        ("likelihoods", ctypes.c_void_p),
        ("acceptances", ctypes.c_void_p),
        ("leapfrogs", ctypes.c_void_p),
        ("divergent", ctypes.c_void_p),
        ("outside", ctypes.c_void_p),
        ("saturated", ctypes.c_void_p),
    ]


def grow(
    kernel: DenseKernel,
    chains: Chains,
    rows: tuple[Tensor, Tensor],
    *,
    limits: tuple[int, float],
    scales: tuple[float, float],
    chunk_size: int,
) -> Seen:
    """Move every chain to a point drawn from its trajectory, in place.

    Args:
        kernel: the kernel of the network.
        chains: where they are; the first four are contiguous and changed.
        rows: inputs (B, ...) and targets that all chains share.
        limits: most doublings, and the energy error above which a trajectory ends.
        scales: factors on log likelihood and log prior.
        chunk_size: most rows that go through a network at once.

    Returns:
        What was seen.

    Raises:
        ValueError: if a class label is not one of the network's outputs.
    """
    members, factor = len(chains.weights_MD), chains.factor.contiguous()
    flags = torch.zeros(3, members, dtype=torch.bool)
    seen = Seen(torch.zeros(members, dtype=torch.float64), torch.zeros(members, dtype=torch.int64), *flags.unbind())
    momentum_MD, streams_M = chains.momentum_MD.contiguous(), chains.streams_M.contiguous()
    step_size_M, kinetic_M = chains.step_size_M.double().contiguous(), chains.kinetic_M.double().contiguous()
    about = _Growth(
        step_size_M.data_ptr(),
        factor.data_ptr(),
        factor.ndim == 3,
        streams_M.data_ptr(),
        *limits,
        kinetic_M.data_ptr(),
        *(tensor.data_ptr() for tensor in (chains.log_density_M, chains.log_likelihood_M, *seen)),
    )
    call(
        kernel,
        "trees",
        chains.weights_MD.dtype,
        *kernel.target,
        ctypes.c_int64(members),
        *(ctypes.c_void_p(tensor.data_ptr()) for tensor in (chains.weights_MD, momentum_MD, chains.gradient_MD)),
        ctypes.byref(about),
        ctypes.c_double(scales[0]),
        ctypes.c_double(scales[1]),
        rows=rows,
        groups=1,
        chunk_size=chunk_size,
    )
    return seen
