"""The kernel of fully connected networks, with or without leading convolutions (dense.cpp), as functions of tensors."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchbayes.checks import check_memory
from torchbayes.native.build import load
from torchbayes.native.description import Layer, Noise, RowsStruct, Segment, Stage, network, prior, space

_LITTLE = 1 << 20  # bytes up to which free memory is not checked

Affine = tuple[Tensor, Tensor]
"""Centre (E,) and axes (R, E) of a subspace of E weights."""


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
        inputs: Tensor,
        targets: Tensor,
        *,
        shared: bool,
        scale: float,
        prior_scale: float,
        gradient_MD: Tensor | None,
        chunk_size: int,
    ) -> tuple[Tensor, Tensor]:
        """Return Σ_b log p(y_b|f_b) and the w-dependent part of log p(w), each float64 (M,), and write the gradient.

        Rows are (M, B, ...) of each member, or (B, ...) if shared, and targets have the same leading axes.
        `gradient_MD`, unless None, receives scale · d log p(y|w)/dw + prior_scale · d log p(w)/dw. Raises a
        ValueError if a class label is not one of the network's outputs.
        """
        members = len(weights_MD)
        weights_MD = weights_MD.contiguous()
        values_M, priors_M = torch.empty(2, members, dtype=torch.float64).unbind()
        call(
            self,
            "evaluate",
            weights_MD.dtype,
            *self.target,
            ctypes.c_int64(members),
            _pointer(weights_MD),
            ctypes.c_double(scale),
            ctypes.c_double(prior_scale),
            None if gradient_MD is None else _pointer(gradient_MD),
            _pointer(values_M),
            _pointer(priors_M),
            rows=(inputs, targets),
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
        diagonal, ones if None. `scales` are factors on the gradients of log likelihood and log prior.
        """
        members, dtype = len(phase[0]), phase[0].dtype
        values_M, priors_M = torch.empty(2, members, dtype=torch.float64).unbind()
        inverse_mass_MD = None if inverse_mass_MD is None else inverse_mass_MD.contiguous()
        step_size_M, steps_M = step_size_M.double().contiguous(), steps_M.long().contiguous()
        call(
            self,
            "leapfrog",
            dtype,
            *self.target,
            ctypes.c_int64(members),
            *map(_pointer, phase),
            None if inverse_mass_MD is None else _pointer(inverse_mass_MD),
            _pointer(step_size_M),
            _pointer(steps_M),
            ctypes.c_double(scales[0]),
            ctypes.c_double(scales[1]),
            _pointer(values_M),
            _pointer(priors_M),
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
            ctypes.c_int64(len(weights_SD)),
            _pointer(weights_SD),
            ctypes.c_int64(weights_SD.stride(0)),
            _pointer(outputs_SBK),
            ctypes.c_int64(torch.get_num_threads()),
        )
        return outputs_SBK

    def _rows(self, inputs: Tensor, targets: Tensor, groups: int, chunk_size: int) -> RowsStruct:
        """Return rows as the kernel takes them; `groups` is M when every member has its own, else 1."""
        is_own = groups > 1
        image = inputs.shape[-3:] if self._images else (self._width, 0, 0)
        features = math.prod(image) if self._images else self._width
        return RowsStruct(
            inputs.data_ptr(),
            targets.data_ptr(),
            inputs.numel() // (features * groups),
            inputs.numel() // groups if is_own else 0,
            targets.numel() // groups if is_own else 0,
            min(chunk_size, max(len(inputs), 1)),
            features,
            image[1],
            image[2],
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

    `name` is without the dtype of weights and inputs. `groups` is M when every member has its own rows, else 1.
    Raises a ValueError if a class label is not one of the network's outputs.
    """
    inputs, targets = rows[0].contiguous(), rows[1].contiguous()
    described, threads = kernel._rows(inputs, targets, groups, chunk_size), ctypes.c_int64(torch.get_num_threads())
    function = kernel._functions[name, dtype]
    succeeded = function(ctypes.byref(kernel._network), ctypes.byref(described), *arguments, threads)
    if not succeeded:
        raise ValueError(
            f"class labels must lie in 0..{kernel.outputs - 1}, as the network has {kernel.outputs} outputs; "
            f"got {int(targets.min())}..{int(targets.max())}."
        )


def _functions() -> dict[tuple[str, torch.dtype], Any]:
    """Return the library's functions by name and dtype."""
    library, functions = load("dense"), {}
    for dtype in (torch.float32, torch.float64):
        for name in ("evaluate", "spread", "leapfrog", "slice", "trees", "predict"):
            functions[name, dtype] = getattr(library, f"{name}_{str(dtype).removeprefix('torch.')}")
            functions[name, dtype].restype = None if name == "predict" else ctypes.c_bool
    return functions


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())
