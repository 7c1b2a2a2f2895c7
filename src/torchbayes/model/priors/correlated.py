r"""Normal priors under which the weights of a row are correlated: covariances that all rows of a tensor share.

Each row of a weight is N(0, C), independently of the other rows, C over the last axes of the tensor: the inputs of a
unit of a linear layer, channels and positions of a filter, or its positions alone. With C = U diag(v) Uᵀ and c = W U

    log p(W) = −½ Σ_rk c_rk²/v_k − (R/2) Σ_k log 2π v_k

which takes two products of W with U for the density and its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchbayes.checks import check_counts, check_positive, check_scale, plain_value, seen
from torchbayes.linalg import Kronecker
from torchbayes.linalg.matrices import eigh
from torchbayes.model.priors.axes import Axes
from torchbayes.model.priors.joint import Joint
from torchbayes.native.process import undisturbed_methods

_NUMBERS = 1 << 23  # inputs that are multiplied at a time, in float64
_LEAST = 1e-12  # variances below this share of the covariance's trace are lost in its eigenvalues
_SYMMETRIC = 1e-6  # how far from symmetric a covariance may be, relative to its largest entry


@undisturbed_methods
@dataclass(frozen=True, eq=False)
class Correlated:
    """Each row w_r ~ N(0, C), rows independent: a matrix normal prior whose rows share a covariance.

    C is over the last axes of a parameter whose lengths multiply to its size; the other axes are rows. For a linear
    layer (O, I) it is (I, I). For a convolution (O, C, k, k) it is over all C k² weights of a filter, or (k², k²) over
    its positions, for each pair of channels.

    Attributes:
        covariance: C, positive definite, in squared units of the weights; held in float64 on the CPU.
        lengths: of a filter, if C is over its positions; None if C is over whichever last axes have its size.
    """

    covariance: Tensor
    lengths: tuple[int, ...] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._check()
        matrix = torch.as_tensor(self.covariance).detach().to("cpu", torch.float64)
        object.__setattr__(self, "covariance", 0.5 * (matrix + matrix.mT))
        least = float(self._spectrum[0][0])
        if not least > 0:
            raise ValueError(
                f"`covariance` must be positive definite; its smallest eigenvalue is {least:.3g}. Add a small multiple "
                f"of the identity."
            )

    def _check(self) -> None:
        """Raise TypeError or ValueError if the covariance is not a square, symmetric matrix of finite numbers."""
        if not isinstance(self.covariance, Tensor | np.ndarray):
            raise TypeError(f"`covariance` must be a matrix, a tensor with two axes; got {seen(self.covariance)}.")
        matrix = torch.as_tensor(self.covariance)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix) or matrix.is_complex():
            raise ValueError(f"`covariance` must be a square matrix of real numbers; got shape {tuple(matrix.shape)}.")
        if not torch.isfinite(matrix).all():
            raise ValueError("`covariance` must be finite; it holds NaN or infinite values.")
        if float((matrix - matrix.mT).double().abs().max()) > _SYMMETRIC * float(matrix.double().abs().max()):
            raise ValueError("`covariance` must be symmetric; it differs from its transpose.")

    @classmethod
    def filters(cls, kernel_size: int | tuple[int, ...] = 3, *, lengthscale: float = 1.0, scale: float = 1.0) -> Self:
        """Return the prior of filters whose neighbouring positions have similar weights (Fortuin et al. 2022).

            cov(w_p, w_q) = scale² exp(−|p − q| / lengthscale),    p, q the places in a k × k filter

        Channels are independent of each other.

        Args:
            kernel_size: k, or the lengths of all axes of a filter, such as (3, 5); a single number stands for two.
            lengthscale: in pixels.
            scale: standard deviation of each weight.

        Raises:
            ValueError: if a length is not a positive integer, or a scale not above 0.
            TypeError: if they are no numbers.
        """
        kernel_size = plain_value(kernel_size)
        lengths = kernel_size if isinstance(kernel_size, tuple) else (kernel_size,) * 2
        for length in lengths or (0,):
            check_counts(kernel_size=length)
        check_positive(lengthscale=lengthscale)
        check_scale(scale=scale)
        axes = [torch.arange(length, dtype=torch.float64) for length in lengths]
        places = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, -2)
        prior = cls(float(scale) ** 2 * torch.exp(-torch.cdist(places, places) / float(lengthscale)))
        object.__setattr__(prior, "lengths", tuple(lengths))
        return prior

    def resolve(self, axes: Axes) -> Joint:
        """Return the prior of a parameter with these axes; ValueError if the covariance or the filters do not fit."""
        shape = axes.shape
        size, total = len(self.covariance), math.prod(shape)
        if self.lengths not in {None, axes.places}:
            ours, theirs = (" x ".join(map(str, lengths or ())) for lengths in (self.lengths, axes.places))
            raise ValueError(
                f"{self!r} is over the positions of filters of {ours}; a parameter of shape {tuple(shape)} has "
                f"{theirs or 'none'}. Name the parameter that it is for, such as {{'0.weight': …, '*': Normal()}}."
            )
        if size not in {math.prod(shape[axis:]) for axis in range(len(shape) + 1)}:
            raise ValueError(
                f"{self!r} is over {size} weights of a row, and the last axes of a parameter of shape {tuple(shape)} "
                f"have {', '.join(str(math.prod(shape[axis:])) for axis in range(len(shape)))}. Name the parameter "
                f"that it is for, such as {{'0.weight': …, '*': Normal()}}."
            )
        values, vectors = self._spectrum
        variance = values.expand(1, 1, total // size, size)
        return Joint(torch.zeros(total, dtype=torch.float64), Kronecker(variance, None, vectors[None, None]))

    @cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor]:
        """The eigenvalues v, ascending, and the eigenvectors U of the covariance."""
        return eigh(self.covariance)

    def __repr__(self) -> str:
        """Return the size, and the trace, which tells covariances of one size apart."""
        trace = float(self.covariance.trace())
        return f"{type(self).__name__}({len(self.covariance)} x {len(self.covariance)}, trace {trace:.6g})"


@dataclass(frozen=True, eq=False, repr=False)
class EmpCov(Correlated):
    """The covariance of a first layer's inputs as that of its weights: w_r ~ N(0, α Σ + ε I) (Izmailov et al. 2021).

    In a direction in which the inputs do not vary, as at pixels that are always black, the data say nothing of the
    weights, which keep their prior. Under N(0, 1) new rows that do vary there are multiplied by weights of size 1, and
    predictions collapse; under this prior by weights of size √ε.
    """

    @classmethod
    def of(cls, inputs: Any, *, layer: nn.Module | None = None, scale: float = 1.0, jitter: float = 1e-2) -> Self:
        """Return the prior of a layer that takes these inputs, from one pass over them, in float64.

            C = scale² XᵀX/(N − 1) + jitter I,    X the N inputs of the layer, not centred

        For a convolution, X are all patches that its filters meet, with its stride, padding and dilation.

        Args:
            inputs: the training inputs as the network takes them, (N, ...); or a pair of inputs and targets, or a
                loader that yields batches of either.
            layer: the first layer, such as `net[0]`: nn.Linear, nn.Conv1d or nn.Conv2d without groups. None for a layer
                that takes the flattened rows, as nn.Linear does.
            scale: √α, of the weights along the directions of the inputs.
            jitter: ε, the variance of the weights in directions without inputs.

        Returns:
            The prior, for the weight of this layer.

        Raises:
            ValueError: if there are fewer than two rows, inputs are not finite or do not fit the layer, or a number is
                not above 0.
            TypeError: if inputs or layer are of another kind.
        """
        check_scale(scale=scale)
        check_positive(jitter=jitter)
        _check_layer(layer)
        total, count = None, 0
        for batch in _batches(inputs):
            for rows in _rows(batch, layer):
                gram = rows.mT @ rows
                if total is not None and gram.shape != total.shape:
                    raise ValueError(f"`inputs` must have rows of one size; got {len(gram)} after {len(total)}.")
                total, count = gram if total is None else total.add_(gram), count + len(rows)
        if total is None or count < 2:
            raise ValueError(f"`inputs` must have at least 2 rows, for a covariance; got {count}.")
        if not torch.isfinite(total).all():
            raise ValueError("`inputs` must be finite; they hold NaN or infinite values. Clean the data first.")
        total *= float(scale) ** 2 / (count - 1)
        if float(jitter) < (least := _LEAST * float(total.trace())):
            raise ValueError(
                f"`jitter` must be at least {least:.3g} beside inputs of this size, or rounding hides it; got "
                f"{jitter:g}. Scale the inputs."
            )
        total.diagonal().add_(float(jitter))
        return cls(total)


def _check_layer(layer: Any) -> None:
    """Raise an error if the patches of a layer are not known: another kind, groups, or a padding other than zeros."""
    if layer is None:
        return
    if not isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d):
        raise TypeError(f"`layer` must be an nn.Linear, nn.Conv1d or nn.Conv2d, the first layer; got {seen(layer)}.")
    if isinstance(layer, nn.Conv1d | nn.Conv2d) and (layer.groups != 1 or layer.padding_mode != "zeros"):
        raise ValueError(
            f"`layer` must be a convolution without groups whose padding is zeros; got {layer}. Compute the second "
            f"moment of its patches, and give it to Correlated."
        )


def _batches(inputs: Any) -> Iterator[Tensor]:
    """Yield the inputs of every batch; TypeError if they are no tensors."""
    if isinstance(inputs, np.ndarray):
        inputs = torch.as_tensor(inputs)
    if isinstance(inputs, Tensor):
        yield inputs
    elif isinstance(inputs, tuple) and inputs and isinstance(inputs[0], Tensor | np.ndarray):
        yield torch.as_tensor(inputs[0])
    elif isinstance(inputs, Iterable) and not isinstance(inputs, str | bytes | Mapping):
        for batch in inputs:
            first = batch[0] if isinstance(batch, list | tuple) and batch else batch
            if not isinstance(first, Tensor | np.ndarray):
                raise TypeError(f"`inputs` must yield tensors, or tuples that begin with one; got {seen(batch)}.")
            yield torch.as_tensor(first)
    else:
        raise TypeError(f"`inputs` must be a tensor of rows, or a loader of such; got {seen(inputs)}.")


def _rows(batch: Tensor, layer: nn.Module | None) -> Iterator[Tensor]:
    """Yield the rows that a layer multiplies its weights by, (rows, I) float64, some at a time."""
    if batch.is_complex() or batch.dtype == torch.bool or not batch.ndim:
        raise TypeError(f"`inputs` must be rows of real numbers; got {batch.dtype} of shape {tuple(batch.shape)}.")
    each = max(1, math.prod(batch.shape[1:]) * (math.prod(_kernel(layer)) if layer is not None else 1))
    for inputs in batch.detach().split(max(1, _NUMBERS // each)):
        yield _placed(inputs.to("cpu", torch.float64), layer)


def _kernel(layer: nn.Module) -> tuple[int, ...]:
    return tuple(layer.kernel_size) if isinstance(layer, nn.Conv1d | nn.Conv2d) else ()


def _placed(inputs: Tensor, layer: nn.Module | None) -> Tensor:
    """Return the rows that a layer takes from some inputs; ValueError if they do not fit the layer."""
    if layer is None:
        return inputs.reshape(len(inputs), math.prod(inputs.shape[1:]))
    if isinstance(layer, nn.Linear):
        if inputs.shape[-1] != layer.in_features and math.prod(inputs.shape[1:]) != layer.in_features:
            raise ValueError(
                f"`inputs` must have the {layer.in_features} features of {layer}; got {tuple(inputs.shape)}."
            )
        return inputs.reshape(-1, layer.in_features)
    assert isinstance(layer, nn.Conv1d | nn.Conv2d)
    size, axes = tuple(layer.kernel_size), len(layer.kernel_size)
    if inputs.ndim != axes + 2 or inputs.shape[1] != layer.in_channels:
        raise ValueError(
            f"`inputs` must be images of {layer.in_channels} channels for {layer}; got shape {tuple(inputs.shape)}."
        )
    padded = F.pad(inputs, layer._reversed_padding_repeated_twice)  # the layer's own padding
    spans = [d * (k - 1) + 1 for d, k in zip(layer.dilation, size, strict=True)]
    if any(length < span for length, span in zip(padded.shape[2:], spans, strict=True)):
        raise ValueError(f"`inputs` must be no smaller than the filters of {layer}; got shape {tuple(inputs.shape)}.")
    stride, dilation = tuple(layer.stride), tuple(layer.dilation)
    if axes == 1:
        padded, size, stride, dilation = padded.unsqueeze(2), (1, *size), (1, *stride), (1, *dilation)
    return F.unfold(padded, size, stride=stride, dilation=dilation).mT.flatten(0, 1)
