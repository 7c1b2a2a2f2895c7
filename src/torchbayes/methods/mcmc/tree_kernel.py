"""Iterations of NUTS in one call of the library's own kernel (`native/sources/trees.hpp`)."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.density.dynamics import Value
from torchbayes.density.kernels import OnData
from torchbayes.native.dense import call


class Growth(NamedTuple):
    """An iteration of NUTS on all the data.

    Attributes:
        weights_MD: where the chains are; not changed.
        momentum_MD: momenta v as Rᵀ v, where the inverse mass is R Rᵀ; not changed.
        value: the density there; not changed.
        kinetic_M: kinetic energy, float64.
        factor: R: its diagonal (M, D), or lower triangular (M, D, D).
        step_size_M: step size of each chain, float64.
        streams_M: hashes from which each chain's uniform numbers follow, int64: see `randomness.seeds.streams`.
        doublings: most doublings of a trajectory.
        divergence: energy error above which a trajectory ends.
    """

    weights_MD: Tensor
    momentum_MD: Tensor
    value: Value
    kinetic_M: Tensor
    factor: Tensor
    step_size_M: Tensor
    streams_M: Tensor
    doublings: int
    divergence: float


class Grown(NamedTuple):
    """Where chains are after such an iteration, and what was seen.

    Attributes:
        weights_MD: weights.
        value: the density there.
        leapfrogs_M: steps of each trajectory.
        acceptance_M: sum of their probabilities of acceptance, float64.
        divergent_M: whether the energy error was too large at one of them, bool.
        outside_M: whether it was not finite, bool.
        saturated_M: whether the trajectory was cut short, bool.
    """

    weights_MD: Tensor
    value: Value
    leapfrogs_M: Tensor
    acceptance_M: Tensor
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


def grow(density: LogDensity, growth: Growth) -> Grown | None:
    """Return where an iteration leads; None where the kernel does not have the whole density.

    Args:
        density: the density.
        growth: the iteration.

    Raises:
        ValueError: if a class label is not one of the network's outputs.
    """
    on = density.kernel()
    if on is None or not on.model.complete:
        return None
    on.model.check(growth.weights_MD, *on.rows, shared=True)
    there = [t.clone(memory_format=torch.contiguous_format) for t in (growth.weights_MD, *growth.value)]
    weights_MD, log_density_M, gradient_MD, log_likelihood_M = there
    constant_M = on.scales.prior * on.model.prior.add_rest_(None, weights_MD, 0.0)
    value = Value(log_density_M.sub_(constant_M), gradient_MD, log_likelihood_M)
    seen = _move(on, growth, weights_MD, value)
    return Grown(weights_MD, value._replace(log_density=log_density_M.add_(constant_M)), *seen)


def _move(on: OnData, growth: Growth, weights_MD: Tensor, value: Value) -> tuple[Tensor, ...]:
    """Move chains and their densities, as far as the kernel has these, in place.

    Returns:
        The rest of `Grown`.
    """
    members, factor = len(weights_MD), growth.factor.contiguous()
    flags = torch.zeros(3, members, dtype=torch.bool).unbind()
    acceptance_M, leapfrogs_M = torch.zeros(members, dtype=torch.float64), torch.zeros(members, dtype=torch.int64)
    momentum_MD, streams_M = growth.momentum_MD.contiguous(), growth.streams_M.contiguous()
    step_size_M, kinetic_M = growth.step_size_M.double().contiguous(), growth.kinetic_M.double().contiguous()
    written = value.log_density, value.log_likelihood, acceptance_M, leapfrogs_M, *flags
    about = _Growth(
        step_size_M.data_ptr(),
        factor.data_ptr(),
        factor.ndim == 3,
        streams_M.data_ptr(),
        growth.doublings,
        growth.divergence,
        kinetic_M.data_ptr(),
        *(tensor.data_ptr() for tensor in written),
    )
    call(
        on.model.kernel,
        "trees",
        weights_MD.dtype,
        *on.model.kernel.target,
        ctypes.c_int64(members),
        *(ctypes.c_void_p(tensor.data_ptr()) for tensor in (weights_MD, momentum_MD, value.gradient)),
        ctypes.byref(about),
        ctypes.c_double(on.scales.likelihood),
        ctypes.c_double(on.scales.prior),
        rows=(on.rows.inputs, on.rows.targets),
        groups=1,
        chunk_size=on.chunk_size,
    )
    return leapfrogs_M, acceptance_M, *flags
