"""The kernel of fully connected networks (dense.cpp) as functions of tensors."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchbayes.native.build import load

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
    """One linear layer and the activation behind it.

    Attributes:
        weight_at: where its matrix (fan_out, fan_in) starts in the flat vector.
        bias_at: where its bias starts; -1 if it has none.
        fan_in: width of its input.
        fan_out: width of its output.
        activation: what follows.
    """

    weight_at: int
    bias_at: int
    fan_in: int
    fan_out: int
    activation: Activation = Activation.IDENTITY


@dataclass(frozen=True)
class Noise:
    """The likelihood.

    Attributes:
        family: which one.
        scales: fixed noise scales of a Gaussian, 1 or K; empty when they are learned.
        scales_at: where learned log scales start in the flat vector.
        num_scales: how many noise scales there are.
        floor: smallest variance of a heteroscedastic Gaussian.
    """

    family: Family
    scales: tuple[float, ...] = ()
    scales_at: int = -1
    num_scales: int = 0
    floor: float = 0.0


@dataclass(frozen=True)
class Segment:
    """A run of the flat vector under a normal prior of its own; precision 0 where it is flat or left to the caller."""

    start: int
    stop: int
    location: float
    precision: float


class _Network(ctypes.Structure):
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
    ]


class _Rows(ctypes.Structure):
    _fields_ = [
        ("inputs", ctypes.c_void_p),
        ("targets", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("input_stride", ctypes.c_int64),
        ("target_stride", ctypes.c_int64),
        ("chunk", ctypes.c_int64),
    ]


class _Prior(ctypes.Structure):
    _fields_ = [
        ("segments", ctypes.c_int64),
        ("starts", _Integers),
        ("locations", _Doubles),
        ("precisions", _Doubles),
    ]


class DenseKernel:
    """Value, gradient and outputs of M fully connected networks at once.

    Attributes:
        size: D.
    """

    def __init__(self, size: int, layers: Sequence[Layer], *, noise: Noise, segments: Sequence[Segment]) -> None:
        """Describe the network to the kernel.

        Args:
            size: D, the length of the flat vector.
            layers: the layers in order.
            noise: the likelihood.
            segments: the normal part of the prior; segments lie side by side and cover the flat vector.

        Raises:
            UnavailableError: if the kernel cannot be built here.
        """
        self._made_of = (partial(DenseKernel, noise=noise, segments=segments), (size, layers))
        self._functions = _functions()
        self.size, self._width, self._outputs = size, layers[0].fan_in, layers[-1].fan_out
        self._network = _Network(
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
        )
        self._prior = _Prior(
            len(segments),
            _integers([*(s.start for s in segments), segments[-1].stop]),
            _doubles([s.location for s in segments]),
            _doubles([s.precision for s in segments]),
        )

    def evaluate(
        self,
        weights_MD: Tensor,
        inputs: Tensor,
        targets: Tensor,
        *,
        shared: bool,
        scale: float,
        prior_scale: float,
        gradient_MD: Tensor | None,
        chunk_size: int,
    ) -> tuple[Tensor, Tensor]:
        """Return Σ_b log p(y_b|f_b) and −½ Σ precision (w − location)² of each member, and write the gradient.

        Args:
            weights_MD: weights.
            inputs: rows (M, B, ...) of each member, or (B, ...) that all share.
            targets: their targets, with the same leading axes.
            shared: whether all members see the same rows.
            scale: factor on the log likelihood's gradient.
            prior_scale: factor on the log prior's gradient.
            gradient_MD: receives scale · d log p(y|w)/dw + prior_scale · d log p(w)/dw; None if it is not wanted.
            chunk_size: rows that go through a network at once.

        Returns:
            Two float64 tensors (M,).

        Raises:
            ValueError: if a class label is not one of the network's outputs.
        """
        members = len(weights_MD)
        weights_MD, inputs, targets = weights_MD.contiguous(), inputs.contiguous(), targets.contiguous()
        values_M, priors_M = torch.empty(2, members, dtype=torch.float64).unbind()
        rows = self._rows(inputs, targets, 1 if shared else members, chunk_size)
        fine = self._functions["evaluate", weights_MD.dtype](
            ctypes.byref(self._network),
            ctypes.byref(rows),
            ctypes.byref(self._prior),
            ctypes.c_int64(members),
            _pointer(weights_MD),
            ctypes.c_double(scale),
            ctypes.c_double(prior_scale),
            None if gradient_MD is None else _pointer(gradient_MD),
            _pointer(values_M),
            _pointer(priors_M),
            ctypes.c_int64(torch.get_num_threads()),
        )
        self._check_labels(bool(fine), targets)
        return values_M, priors_M

    def leapfrog(
        self,
        phase: tuple[Tensor, Tensor, Tensor],
        rows: tuple[Tensor, Tensor],
        *,
        step_size_M: Tensor,
        steps_M: Tensor,
        inverse_mass_MD: Tensor | None,
        scales: tuple[float, float],
        chunk_size: int,
    ) -> tuple[Tensor, Tensor]:
        """Move every member by its number of leapfrog steps, in place, and return what `evaluate` returns at the end.

        Args:
            phase: weights, momenta and gradient of the density at the weights, each (M, D), contiguous, changed.
            rows: inputs (B, ...) and targets that all members share.
            step_size_M: step size of each, float64.
            steps_M: steps of each, int64, at least 1.
            inverse_mass_MD: inverse of a diagonal mass; ones if None.
            scales: factors on the gradients of log likelihood and log prior.
            chunk_size: most rows that go through a network at once.

        Returns:
            Two float64 tensors (M,).

        Raises:
            ValueError: if a class label is not one of the network's outputs.
        """
        inputs, targets = rows[0].contiguous(), rows[1].contiguous()
        members, dtype = len(phase[0]), phase[0].dtype
        values_M, priors_M = torch.empty(2, members, dtype=torch.float64).unbind()
        inverse_mass_MD = None if inverse_mass_MD is None else inverse_mass_MD.contiguous()
        step_size_M, steps_M = step_size_M.double().contiguous(), steps_M.long().contiguous()
        about = self._rows(inputs, targets, 1, chunk_size)
        fine = self._functions["leapfrog", dtype](
            ctypes.byref(self._network),
            ctypes.byref(about),
            ctypes.byref(self._prior),
            ctypes.c_int64(members),
            *map(_pointer, phase),
            None if inverse_mass_MD is None else _pointer(inverse_mass_MD),
            _pointer(step_size_M),
            _pointer(steps_M),
            ctypes.c_double(scales[0]),
            ctypes.c_double(scales[1]),
            _pointer(values_M),
            _pointer(priors_M),
            ctypes.c_int64(torch.get_num_threads()),
        )
        self._check_labels(bool(fine), targets)
        return values_M, priors_M

    def predict(self, weights_SD: Tensor, inputs: Tensor, *, chunk_size: int) -> Tensor:
        """Return the outputs of S networks on the same rows.

        Args:
            weights_SD: weights.
            inputs: rows (B, ...).
            chunk_size: rows that go through a network at once.

        Returns:
            Tensor (S, B, K).
        """
        weights_SD, inputs = weights_SD.contiguous(), inputs.contiguous()
        rows = self._rows(inputs, inputs, 1, chunk_size)
        outputs_SBK = weights_SD.new_empty(len(weights_SD), rows.count, self._outputs)
        self._functions["predict", weights_SD.dtype](
            ctypes.byref(self._network),
            ctypes.byref(rows),
            ctypes.c_int64(len(weights_SD)),
            _pointer(weights_SD),
            _pointer(outputs_SBK),
            ctypes.c_int64(torch.get_num_threads()),
        )
        return outputs_SBK

    def _rows(self, inputs: Tensor, targets: Tensor, groups: int, chunk_size: int) -> _Rows:
        """Return what the kernel needs to know of rows; `groups` is M when every member has its own, else 1."""
        own = groups > 1
        return _Rows(
            inputs.data_ptr(),
            targets.data_ptr(),
            inputs.numel() // (self._width * groups),
            inputs.numel() // groups if own else 0,
            targets.numel() // groups if own else 0,
            chunk_size,
        )

    def _check_labels(self, fine: bool, targets: Tensor) -> None:
        """Say what the kernel found.

        Raises:
            ValueError: if a class label is not one of the network's outputs.
        """
        if not fine:
            raise ValueError(
                f"class labels must lie in 0..{self._outputs - 1}, as the network has {self._outputs} outputs; "
                f"got {int(targets.min())}..{int(targets.max())}."
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return self._made_of  # a loaded library can be neither copied nor sent elsewhere


def _functions() -> dict[tuple[str, torch.dtype], Any]:
    """Return the library's functions by name and dtype."""
    library, found = load("dense"), {}
    for dtype in (torch.float32, torch.float64):
        for name in ("evaluate", "leapfrog", "predict"):
            found[name, dtype] = getattr(library, f"{name}_{str(dtype).removeprefix('torch.')}")
            found[name, dtype].restype = None if name == "predict" else ctypes.c_bool
    return found


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _integers(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


def _doubles(values: Sequence[float]) -> Any:
    return (ctypes.c_double * len(values))(*values)
