"""Steps of elliptical slice sampling, as dense.cpp takes them."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.native.dense import DenseKernel, call


class Found(NamedTuple):
    """What a step of M members came to, each (M,).

    Attributes:
        log_likelihood_M: as of `DenseKernel.evaluate`; means nothing where no point was found.
        log_prior_M: likewise.
        visits_M: evaluations.
        failures_M: those that were not finite.
        found_M: whether a point was found.
    """

    log_likelihood_M: Tensor
    log_prior_M: Tensor
    visits_M: Tensor
    failures_M: Tensor
    found_M: Tensor


class _Ellipses(ctypes.Structure):
    """`Ellipses` of dense.cpp."""

    _fields_ = [
        ("second", ctypes.c_void_p),
        ("location", ctypes.c_void_p),
        ("heights", ctypes.c_void_p),
        ("shares", ctypes.c_void_p),
        ("most", ctypes.c_int64),
        ("factor", ctypes.c_double),
        ("angles", ctypes.c_void_p),
        ("visits", ctypes.c_void_p),
        ("failures", ctypes.c_void_p),
        ("found", ctypes.c_void_p),
    ]


def slice_along(
    kernel: DenseKernel,
    weights_MD: Tensor,
    rows: tuple[Tensor, Tensor],
    *,
    ellipses: tuple[Tensor, Tensor],
    level: tuple[float, Tensor],
    angles_M3: Tensor,
    shares_MU: Tensor,
    chunk_size: int,
) -> Found:
    """Move every member along its ellipse to the first point whose log likelihood is high enough, in place.

    Args:
        kernel: the kernel of the network.
        weights_MD: where they are, contiguous, changed; a member for which no point is found stays where it is.
        rows: inputs (B, ...) and targets that all members share.
        ellipses: a second point of each, less the centre, (M, D), and the centre of all, (D,).
        level: the factor of the log likelihood, and what it must be above then, (M,).
        angles_M3: bounds of the angle and first angle, float64, contiguous, changed: the last one afterwards.
        shares_MU: numbers in [0, 1) by which U angles after the first are drawn; there are U evaluations at most.
        chunk_size: most rows that go through a network at once.

    Returns:
        What it came to.

    Raises:
        ValueError: if a class label is not one of the network's outputs.
    """
    members = len(weights_MD)
    values_M, priors_M = torch.zeros(2, members, dtype=torch.float64).unbind()
    visits_M, failures_M = torch.zeros(2, members, dtype=torch.int64).unbind()
    found_M = torch.zeros(members, dtype=torch.bool)
    doubles = [t.double().contiguous() for t in (ellipses[1], level[1], shares_MU)]
    given = [ellipses[0].contiguous(), *doubles]
    written = (angles_M3, visits_M, failures_M, found_M)
    pointers = [tensor.data_ptr() for tensor in (*given, *written)]
    about = _Ellipses(*pointers[:4], shares_MU.shape[1], level[0], *pointers[4:])
    call(
        kernel,
        "slice",
        weights_MD.dtype,
        *kernel.target,
        ctypes.c_int64(members),
        ctypes.c_void_p(weights_MD.data_ptr()),
        ctypes.byref(about),
        ctypes.c_void_p(values_M.data_ptr()),
        ctypes.c_void_p(priors_M.data_ptr()),
        rows=rows,
        groups=1,
        chunk_size=chunk_size,
    )
    return Found(values_M, priors_M, visits_M, failures_M, found_M)
