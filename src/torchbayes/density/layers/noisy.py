"""Outputs with noise of their own, and their derivatives in closed form: a = m + √v ∘ ζ.

    ∂/∂m = g,    ∂/∂v = ½ g ∘ ζ/√v,    0 where v is 0, because such an output has no noise

In a linear layer, m = x μᵀ and v = x² (σ²)ᵀ. With h = g ∘ ζ/√v, the gradients are two products each:

    ∂/∂μ = gᵀ x,    ∂/∂σ = σ ∘ (hᵀ x²),    ∂/∂x = g μ + x ∘ (h σ²)

With the signs r and s of flipout, a = m + s ∘ ((r ∘ x) Δᵀ), Δ = σ ∘ ε and h = g ∘ s:

    ∂/∂μ = gᵀ x,    ∂/∂σ = ε ∘ (hᵀ (r ∘ x)),    ∂/∂x = g μ + r ∘ (h Δ)

No factor needs its own pass over all weights, and gradients are written directly to their final memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Perturb = Callable[[Tensor, Tensor], None]  # m ← m + √v ∘ ζ and v ← ζ/√v, 0 where v is 0
Into = tuple[Tensor, Tensor]


class Flips(NamedTuple):
    """The random numbers of a layer with flipout."""

    noise: Tensor  # ε of the weight
    bias_noise: Tensor | None  # that of the bias; None for a bias that is not random
    before: Tensor  # r, of the shape of the inputs, or 1 for an axis of positions
    after: Tensor  # s, of that of the outputs


def spread(mean: Tensor, variance: Tensor, perturb: Perturb) -> Tensor:
    """Return m + √v ∘ ζ in the memory of the means; the memory of the variances is overwritten as well."""
    return _Spread.apply(mean, variance, perturb)  # type: ignore[return-value]


def local(
    inputs: Tensor,
    mean: tuple[Tensor, Tensor | None],
    scale: tuple[Tensor, Tensor | None],
    *,
    perturb: Perturb,
    into: Into | None = None,
) -> Tensor:
    """Return the outputs (..., out) of a linear layer with independent normal weights, for inputs x (..., in).

    `mean` and `scale` are those of weight (out, in) and bias (out,); None for no bias, or one that is not random.
    `perturb` adds the noise, and `into` is memory for the gradients by mean and scale of the weight.
    """
    return _Local.apply(inputs, *mean, *scale, perturb, into)  # type: ignore[return-value]


def flipped(
    inputs: Tensor,
    mean: tuple[Tensor, Tensor | None],
    scale: tuple[Tensor, Tensor | None],
    *,
    flips: Flips,
    into: Into | None = None,
) -> Tensor:
    """Return the outputs (..., out) of a linear layer under one draw of its weights, with signs for each example.

    Arguments are as for `local`, with `flips` for the random numbers.
    """
    return _Flipped.apply(inputs, *mean, *scale, flips, into)  # type: ignore[return-value]


class _Layer(torch.autograd.Function):
    """The derivatives of a layer's two products, g with its means and h = g ∘ `after` with its second weights.

    What a subclass saves is named as for flipout: outputs are multiplied by `after`, inputs of the second product are
    `before` ∘ x, and its weights are scales times `noise`. Locally these are ζ/√v, x ∘ x and σ ∘ σ.
    """

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        inputs, before, turned, mean, change, noise, bias_noise, after = ctx.saved_tensors
        by_inputs = by_bias = by_bias_scale = None
        second = gradient * after
        if ctx.needs_input_grad[0]:
            by_inputs = torch.addcmul(gradient @ mean, before, second @ change)
        gradient, second, inputs, turned = (t.reshape(-1, t.shape[-1]) for t in (gradient, second, inputs, turned))
        by_mean = torch.mm(gradient.T, inputs, out=ctx.into[0])
        by_scale = torch.mm(second.T, turned, out=ctx.into[1]).mul_(noise)
        if ctx.needs_input_grad[2]:
            by_bias = gradient.sum(0)
        if bias_noise is not None:
            by_bias_scale = second.sum(0).mul_(bias_noise)
        return by_inputs, by_mean, by_bias, by_scale, by_bias_scale, None, None


class _Flipped(_Layer):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        mean: Tensor,
        bias: Tensor | None,
        scale: Tensor,
        bias_scale: Tensor | None,
        flips: Flips,
        into: Into | None,
    ) -> Tensor:
        noise, bias_noise, before, after = flips
        change, turned = scale * noise, inputs * before
        outputs = F.linear(inputs, mean, bias)
        bias_change = None if bias_scale is None or bias_noise is None else bias_scale * bias_noise
        outputs.addcmul_(after, F.linear(turned, change, bias_change))
        ctx.into = into or (torch.empty_like(mean), torch.empty_like(scale))
        change = change if ctx.needs_input_grad[0] else None
        ctx.save_for_backward(inputs, before, turned, mean, change, noise, bias_noise, after)
        return outputs


class _Local(_Layer):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        mean: Tensor,
        bias: Tensor | None,
        scale: Tensor,
        bias_scale: Tensor | None,
        perturb: Perturb,
        into: Into | None,
    ) -> Tensor:
        squares, variance = inputs.square(), scale.square()
        outputs = F.linear(inputs, mean, bias)
        ratio = F.linear(squares, variance, None if bias_scale is None else bias_scale.square())
        perturb(outputs, ratio)
        ctx.into = into or (torch.empty_like(mean), torch.empty_like(scale))
        variance = variance if ctx.needs_input_grad[0] else None
        ctx.save_for_backward(inputs, inputs, squares, mean, variance, scale, bias_scale, ratio)
        return outputs


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor, perturb: Perturb) -> Tensor:
        perturb(mean, variance)
        ctx.mark_dirty(mean)
        ctx.save_for_backward(variance.detach())
        return mean

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        (ratio,) = ctx.saved_tensors
        return gradient, (gradient * ratio).mul_(0.5), None
