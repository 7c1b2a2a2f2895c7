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
    return _Spread.apply(mean, variance, perturb)


def linear(
    inputs: Tensor,
    mean: tuple[Tensor, Tensor | None],
    scale: tuple[Tensor, Tensor | None],
    *,
    noise: Perturb | Flips,
    into: Into | None = None,
) -> Tensor:
    """Return the outputs (..., out) of a linear layer with independent normal weights, for inputs x (..., in).

    `mean` and `scale` are those of weight (out, in) and bias (out,); None for no bias, or one that is not random.
    `noise` is added to the outputs; as random numbers of flipout, it makes one draw of the weights, with signs for each
    example. `into` is memory for the gradients by mean and scale of the weight.
    """
    return _Linear.apply(inputs, *mean, *scale, noise, into)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        mean: Tensor,
        bias: Tensor | None,
        scale: Tensor,
        bias_scale: Tensor | None,
        noise: Perturb | Flips,
        into: Into | None,
    ) -> Tensor:
        """Compute two products: x μᵀ, and `turned` (r ∘ x or x²) with `second` weights (σ ∘ ε or σ²)."""
        outputs = F.linear(inputs, mean, bias)
        if isinstance(noise, Flips):
            factor, bias_factor, before, after = noise
            turned, second = inputs * before, scale * factor
            bias_second = None if bias_scale is None or bias_factor is None else bias_scale * bias_factor
            outputs.addcmul_(after, F.linear(turned, second, bias_second))
        else:
            factor, bias_factor, before = scale, bias_scale, inputs
            turned, second = inputs.square(), scale.square()
            after = F.linear(turned, second, None if bias_scale is None else bias_scale.square())
            noise(outputs, after)
        ctx.into = into or (torch.empty_like(mean), torch.empty_like(scale))
        second = second if ctx.needs_input_grad[0] else None
        ctx.save_for_backward(inputs, before, turned, mean, second, factor, bias_factor, after)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        inputs, before, turned, mean, second, factor, bias_factor, after = ctx.saved_tensors
        by_inputs = by_bias = by_bias_scale = None
        noisy = gradient * after  # h
        if ctx.needs_input_grad[0]:
            by_inputs = torch.addcmul(gradient @ mean, before, noisy @ second)
        gradient, noisy, inputs, turned = (t.reshape(-1, t.shape[-1]) for t in (gradient, noisy, inputs, turned))
        by_mean = torch.mm(gradient.T, inputs, out=ctx.into[0])
        by_scale = torch.mm(noisy.T, turned, out=ctx.into[1]).mul_(factor)
        if ctx.needs_input_grad[2]:
            by_bias = gradient.sum(0)
        if bias_factor is not None:
            by_bias_scale = noisy.sum(0).mul_(bias_factor)
        return by_inputs, by_mean, by_bias, by_scale, by_bias_scale, None, None


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
