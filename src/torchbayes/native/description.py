"""A network, its rows and its prior as dense.cpp takes them: dataclasses to describe them, structures to pass them."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Sequence
from dataclasses import astuple, dataclass
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
    """A run of the flat vector with one prior: normal, that of log scales, or of groups that share a variance.

    With u = w − location the second is −degrees (u + ½ e^{−2u}), and the third −half Σ_g log(1 + |u_g|²/width) for the
    groups [b, :, g, :] of a grid (blocks, outer, groups, inner). Precision, degrees and width are 0 where the prior is
    flat or left to the caller.
    """

    start: int
    stop: int
    location: float
    precision: float
    degrees: float = 0.0
    half: float = 0.0
    width: float = 0.0
    grid: tuple[int, int, int, int] = (0, 0, 0, 0)


def fields_of(kind: Any, names: str) -> list[tuple[str, Any]]:
    """Return the fields of a structure that have one type, from their names."""
    return [(name, kind) for name in names.split()]


class _Stage(ctypes.Structure):
    """`Stage` of images.hpp, with the fields of the dataclass."""

    _fields_ = [
        ("kind", ctypes.c_int64),
        *fields_of(ctypes.c_int64 * 2, "channels kernel stride padding dilation"),
        *fields_of(ctypes.c_int64, "weight_at bias_at activation"),
    ]


class NetworkStruct(ctypes.Structure):
    """`Network` of dense.cpp."""

    _fields_ = [
        *fields_of(ctypes.c_int64, "size layers"),
        *fields_of(_Integers, "widths weights_at biases_at activations"),
        ("likelihood", ctypes.c_int64),
        ("scales", _Doubles),
        *fields_of(ctypes.c_int64, "scales_at num_scales"),
        ("floor", ctypes.c_double),
        ("stages", ctypes.c_int64),
        ("stage", ctypes.POINTER(_Stage)),
    ]


class RowsStruct(ctypes.Structure):
    """`Rows` of dense.cpp."""

    _fields_ = [
        *fields_of(ctypes.c_void_p, "inputs targets"),
        *fields_of(ctypes.c_int64, "count input_stride target_stride chunk features height width"),
    ]


class PriorStruct(ctypes.Structure):
    """`Prior` of dense.cpp."""

    _fields_ = [
        ("segments", ctypes.c_int64),
        ("starts", _Integers),
        *fields_of(_Doubles, "locations precisions degrees halves widths"),
        ("grids", _Integers),
    ]


class SpaceStruct(ctypes.Structure):
    """`Space` of space.hpp."""

    _fields_ = [*fields_of(ctypes.c_int64, "rank size"), *fields_of(ctypes.c_void_p, "centre axes")]


class SpreadStruct(ctypes.Structure):
    """`SpreadWeights` of spread.hpp."""

    _fields_ = [
        *fields_of(ctypes.c_void_p, "weights factor gradient"),
        ("seeds", ctypes.POINTER(ctypes.c_uint64)),
        ("flipped", _Integers),
        ("streams", ctypes.POINTER(ctypes.c_uint64)),
        *fields_of(ctypes.POINTER(ctypes.c_void_p), "before after"),
        ("first", ctypes.c_int64),
        ("least", ctypes.c_double),
    ]


def network(size: int, layers: Sequence[Layer], *, stages: Sequence[Stage], noise: Noise) -> NetworkStruct:
    """Return a network as the kernel takes it; `size` is D, the length of the flat vector."""
    return NetworkStruct(
        size,
        len(layers),
        _integers([layers[0].fan_in, *(layer.fan_out for layer in layers)]),
        _integers([layer.weight_at for layer in layers]),
        _integers([layer.bias_at for layer in layers]),
        _integers([layer.activation for layer in layers]),
        noise.family,
        _doubles(noise.scales) if noise.scales else None,
        noise.scales_at,
        noise.num_scales,
        noise.floor,
        len(stages),
        (_Stage * len(stages))(*map(astuple, stages)) if stages else None,
    )


def prior(segments: Sequence[Segment]) -> PriorStruct:
    """Return a prior of contiguous segments as the kernel takes it."""
    return PriorStruct(
        len(segments),
        _integers([*(s.start for s in segments), segments[-1].stop]),
        _doubles([s.location for s in segments]),
        _doubles([s.precision for s in segments]),
        _doubles([s.degrees for s in segments]),
        _doubles([s.half for s in segments]),
        _doubles([s.width for s in segments]),
        _integers([number for s in segments for number in s.grid]),
    )


def space(centre_E: Tensor, axes_RE: Tensor) -> SpaceStruct:
    """Return a subspace as the kernel takes it, without references to its tensors, which must be contiguous.

    `centre_E` are the weights at coordinates 0; `axes_RE` has one row for each coordinate.
    """
    return SpaceStruct(*axes_RE.shape, centre_E.data_ptr(), axes_RE.data_ptr())


def _integers(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


def _doubles(values: Sequence[float]) -> Any:
    return (ctypes.c_double * len(values))(*values)
