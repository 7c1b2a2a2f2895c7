"""Layers with normal distributions as weights, in the library's own kernel.

The kernel forms the second product of every layer next to the first (`native/sources/spread.hpp`). Noise is that of
passes.py bit for bit; results are equal up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.density.backend import Mixing, refuse
from torchbayes.density.density import LogDensity, check_whole
from torchbayes.density.kernels import DenseModel, kernel_of
from torchbayes.density.layers.randomness import Pass, Randomness
from torchbayes.density.layers.uses import How
from torchbayes.model.dropout import dropouts
from torchbayes.model.model import Batch
from torchbayes.native.dense import Call, SecondWeights, evaluate_spread
from torchbayes.native.description import Layer, Stage


class _Linear(NamedTuple):
    """A layer with weights, in the order in which a network calls them."""

    weight: slice  # its place in the flat vector
    bias: slice | None  # that of its bias; None if it has none
    channels: tuple[int, int]  # of inputs and outputs
    how: How  # its estimator


def kernel_for(density: LogDensity, weights_MD: Tensor, batch: Batch, *, hows: Mapping[str, How]) -> DenseModel | None:
    """Return the kernel that takes these rows; None without one, with another plan, or if a layer's weight is drawn.

    There is none in a subspace, where layers have no weights of their own.
    """
    model = density.model
    kernel = kernel_of(model)
    planned = density.plan is None or density.plan.backend == "native"
    if not planned or not isinstance(kernel, DenseModel) or kernel.kernel.affine or dropouts(model.network):
        return None
    if any(layer.how == "drawn" for layer in _layers(kernel, model.layout.slices, hows)):
        return None
    return kernel if kernel.takes(weights_MD, *batch, shared=False) else None


def check_pass(density: LogDensity, *, rows: int, native: bool, mixing: Mixing | None = None) -> None:
    """Raise a SettingError if coupled rows are split, or a plan is set that is neither a loop nor a usable kernel.

    `native` says whether the kernel can run the pass.
    """
    if density.model.coupled:
        check_whole(rows, density.num_data, mixing)
    plan = density.plan
    if plan is None or plan.backend == "loop" or (native and plan.backend == "native"):
        return
    if plan.backend == "native":
        why = "the kernel does not take noise in these layers"
    else:
        why = "noise in the layers is no stack of networks, and estimator='weights' draws one"
    refuse(plan.backend, why)


def by_kernel(
    kernel: DenseModel,
    density: LogDensity,
    parameters: tuple[Tensor, Tensor],
    *,
    batch: Batch,
    pass_: Pass,
    into: tuple[Tensor, ...],
) -> tuple[Tensor, Tensor]:
    """Return the sum of log likelihoods of rows, and a number that is finite if the gradients are, each (M,).

    Writes −1/B of the log likelihood's gradient by means and scales to `into`, contiguous tensors (M, D).
    `parameters` are μ and σ, each (M, D), and `batch` the rows of this process, (M, B', ...).
    """
    mean_MD, scale_MD = (part_MD.contiguous() for part_MD in parameters)
    slices, random = density.model.layout.slices, pass_.random
    drawn = {name: at for name, at in slices.items() if pass_.hows[name] == "drawn"}
    noises = {name: _drawn(density, name, scale_MD[:, at], random) for name, at in drawn.items()}
    if drawn:
        mean_MD = mean_MD.clone()
        for name, at in drawn.items():
            mean_MD[:, at].addcmul_(scale_MD[:, at], noises[name])
            into[1][:, at] = 0
    factor_MD, calls = _calls(_layers(kernel, slices, pass_.hows), scale_MD, pass_)
    seeds = tuple(of.seed for of in random)
    results = evaluate_spread(
        kernel.kernel,
        mean_MD,
        (kernel.encoded(batch.inputs, lead=2), batch.targets),
        second=SecondWeights(scale_MD * factor_MD, factor_MD, into[1], calls, seeds, pass_.place.local_rows.start),
        scale=-1 / pass_.place.total,
        gradient_MD=into[0],
        chunk_size=density.chunk_size,
    )
    for name, at in drawn.items():
        torch.mul(into[0][:, at], noises[name], out=into[1][:, at])
    return results


def _layers(kernel: DenseModel, slices: Mapping[str, slice], hows: Mapping[str, How]) -> list[_Linear]:
    """Return the layers with weights, convolutions first."""
    by_start = {where.start: (name, where) for name, where in slices.items()}

    def layer(entry: Layer | Stage, channels: tuple[int, int]) -> _Linear:
        name, weight = by_start[entry.weight_at]
        bias = None if entry.bias_at < 0 else by_start[entry.bias_at][1]
        return _Linear(weight, bias, channels, hows[name])

    stages = [layer(stage, stage.channels) for stage in kernel.network.stages if stage.weight_at >= 0]
    return [*stages, *(layer(entry, (entry.fan_in, entry.fan_out)) for entry in kernel.network.layers)]


def _drawn(density: LogDensity, name: str, like_MD: Tensor, random: Sequence[Randomness]) -> Tensor:
    """Return the noise of a parameter that is drawn."""
    number = density.model.layout.names.index(name)
    return torch.stack([of.drawn(number, like) for of, like in zip(random, like_MD, strict=True)])


def _calls(layers: Sequence[_Linear], scale_MD: Tensor, pass_: Pass) -> tuple[Tensor, list[Call]]:
    """Return the factors that turn scales into second weights (local: σ, flipped signs: ε), and the calls."""
    local = all(layer.how == "local" for layer in layers)
    factor_MD = scale_MD if local else torch.zeros_like(scale_MD)
    (rows, total), random, calls = pass_.place, pass_.random, []
    for number, layer in enumerate(layers, start=1):
        parts = [columns for columns in (layer.weight, layer.bias) if columns is not None]
        if layer.how == "local":
            calls.append(Call(random[0].outputs(number)))
            for columns in () if local else parts:
                factor_MD[:, columns] = scale_MD[:, columns]
            continue
        for (m, of), columns in product(enumerate(random), parts):
            of.fill_change(number, factor_MD[m, columns], bias=columns is layer.bias)
        signs = [
            torch.stack([of.signs(number, (total, width), scale_MD, outputs=bool(after))[rows] for of in random])
            for after, width in enumerate(layer.channels)
        ]
        calls.append(Call(None, *signs))
    return factor_MD, calls
