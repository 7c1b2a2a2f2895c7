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
    """An iteration of NUTS on all the data."""

    weights_MD: Tensor  # where the chains are; not changed
    momentum_MD: Tensor  # Rᵀ v of momenta v, where the inverse mass is R Rᵀ; not changed
    value: Value  # the density at the weights; not changed
    kinetic_M: Tensor  # kinetic energy, float64
    factor: Tensor  # R: its diagonal (M, D), or lower triangular (M, D, D)
    step_size_M: Tensor  # float64
    streams_M: Tensor  # hashes that determine the uniform numbers, int64: see `randomness.seeds.streams`
    doublings: int  # most doublings of a trajectory
    divergence: float  # energy error above which a trajectory ends


class Grown(NamedTuple):
    """Where chains are after such an iteration, and the statistics of their trajectories."""

    weights_MD: Tensor
    value: Value  # the density at the weights
    leapfrogs_M: Tensor  # number of steps
    acceptance_M: Tensor  # sum of their probabilities of acceptance, float64
    divergent_M: Tensor  # whether the energy error was too large at one of them, bool
    outside_M: Tensor  # whether it was not finite, bool
    saturated_M: Tensor  # whether the trajectory was cut short, bool


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

    Raises ValueError if a class label is not one of the network's outputs.
    """
    target = density.kernel()
    if target is None or not target.model.complete:
        return None
    target.model.check(growth.weights_MD, *target.rows, shared=True)
    copies = [t.clone(memory_format=torch.contiguous_format) for t in (growth.weights_MD, *growth.value)]
    weights_MD, log_density_M, gradient_MD, log_likelihood_M = copies
    constant_M = target.scales.prior * target.model.prior.add_rest_(None, weights_MD, 0.0)
    value = Value(log_density_M.sub_(constant_M), gradient_MD, log_likelihood_M)
    statistics = _move(target, growth, weights_MD, value)
    return Grown(weights_MD, value._replace(log_density=log_density_M.add_(constant_M)), *statistics)


def _move(on: OnData, growth: Growth, weights_MD: Tensor, value: Value) -> tuple[Tensor, ...]:
    """Move chains and their densities, as far as the kernel has these, in place; return the other fields of `Grown`."""
    members, factor = len(weights_MD), growth.factor.contiguous()
    flags = torch.zeros(3, members, dtype=torch.bool).unbind()
    acceptance_M, leapfrogs_M = torch.zeros(members, dtype=torch.float64), torch.zeros(members, dtype=torch.int64)
    momentum_MD, streams_M = growth.momentum_MD.contiguous(), growth.streams_M.contiguous()
    step_size_M, kinetic_M = growth.step_size_M.double().contiguous(), growth.kinetic_M.double().contiguous()
    written = value.log_density, value.log_likelihood, acceptance_M, leapfrogs_M, *flags
    settings = _Growth(
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
        ctypes.byref(settings),
        ctypes.c_double(on.scales.likelihood),
        ctypes.c_double(on.scales.prior),
        rows=on.encoded,
        groups=1,
        chunk_size=on.chunk_size,
    )
    return leapfrogs_M, acceptance_M, *flags
