"""Steps of elliptical slice sampling in one call of the library's own kernel (`native/sources/dense.cpp`)."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.native.dense import call


class Landed(NamedTuple):
    """Where members are after such a step; those that found no point stay where they were."""

    weights_MD: Tensor
    log_density_M: Tensor  # there, float64; undefined where no point was found
    log_likelihood_M: Tensor  # likewise
    angle_M: Tensor  # φ, likewise
    evaluations_M: Tensor  # how often the likelihood was evaluated
    failures_M: Tensor  # how often it was not finite
    found_M: Tensor  # whether a point was found


class _Ellipses(ctypes.Structure):
    """`Ellipses` of dense.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("second", "location", "heights", "shares")),
        ("most", ctypes.c_int64),
        ("factor", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("angles", "visits", "failures", "found")),
    ]


def slice_along(
    density: LogDensity,
    weights_MD: Tensor,
    second_MD: Tensor,
    *,
    location_D: Tensor,
    height_M: Tensor,
    angles_M3: Tensor,
    shares_MU: Tensor,
    factor: float,
) -> Landed | None:
    """Return where a step leads; None where the kernel does not have the likelihood of all the data.

    With weights w, second point ν and location l, member m goes to l + (w − l) cos φ + ν sin φ, at the first angle φ
    where factor · log p(D|w) is above its height. An angle that is too low replaces the bound of its sign, and the
    next is drawn between both. `angles_M3` are the bounds and the first angle, and `shares_MU` says where in its
    interval each later angle is, with U the most evaluations: both float64 on the CPU. No argument is changed. Raises
    ValueError if a class label is not one of the network's outputs.
    """
    if (target := density.kernel()) is None:
        return None
    kernel, weights_MD, angles_M3 = target.model.kernel, weights_MD.detach().clone(), angles_M3.clone()
    target.model.check(weights_MD, *target.rows, shared=True)
    log_likelihood_M, log_prior_M = torch.zeros(2, len(weights_MD), dtype=torch.float64).unbind()
    evaluations_M, failures_M = torch.zeros(2, len(weights_MD), dtype=torch.int64).unbind()
    accepted_M = torch.zeros(len(weights_MD), dtype=torch.bool)
    doubles = [t.double().contiguous() for t in (location_D, height_M, shares_MU)]
    inputs = [second_MD.contiguous(), *doubles]
    pointers = [t.data_ptr() for t in (*inputs, angles_M3, evaluations_M, failures_M, accepted_M)]
    settings = _Ellipses(*pointers[:4], shares_MU.shape[1], factor, *pointers[4:])
    call(
        kernel,
        "slice",
        weights_MD.dtype,
        *kernel.target,
        ctypes.c_int64(len(weights_MD)),
        ctypes.c_void_p(weights_MD.data_ptr()),
        ctypes.byref(settings),
        ctypes.c_void_p(log_likelihood_M.data_ptr()),
        ctypes.c_void_p(log_prior_M.data_ptr()),
        rows=target.encoded,
        groups=1,
        chunk_size=target.chunk_size,
    )
    log_prior_M = log_prior_M + target.model.prior.add_rest_(None, weights_MD, 0.0)
    log_density_M = target.scales.likelihood * log_likelihood_M + target.scales.prior * log_prior_M
    statistics = angles_M3[:, 2], evaluations_M, failures_M, accepted_M
    return Landed(weights_MD, log_density_M, log_likelihood_M, *statistics)
