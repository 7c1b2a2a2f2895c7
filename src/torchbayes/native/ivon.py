r"""The two passes over all weights that a step of IVON takes; `methods/variational/ivon.py` has the rule.

With mean m, precision p = h + δ (of one observation), momentum g, and a normal prior of mean μ and precision λδ:

    draw:    z ~ N(0, I),  w = m + z/√(λp),   sums (Σ log p, Σ δ ((m − μ)² + 1/(λp)))
    update:  ĝ = (1/S) Σ_s ∇_s,  ĥ = (λp/S) Σ_s ∇_s (w_s − m),  u = r (ĥ − p + δ)/p
             p ← p (½ + ½ (1 + u)²),  g ← β g + (1 − β) ĝ,  m ← m − lr clip((c g + δ (m − μ))/p, ±ξ)

As 1 + u + ½u² = ½ + ½ (1 + u)², p stays positive in floating-point arithmetic too, and at most halves. On a CPU a
kernel takes each in one pass (ivon.cpp), elsewhere or without a compiler tensor operations do: equal to rounding, and
the noise bit for bit.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.native.build import UnavailableError, load
from torchbayes.native.noise import fill_normal_rows, keys_of


class Moments(NamedTuple):
    """What a step changes; contiguous tensors of one dtype, float32 or float64.

    Attributes:
        mean_MD: m.
        precision_MD: p, positive.
        momentum_MD: g.
    """

    mean_MD: Tensor
    precision_MD: Tensor
    momentum_MD: Tensor


class Penalty(NamedTuple):
    """The normal prior, each a tensor (D,), or (1,) where it is the same for all weights.

    Attributes:
        loc: μ.
        precision: δ, that of the prior over λ; 0 where the prior is not normal.
    """

    loc: Tensor
    precision: Tensor


class Rates(NamedTuple):
    """The numbers of an update.

    Attributes:
        ess: λ, effective number of observations.
        lr: of the mean.
        momentum: β.
        unbias: c, 1/(1 − βᵗ) at the t-th step.
        hessian: r, share of the new curvature.
        clip: ξ; infinite for none.
    """

    ess: float
    lr: float
    momentum: float
    unbias: float
    hessian: float
    clip: float = math.inf


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
    """Draw weights of every member, and return what the divergence from the prior is made of.

    Args:
        moments: of the posterior.
        penalty: the prior.
        weights_MD: contiguous tensor that receives the weights w.
        ess: λ.
        seeds: of the members; a member's noise depends on its own and the stream alone.
        stream: of the noise.
        sign: 1, or −1 for the noise −z.

    Returns:
        Float64 tensor (M, 2): Σ log p and Σ δ ((m − μ)² + 1/(λp)).
    """
    library = _library() if weights_MD.device.type == "cpu" else None
    if library is None:
        noise_MD = fill_normal_rows(weights_MD, seeds, stream).mul_(sign)
        return _draw_by_tensors(moments, penalty, noise_MD, ess=ess)
    sums_M2 = torch.empty(len(weights_MD), 2, dtype=torch.float64)
    function = library.draw_float32 if weights_MD.dtype == torch.float32 else library.draw_float64
    tensors = (weights_MD, moments.mean_MD, moments.precision_MD, *penalty)
    function(
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
    """Change mean, precision and momentum in place.

    Args:
        moments: before the step; changed.
        penalty: the prior.
        rates: the numbers of the rule.
        gradient_SMD: ∇, gradient of the mean loss at each draw.
        weights_SMD: the draws.
    """
    library = _library() if moments.mean_MD.device.type == "cpu" else None
    if library is None:
        _update_by_tensors(moments, penalty, rates, gradient_SMD=gradient_SMD, weights_SMD=weights_SMD)
        return
    function = library.update_float32 if weights_SMD.dtype == torch.float32 else library.update_float64
    function(
        *(tensor.data_ptr() for tensor in (*moments, gradient_SMD, weights_SMD, *penalty)),
        penalty.loc.numel(),
        *weights_SMD.shape,
        (ctypes.c_double * len(rates))(*rates),
        torch.get_num_threads(),
    )


def _draw_by_tensors(moments: Moments, penalty: Penalty, noise_MD: Tensor, *, ess: float) -> Tensor:
    """Return what the kernel does; the noise becomes the weights."""
    scale_MD = (moments.precision_MD * ess).rsqrt_()
    noise_MD.mul_(scale_MD).add_(moments.mean_MD)
    centred_MD = moments.mean_MD - penalty.loc
    energy_MD = scale_MD.square_().addcmul_(centred_MD, centred_MD).mul_(penalty.precision)
    sums = [moments.precision_MD.log().sum(-1, dtype=torch.float64), energy_MD.sum(-1, dtype=torch.float64)]
    return torch.stack(sums, -1)


def _update_by_tensors(
    moments: Moments, penalty: Penalty, rates: Rates, *, gradient_SMD: Tensor, weights_SMD: Tensor
) -> None:
    """Do what the kernel does."""
    mean_MD, precision_MD, momentum_MD = moments
    relative_MD = (gradient_SMD * (weights_SMD - mean_MD)).mean(0).mul_(rates.ess)  # ĥ/p
    change_MD = relative_MD.addcdiv_(penalty.precision.expand_as(mean_MD), precision_MD).sub_(1.0).mul_(rates.hessian)
    precision_MD.mul_(change_MD.add_(1.0).square_().add_(1.0).mul_(0.5))
    momentum_MD.mul_(rates.momentum).add_(gradient_SMD.mean(0), alpha=1 - rates.momentum)
    step_MD = (mean_MD - penalty.loc).mul_(penalty.precision).add_(momentum_MD, alpha=rates.unbias).div_(precision_MD)
    mean_MD.sub_(step_MD.clamp_(-rates.clip, rates.clip), alpha=rates.lr)


@cache
def _library() -> ctypes.CDLL | None:
    """Return the compiled kernel, or None where there is none; tried once, as a compiler may fail slowly."""
    try:
        library = load("ivon")
    except UnavailableError:
        return None
    pointer, integer, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    arguments = {
        "draw": (*[pointer] * 5, *[integer] * 3, pointer, ctypes.c_uint64, number, number, pointer, integer),
        "update": (*[pointer] * 7, *[integer] * 4, pointer, integer),
    }
    for name, kinds in arguments.items():
        for dtype in ("float32", "float64"):
            function = getattr(library, f"{name}_{dtype}")
            function.restype, function.argtypes = None, kinds
    return library
