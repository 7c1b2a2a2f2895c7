"""Weights that are distributions, as dense.cpp takes them: each layer then has a second product (spread.hpp)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchbayes.native.dense import DenseKernel, call
from torchbayes.native.noise import keys_of


@dataclass(frozen=True)
class Call:
    """The random numbers of one layer whose weights are distributions."""

    stream: int | None  # of the noise of its outputs; None where signs are flipped
    before: Tensor | None = None  # signs (M, B, in) of its inputs, of the network's dtype; None for local noise
    after: Tensor | None = None  # those (M, B, out) of its outputs


class _Spread(ctypes.Structure):
    """`SpreadWeights` of spread.hpp."""

    _fields_ = [
        ("weights", ctypes.c_void_p),
        ("factor", ctypes.c_void_p),
        ("gradient", ctypes.c_void_p),
        ("seeds", ctypes.POINTER(ctypes.c_uint64)),
        ("flipped", ctypes.POINTER(ctypes.c_int64)),
        ("streams", ctypes.POINTER(ctypes.c_uint64)),
        ("before", ctypes.POINTER(ctypes.c_void_p)),
        ("after", ctypes.POINTER(ctypes.c_void_p)),
        ("first", ctypes.c_int64),
        ("least", ctypes.c_double),
    ]


class SecondWeights(NamedTuple):
    """The second weights of M networks, from which second products are formed, and what belongs to them."""

    weights_MD: Tensor  # contiguous
    factor_MD: Tensor  # factors that turn scales into these weights, contiguous
    gradient_MD: Tensor  # receives the gradient by the scales, contiguous; must be 0 where none is written
    calls: Sequence[Call]  # of the layers with weights, convolutions first
    seeds: tuple[int, ...]  # one per member
    first: int  # number of the first row among those that all processes share
    least: float  # variance below which an output has no noise


def evaluate_spread(
    kernel: DenseKernel,
    means_MD: Tensor,
    rows: tuple[Tensor, Tensor],
    *,
    second: SecondWeights,
    scale: float,
    gradient_MD: Tensor,
    chunk_size: int,
) -> tuple[Tensor, Tensor]:
    """Return Σ_b log p(y_b|f_b) of each member under weights that are distributions, and write its gradients.

    The second result is finite if the gradients are; both are float64 (M,). `rows` are inputs (M, B, ...) of each
    member and their targets. `scale` is a factor on the gradients; `gradient_MD` receives that by the means. Tensors
    of weights and gradients are contiguous. Raises a ValueError if a class label is not one of the network's outputs.
    """
    members, calls = len(means_MD), second.calls
    values_M, health_M = torch.empty(2, members, dtype=torch.float64).unbind()
    spread = _Spread(
        second.weights_MD.data_ptr(),
        second.factor_MD.data_ptr(),
        second.gradient_MD.data_ptr(),
        keys_of(second.seeds),
        (ctypes.c_int64 * len(calls))(*(c.stream is None for c in calls)),
        (ctypes.c_uint64 * len(calls))(*(c.stream or 0 for c in calls)),
        _pointers([c.before for c in calls]),
        _pointers([c.after for c in calls]),
        second.first,
        second.least,
    )
    arguments = (
        ctypes.byref(spread),
        ctypes.c_int64(members),
        ctypes.c_void_p(means_MD.data_ptr()),
        ctypes.c_double(scale),
        ctypes.c_void_p(gradient_MD.data_ptr()),
        ctypes.c_void_p(values_M.data_ptr()),
        ctypes.c_void_p(health_M.data_ptr()),
    )
    call(kernel, "spread", means_MD.dtype, *arguments, rows=rows, groups=members, chunk_size=chunk_size)
    return values_M, health_M


def _pointers(tensors: Sequence[Tensor | None]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(None if t is None else t.data_ptr() for t in tensors))
