"""The passes over all weights in a step of a Gaussian with independent weights: one before the gradient, one after.

IVON (`ivon.py` has the rule), with mean m, precision p = h + δ (of one observation), momentum g, and a normal prior of
mean μ and precision λδ:

    draw:    z ~ N(0, I),  w = m + z/√(λp),   sums (Σ log p, Σ δ ((m − μ)² + 1/(λp)))
    update:  ĝ = (1/S) Σ_s ∇_s,  ĥ = (λp/S) Σ_s ∇_s (w_s − m),  u = r (ĥ − p + δ)/p
             p ← p (½ + ½ (1 + u)²),  g ← β g + (1 − β) ĝ,  m ← m − lr clip((c g + δ (m − μ))/p, ±ξ)

As 1 + u + ½u² = ½ + ½ (1 + u)², p stays positive in floating-point arithmetic too, and at most halves. On a CPU a
kernel does each in one pass (`native/sources/mean_field.cpp`). Elsewhere, or without a compiler, tensor operations do
it: results are equal to rounding, and the noise bit for bit.

Variational inference by gradient descent (`vi.py`), with the parameters m and ρ = log σ. a and b are slopes of the
loss by m and by σ that do not go through draws, h is the factor on the entropy and k on the prior:

    scatter: w_s = m + σ z_s (or σ itself),   sums (Σ ρ, Σ δ ((m − μ)² + σ²))
    descend: ∂/∂m = (1/S) Σ_s ∇_s + a + kδ (m − μ),   ∂/∂ρ = (1/S) Σ_s ∇_s (w_s − m) + σ (b + kδσ) + h,
             and Adam (Kingma and Ba 2015) on both; or the gradient alone

These need a CPU with a compiler (`runs`); `families.py` does the same by tensor operations.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.native.build import DTYPES, typed
from torchbayes.native.noise import fill_normal_rows, keys_of


class Moments(NamedTuple):
    """What a step changes: contiguous tensors of one dtype, float32 or float64."""

    mean_MD: Tensor  # m
    precision_MD: Tensor  # p > 0
    momentum_MD: Tensor  # g


class Penalty(NamedTuple):
    """The normal prior, each a tensor (D,), or (1,) where it is the same for all weights."""

    loc: Tensor  # μ
    precision: Tensor  # δ, that of the prior over λ; 0 where the prior is not normal


class Rates(NamedTuple):
    """The numbers of an update of IVON."""

    ess: float  # λ, effective number of observations
    lr: float
    momentum: float  # β
    unbias: float  # c = 1/(1 − βᵗ) at the t-th step
    hessian: float  # r, share of the new curvature
    clip: float = math.inf  # ξ


class Descent(NamedTuple):
    """What the second pass of variational inference reads: contiguous tensors of one dtype."""

    gradient_MSD: Tensor  # ∇ of the mean loss at each draw; S = 0 where nothing was drawn
    weights_MSD: Tensor  # the draws
    by_MD: tuple[Tensor, ...] | None  # a and b, each (M, D); None for zeros
    strength: float  # k
    entropy: float  # h


class AdamRule(NamedTuple):
    """The numbers of a step of Adam."""

    beta1: float  # decay of the mean of gradients
    beta2: float  # decay of the mean of their squares
    eps: float  # added to the root
    lr: float
    weight_decay: float  # decoupled
    step: float  # counted from 1


def draw(
    moments: Moments,
    penalty: Penalty,
    weights_MD: Tensor,
    *,
    ess: float,
    seeds: Sequence[int],
    stream: int,
    sign: int = 1,
) -> Tensor:
    """Write weights w of every member to `weights_MD`, contiguous, and return the sums of the divergence.

    The sums are Σ log p and Σ δ ((m − μ)² + 1/(λp)), float64 (M, 2). `ess` is λ. A member's noise depends only on its
    seed and `stream`; `sign` −1 takes the noise −z.
    """
    if weights_MD.device.type != "cpu" or _library() is None:
        noise_MD = fill_normal_rows(weights_MD, seeds, stream).mul_(sign)
        return _draw_by_tensors(moments, penalty, noise_MD, ess=ess)
    sums_M2 = torch.empty(len(weights_MD), 2, dtype=torch.float64)
    tensors = (weights_MD, moments.mean_MD, moments.precision_MD, *penalty)
    _function("ivon_draw", weights_MD.dtype)(
        *(tensor.data_ptr() for tensor in tensors),
        penalty.loc.numel(),
        *weights_MD.shape,
        keys_of(tuple(seeds)),
        stream,
        sign,
        ess,
        sums_M2.data_ptr(),
        torch.get_num_threads(),
    )
    return sums_M2


def update(moments: Moments, penalty: Penalty, rates: Rates, *, gradient_SMD: Tensor, weights_SMD: Tensor) -> None:
    """Change mean, precision and momentum in place, given the gradients of the mean loss at each draw."""
    if moments.mean_MD.device.type != "cpu" or _library() is None:
        _update_by_tensors(moments, penalty, rates, gradient_SMD=gradient_SMD, weights_SMD=weights_SMD)
        return
    _function("ivon_update", weights_SMD.dtype)(
        *(tensor.data_ptr() for tensor in (*moments, gradient_SMD, weights_SMD, *penalty)),
        penalty.loc.numel(),
        *weights_SMD.shape,
        (ctypes.c_double * len(rates))(*rates),
        torch.get_num_threads(),
    )


def runs(parameters_MP: Tensor) -> bool:
    """Return whether `scatter` and `descend` take these parameters."""
    usual = parameters_MP.device.type == "cpu" and parameters_MP.dtype in DTYPES
    return usual and parameters_MP.is_contiguous() and _library() is not None


def scatter(
    parameters_MP: Tensor,
    penalty: Penalty,
    weights_MSD: Tensor,
    *,
    seeds: Sequence[int],
    stream: int | None,
    antithetic: bool = False,
) -> Tensor:
    """Write draws of every member, or their scales, to `weights_MSD` and return the sums of the divergence.

    The sums are Σ ρ and Σ δ ((m − μ)² + σ²), float64 (M, 2), of parameters (M, 2D). Without a `stream` it writes the
    scales, (M, 1, D). The noise of a member's S draws is one row of its normals; with `antithetic` draws the second
    half has that of the first with the other sign. `weights_MSD` is contiguous.
    """
    sums_M2 = torch.empty(len(weights_MSD), 2, dtype=torch.float64)
    members, draws, size = weights_MSD.shape
    _function("vi_draw", parameters_MP.dtype)(
        *(tensor.data_ptr() for tensor in (weights_MSD, parameters_MP, *penalty)),
        penalty.loc.numel(),
        0 if stream is None else draws // (2 if antithetic else 1),
        antithetic,
        members,
        size,
        keys_of(tuple(seeds)),
        stream or 0,
        sums_M2.data_ptr(),
        torch.get_num_threads(),
    )
    return sums_M2


def descend(
    parameters_MP: Tensor,
    penalty: Penalty,
    descent: Descent,
    *,
    rule: AdamRule | None = None,
    slots: tuple[Tensor, Tensor] | None = None,
    out: Tensor | None = None,
) -> None:
    """Take a step of Adam on the parameters (M, 2D) and its two moments `slots` in place, or write the gradient.

    The gradient is written to `out`, contiguous (M, 2D).
    """
    members, draws, size = descent.gradient_MSD.shape
    numbers = (1 / max(draws, 1), descent.strength, descent.entropy, *(rule or AdamRule(0, 0, 1, 0, 0, 1)))
    slot_pair, by_pair = slots or (None, None), descent.by_MD or (None, None)
    tensors = (*slot_pair, out, descent.gradient_MSD, descent.weights_MSD, *by_pair)
    _function("vi_update", parameters_MP.dtype)(
        parameters_MP.data_ptr(),
        *(None if tensor is None else tensor.data_ptr() for tensor in tensors),
        *(tensor.data_ptr() for tensor in penalty),
        penalty.loc.numel(),
        draws,
        members,
        size,
        (ctypes.c_double * len(numbers))(*numbers),
        torch.get_num_threads(),
    )


def _function(name: str, dtype: torch.dtype) -> Callable[..., None]:
    """Return a function of the kernel for a dtype."""
    return getattr(_library(), f"{name}_{'float32' if dtype == torch.float32 else 'float64'}")


def _draw_by_tensors(moments: Moments, penalty: Penalty, noise_MD: Tensor, *, ess: float) -> Tensor:
    """Do what the kernel's draw does; the noise becomes the weights."""
    scale_MD = (moments.precision_MD * ess).rsqrt_()
    noise_MD.mul_(scale_MD).add_(moments.mean_MD)
    centred_MD = moments.mean_MD - penalty.loc
    energy_MD = scale_MD.square_().addcmul_(centred_MD, centred_MD).mul_(penalty.precision)
    sums = [moments.precision_MD.log().sum(-1, dtype=torch.float64), energy_MD.sum(-1, dtype=torch.float64)]
    return torch.stack(sums, -1)


def _update_by_tensors(
    moments: Moments, penalty: Penalty, rates: Rates, *, gradient_SMD: Tensor, weights_SMD: Tensor
) -> None:
    """Do what the kernel's update does."""
    mean_MD, precision_MD, momentum_MD = moments
    relative_MD = (gradient_SMD * (weights_SMD - mean_MD)).mean(0).mul_(rates.ess)  # ĥ/p
    change_MD = relative_MD.addcdiv_(penalty.precision.expand_as(mean_MD), precision_MD).sub_(1.0).mul_(rates.hessian)
    precision_MD.mul_(change_MD.add_(1.0).square_().add_(1.0).mul_(0.5))
    momentum_MD.mul_(rates.momentum).add_(gradient_SMD.mean(0), alpha=1 - rates.momentum)
    step_MD = (mean_MD - penalty.loc).mul_(penalty.precision).add_(momentum_MD, alpha=rates.unbias).div_(precision_MD)
    mean_MD.sub_(step_MD.clamp_(-rates.clip, rates.clip), alpha=rates.lr)


@cache
def _library() -> ctypes.CDLL | None:
    pointer, integer, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    return typed(
        "mean_field",
        {
            "ivon_draw": (*[pointer] * 5, *[integer] * 3, pointer, ctypes.c_uint64, number, number, pointer, integer),
            "ivon_update": (*[pointer] * 7, *[integer] * 4, pointer, integer),
            "vi_draw": (*[pointer] * 4, *[integer] * 5, pointer, ctypes.c_uint64, pointer, integer),
            "vi_update": (*[pointer] * 10, *[integer] * 4, pointer, integer),
        },
    )
