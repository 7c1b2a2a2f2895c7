"""The kernel of fully connected networks, with or without leading convolutions (dense.cpp), as functions of tensors.

Weights can be distributions: each layer then has a second product (spread.hpp).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchbayes.checks import check_memory
from torchbayes.native.build import DTYPES, load, suffixed
from torchbayes.native.description import (
    Layer,
    Noise,
    RowsStruct,
    Segment,
    SpreadStruct,
    Stage,
    network,
    prior,
    space,
)
from torchbayes.native.noise import LEAST, keys_of

_LITTLE = 1 << 20  # bytes up to which free memory is not checked

_POINTER, _INTEGER, _NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
_TARGET = (_POINTER, _POINTER, _INTEGER)  # prior, subspace and number of members
_ARGUMENTS = {  # of the library's functions, between the rows and the number of threads
    "evaluate": (*_TARGET, _POINTER, _NUMBER, _NUMBER, *[_POINTER] * 3),
    "leapfrog": (*_TARGET, *[_POINTER] * 6, _NUMBER, _NUMBER, _POINTER, _POINTER),
    "slice": (*_TARGET, *[_POINTER] * 4),
    "trees": (*_TARGET, *[_POINTER] * 4, _NUMBER, _NUMBER),
    "spread": (_POINTER, _INTEGER, _POINTER, _NUMBER, *[_POINTER] * 3),
    "predict": (_POINTER, _INTEGER, _POINTER, _INTEGER, _POINTER),
}

Affine = tuple[Tensor, Tensor]
"""Centre (E,) and axes (R, E) of a subspace of E weights."""


@dataclass(frozen=True)
class Call:
    """The random numbers of one layer whose weights are distributions."""

    stream: int | None  # of the noise of its outputs; None where signs are flipped
    before: Tensor | None = None  # signs (M, B, in) of its inputs, of the network's dtype; None for local noise
    after: Tensor | None = None  # those (M, B, out) of its outputs


class SecondWeights(NamedTuple):
    """The second weights of M networks, from which second products are formed, and what belongs to them."""

    weights_MD: Tensor  # contiguous
    factor_MD: Tensor  # factors that turn scales into these weights, contiguous
    gradient_MD: Tensor  # receives the gradient by the scales, contiguous; must be 0 where none is written
    calls: Sequence[Call]  # of the layers with weights, convolutions first
    seeds: tuple[int, ...]  # one per member
    first: int  # number of the first row among those that all processes share


class DenseKernel:
    """Value, gradient and outputs of M networks at once: linear layers, with or without leading convolutions and pools.

    `size` is D; in a subspace (`affine`) it counts its coordinates and the numbers after them. `outputs` is K.
    `target` holds prior and subspace as the kernel takes them.
    """

    def __init__(
        self,
        size: int,
        layers: Sequence[Layer],
        *,
        noise: Noise,
        segments: Sequence[Segment],
        stages: Sequence[Stage] = (),
        affine: Affine | None = None,
    ) -> None:
        """Describe the network, with its likelihood `noise`, to the kernel.

        `size` is the length of the flat vector of the network. `segments` are contiguous, cover the members' vectors,
        and describe the part of the prior that the kernel computes. Rows are images if there are `stages` before the
        linear layers. In a subspace, the first R numbers of members' vectors are coordinates of the first E of the
        network's. Raises an UnavailableError if the kernel cannot be built here.
        """
        made = partial(DenseKernel, noise=noise, segments=segments, stages=stages, affine=affine)
        self._made_of = (made, (size, layers))
        self._functions = _functions()
        self.affine = affine and (affine[0].contiguous(), affine[1].contiguous())
        self._space = None if self.affine is None else ctypes.byref(space(*self.affine))
        self.target = (ctypes.byref(prior(segments)), self._space)
        self.size = size if affine is None else size - affine[1].shape[1] + affine[1].shape[0]
        self.outputs = layers[-1].fan_out
        self._width, self._images = layers[0].fan_in, bool(stages)
        self._network = network(size, layers, stages=stages, noise=noise)

    def evaluate(
        self,
        weights_MD: Tensor,
        rows: tuple[Tensor, Tensor],
        *,
        shared: bool,
        scales: tuple[float, float],
        gradient_MD: Tensor | None,
        chunk_size: int,
    ) -> tuple[Tensor, Tensor]:
        """Return Σ_b log p(y_b|f_b) and the w-dependent part of log p(w), each float64 (M,), and write the gradient.

        Rows are inputs (M, B, ...) of each member, or (B, ...) if shared, and targets with the same leading axes.
        `gradient_MD`, unless None, receives s₁ d log p(y|w)/dw + s₂ d log p(w)/dw with the factors s, `scales`.
        Raises a ValueError if a class label is not one of the network's outputs.
        """
        members, weights_MD = len(weights_MD), weights_MD.contiguous()
        values_M, priors_M = torch.empty(2, members, dtype=torch.float64).unbind()
        call(
            self,
            "evaluate",
            weights_MD.dtype,
            *self.target,
            *(members, weights_MD, *scales, gradient_MD, values_M, priors_M),
            rows=rows,
            groups=1 if shared else members,
            chunk_size=chunk_size,
        )
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

        `phase` is weights, momenta and gradient of the density, each (M, D), contiguous. `rows` are inputs (B, ...)
        and targets that all members share. `step_size_M` is float64, `steps_M` int64, at least 1; the inverse mass is
        diagonal, ones if None. `scales` are as for `evaluate`.
        """
        members = len(phase[0])
        values_M, priors_M = torch.empty(2, members, dtype=torch.float64).unbind()
        inverse_mass_MD = None if inverse_mass_MD is None else inverse_mass_MD.contiguous()
        step_size_M, steps_M = step_size_M.double().contiguous(), steps_M.long().contiguous()
        call(
            self,
            "leapfrog",
            phase[0].dtype,
            *self.target,
            *(members, *phase, inverse_mass_MD, step_size_M, steps_M, *scales, values_M, priors_M),
            rows=rows,
            groups=1,
            chunk_size=chunk_size,
        )
        return values_M, priors_M

    def predict(self, weights_SD: Tensor, inputs: Tensor, *, chunk_size: int) -> Tensor:
        """Return the outputs (S, B, K) of S networks on the same rows (B, ...).

        Weights are not copied if each row is contiguous, whatever the stride of the rows.
        """
        weights_SD = weights_SD if weights_SD.stride(-1) == 1 else weights_SD.contiguous()
        inputs = inputs.contiguous()
        rows = self._rows(inputs, inputs, 1, chunk_size)
        needed = len(weights_SD) * rows.count * self.outputs * weights_SD.itemsize
        if needed > _LITTLE:
            check_memory(needed, "outputs of the drawn functions", draws=len(weights_SD))
        outputs_SBK = weights_SD.new_empty(len(weights_SD), rows.count, self.outputs)
        self._functions["predict", weights_SD.dtype](
            ctypes.byref(self._network),
            ctypes.byref(rows),
            self._space,
            len(weights_SD),
            weights_SD.data_ptr(),
            weights_SD.stride(0),
            outputs_SBK.data_ptr(),
            torch.get_num_threads(),
        )
        return outputs_SBK

    def _rows(self, inputs: Tensor, targets: Tensor, groups: int, chunk_size: int) -> RowsStruct:
        """Return rows as the kernel takes them; `groups` is M when every member has its own, else 1."""
        is_own = groups > 1
        image = inputs.shape[-3:] if self._images else (self._width, 0, 0)
        features = math.prod(image) if self._images else self._width
        count = inputs.numel() // (features * groups)
        return RowsStruct(
            inputs.data_ptr(),
            targets.data_ptr(),
            count,
            inputs.numel() // groups if is_own else 0,
            targets.numel() // groups if is_own else 0,
            min(chunk_size, max(count, 1)),
            features,
            *image[1:],
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return self._made_of  # because a loaded library can be neither copied nor pickled


def call(
    kernel: DenseKernel,
    name: str,
    dtype: torch.dtype,
    *arguments: Any,
    rows: tuple[Tensor, Tensor],
    groups: int,
    chunk_size: int,
) -> None:
    """Call a function of the library, with a network, rows, `arguments` and the number of threads.

    Tensors among the arguments are contiguous. `name` is without the dtype of weights and inputs. `groups` is M when
    every member has its own rows, else 1. Raises a ValueError if a class label is not one of the network's outputs.
    """
    inputs, targets = rows[0].contiguous(), rows[1].contiguous()
    described = kernel._rows(inputs, targets, groups, chunk_size)
    passed = (each.data_ptr() if isinstance(each, Tensor) else each for each in arguments)
    succeeded = kernel._functions[name, dtype](
        ctypes.byref(kernel._network), ctypes.byref(described), *passed, torch.get_num_threads()
    )
    if not succeeded:
        raise ValueError(
            f"class labels must lie in 0..{kernel.outputs - 1}, as the network has {kernel.outputs} outputs; "
            f"got {int(targets.min())}..{int(targets.max())}."
        )


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
    spread = SpreadStruct(
        second.weights_MD.data_ptr(),
        second.factor_MD.data_ptr(),
        second.gradient_MD.data_ptr(),
        keys_of(second.seeds),
        (ctypes.c_int64 * len(calls))(*(c.stream is None for c in calls)),
        (ctypes.c_uint64 * len(calls))(*(c.stream or 0 for c in calls)),
        *(_pointers(signs) for signs in zip(*((c.before, c.after) for c in calls), strict=True)),
        second.first,
        LEAST,
    )
    call(
        kernel,
        "spread",
        means_MD.dtype,
        *(ctypes.byref(spread), members, means_MD, scale, gradient_MD, values_M, health_M),
        rows=rows,
        groups=members,
        chunk_size=chunk_size,
    )
    return values_M, health_M


def _functions() -> dict[tuple[str, torch.dtype], Any]:
    """Return the library's functions by name and dtype."""
    library, functions = load("dense"), {}
    for (name, kinds), dtype in product(_ARGUMENTS.items(), DTYPES):
        function = functions[name, dtype] = getattr(library, suffixed(name, dtype))
        function.argtypes = (_POINTER, _POINTER, *kinds, _INTEGER)
        function.restype = None if name == "predict" else ctypes.c_bool
    return functions


def _pointers(tensors: Sequence[Tensor | None]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(None if t is None else t.data_ptr() for t in tensors))
