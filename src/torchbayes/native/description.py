"""A network, its rows and its prior as dense.cpp takes them: dataclasses to describe them, structures to pass them."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

_Integers = ctypes.POINTER(ctypes.c_int64)
_Doubles = ctypes.POINTER(ctypes.c_double)


class Activation(enum.IntEnum):
    """Activations the kernel knows; the numbers are those of dense.cpp."""

    IDENTITY = 0
    RELU = 1
    TANH = 2
    SIGMOID = 3
    SILU = 4


class Family(enum.IntEnum):
    """Likelihoods the kernel knows; the numbers are those of dense.cpp."""

    NONE = 0
    CATEGORICAL = 1
    GAUSSIAN = 2
    HETEROSCEDASTIC = 3


@dataclass(frozen=True)
class Layer:
    """One linear layer and the activation after it."""

    weight_at: int  # start of its matrix (fan_out, fan_in) in the flat vector
    bias_at: int  # start of its bias; -1 if it has none
    fan_in: int
    fan_out: int
    activation: Activation = Activation.IDENTITY


class Kind(enum.IntEnum):
    """Stages the kernel knows; the numbers are those of images.hpp."""

    CONVOLUTION = 0
    MAXIMUM = 1
    AVERAGE = 2


@dataclass(frozen=True)
class Stage:
    """One convolution or pool, and the activation after it. Sizes are (height, width)."""

    kind: Kind
    channels: tuple[int, int]  # of its input and of its output
    kernel: tuple[int, int]  # size of its window
    stride: tuple[int, int] = (1, 1)  # step from one window to the next
    padding: tuple[int, int] = (0, 0)  # zeros around the image, fewer than the window reaches
    dilation: tuple[int, int] = (1, 1)  # distance between neighbours in a window
    weight_at: int = -1  # start of its weights (out, in, height, width) in the flat vector; -1 for a pool
    bias_at: int = -1  # start of its bias; -1 if it has none
    activation: Activation = Activation.IDENTITY

    def sides(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of the output for an input of this size; not positive if it is too small."""
        sizes = zip((height, width), self.kernel, self.stride, self.padding, self.dilation, strict=True)
        high, wide = ((size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in sizes)
        return high, wide


@dataclass(frozen=True)
class Noise:
    """The likelihood."""

    family: Family
    scales: tuple[float, ...] = ()  # fixed noise scales of a Gaussian, 1 or K; empty when they are learned
    scales_at: int = -1  # start of learned log scales in the flat vector
    num_scales: int = 0  # number of noise scales, fixed or learned
    floor: float = 0.0  # smallest variance of a heteroscedastic Gaussian


@dataclass(frozen=True)
class Segment:
    """A run of the flat vector with one prior: normal, or that of log scales.

    The latter is −degrees (u + ½ e^{−2u}) with u = w − location. Precision and degrees are 0 where the prior is flat
    or left to the caller.
    """

    start: int
    stop: int
    location: float
    precision: float
    degrees: float = 0.0


class _Stage(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int64),
        ("channels", ctypes.c_int64 * 2),
        ("kernel", ctypes.c_int64 * 2),
        ("stride", ctypes.c_int64 * 2),
        ("padding", ctypes.c_int64 * 2),
        ("dilation", ctypes.c_int64 * 2),
        ("weight_at", ctypes.c_int64),
        ("bias_at", ctypes.c_int64),
        ("activation", ctypes.c_int64),
    ]


class NetworkStruct(ctypes.Structure):
    """`Network` of dense.cpp."""

    _fields_ = [
        ("size", ctypes.c_int64),
        ("layers", ctypes.c_int64),
        ("widths", _Integers),
        ("weights_at", _Integers),
        ("biases_at", _Integers),
        ("activations", _Integers),
        ("likelihood", ctypes.c_int64),
        ("scales", _Doubles),
        ("scales_at", ctypes.c_int64),
        ("num_scales", ctypes.c_int64),
        ("floor", ctypes.c_double),
        ("stages", ctypes.c_int64),
        ("stage", ctypes.POINTER(_Stage)),
    ]


class RowsStruct(ctypes.Structure):
    """`Rows` of dense.cpp."""

    _fields_ = [
        ("inputs", ctypes.c_void_p),
        ("targets", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("input_stride", ctypes.c_int64),
        ("target_stride", ctypes.c_int64),
        ("chunk", ctypes.c_int64),
        ("features", ctypes.c_int64),
        ("height", ctypes.c_int64),
        ("width", ctypes.c_int64),
    ]


class PriorStruct(ctypes.Structure):
    """`Prior` of dense.cpp."""

    _fields_ = [
        ("segments", ctypes.c_int64),
        ("starts", _Integers),
        ("locations", _Doubles),
        ("precisions", _Doubles),
        ("degrees", _Doubles),
    ]


class SpaceStruct(ctypes.Structure):
    """`Space` of space.hpp."""

    _fields_ = [
        ("rank", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("centre", ctypes.c_void_p),
        ("axes", ctypes.c_void_p),
    ]


def network(size: int, layers: Sequence[Layer], *, stages: Sequence[Stage], noise: Noise) -> NetworkStruct:
    """Return a network as the kernel takes it; `size` is D, the length of the flat vector."""
    return NetworkStruct(
        size,
        len(layers),
        _integers([layers[0].fan_in, *(layer.fan_out for layer in layers)]),
        _integers([layer.weight_at for layer in layers]),
        _integers([layer.bias_at for layer in layers]),
        _integers([int(layer.activation) for layer in layers]),
        int(noise.family),
        _doubles(noise.scales) if noise.scales else None,
        noise.scales_at,
        noise.num_scales,
        noise.floor,
        len(stages),
        (_Stage * len(stages))(*map(_stage, stages)) if stages else None,
    )


def prior(segments: Sequence[Segment]) -> PriorStruct:
    """Return a prior of contiguous segments as the kernel takes it."""
    return PriorStruct(
        len(segments),
        _integers([*(s.start for s in segments), segments[-1].stop]),
        _doubles([s.location for s in segments]),
        _doubles([s.precision for s in segments]),
        _doubles([s.degrees for s in segments]),
    )


def space(centre_E: Tensor, axes_RE: Tensor) -> SpaceStruct:
    """Return a subspace as the kernel takes it, without references to its tensors, which must be contiguous.

    `centre_E` are the weights at coordinates 0; `axes_RE` has one row for each coordinate.
    """
    return SpaceStruct(*axes_RE.shape, centre_E.data_ptr(), axes_RE.data_ptr())


def _stage(stage: Stage) -> _Stage:
    sizes = [
        (ctypes.c_int64 * 2)(*pair)
        for pair in (stage.channels, stage.kernel, stage.stride, stage.padding, stage.dilation)
    ]
    return _Stage(int(stage.kind), *sizes, stage.weight_at, stage.bias_at, int(stage.activation))


def _integers(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


def _doubles(values: Sequence[float]) -> Any:
    return (ctypes.c_double * len(values))(*values)
