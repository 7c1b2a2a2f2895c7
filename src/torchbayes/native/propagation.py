"""Means and variances of the outputs of a fully connected ReLU network, and passes of probabilistic backpropagation.

Weights are independent normals of means m and variances v. The inputs of every layer are assumed to be so too, with
means x and variances s. Then z = W x + b has

    mean Σ_i m_i x_i + m_b,    variance Σ_i (m_i² s_i + v_i (x_i² + s_i)) + v_b,

and max(0, z) of z ~ N(m, v), with a = m/√v, h = φ(a)/Φ(a) and m' = m + √v h,

    mean Φ(a) m',    variance (Φ(a) m') m' Φ(−a) + Φ(a) v (1 − h (h + a)).

A row (x, y) under noise of precision γ ~ Gamma(α, rate β) has Z = N(y; mean, variance + β/(α − 1)), and changes

    m ← m + v ∂log Z/∂m,    v ← v − v² ((∂log Z/∂m)² − 2 ∂log Z/∂v),

as well as α and β, by Z₁ and Z₂ at α + 1 and α + 2:

    α ← 1/(Z Z₂/Z₁² (α + 1)/α − 1),    β ← 1/(Z₂/Z₁ (α + 1)/β − Z₁/Z α/β).

Updates after which a variance is not positive are undone (Hernandez-Lobato and Adams 2015). On a CPU a kernel does
this (propagation.cpp), with derivatives by hand; without a compiler tensor operations do, with those of autograd,
equal up to rounding. All numbers are float64 on the CPU.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.native.build import typed
from torchbayes.native.description import Activation, Layer
from torchbayes.native.process import differentiable

FLOOR = 1e-12  # of the variance of a unit's input
_FAR = -30.0  # below it φ/Φ is taken from its expansion
_INFORMED = 1e-6  # precision of a cavity, in units of the prior, below which its factor stays as it is


class Beliefs(NamedTuple):
    """Independent normals over the weights of M members."""

    mean_MD: Tensor
    variance_MD: Tensor


class Rows(NamedTuple):
    """Rows in the order in which they are used."""

    inputs_MBI: Tensor
    targets_MBK: Tensor
    counts_MB: Tensor | None = None  # how often each row counts; once if None


def rectified(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of max(0, z), z ~ N(mean, variance), elementwise."""
    variance = variance.clamp_min(FLOOR)
    root = variance.sqrt()
    a = mean / root
    above, below = (0.5 * torch.special.erfc(sign * a / math.sqrt(2)) for sign in (-1, 1))
    near = a.clamp_min(_FAR)
    ratio = torch.exp(-0.5 * near.square()) / math.sqrt(2 * math.pi) / (0.5 * torch.special.erfc(-near / math.sqrt(2)))
    far = a.clamp_max(_FAR)
    hazard = torch.where(a < _FAR, -far - 1 / far + 2 / far**3, ratio)
    lifted = mean + root * hazard
    first = above * lifted
    spread = first * lifted * below + above * variance * (1 - hazard * (hazard + a))
    return first, spread.clamp_min(0.0)


def outputs_of(
    layers: Sequence[Layer], mean_D: Tensor, variance_D: Tensor, *, inputs_BI: Tensor
) -> tuple[Tensor, Tensor]:
    """Return means and variances of the outputs at each row, each (B, K), for weights N(m, v); differentiable."""
    mean, variance = inputs_BI, torch.zeros_like(inputs_BI)
    for layer in layers:
        m, v = (_matrix(layer, moment_D) for moment_D in (mean_D, variance_D))
        mean, variance = mean @ m.mT, variance @ (m.square() + v).mT + mean.square() @ v.mT
        if layer.bias_at >= 0:
            positions = slice(layer.bias_at, layer.bias_at + layer.fan_out)
            mean, variance = mean + mean_D[positions], variance + variance_D[positions]
        if layer.activation == Activation.RELU:
            mean, variance = rectified(mean, variance)
    return mean, variance


def propagate(layers: Sequence[Layer], beliefs: Beliefs, noise: Tensor, *, rows: Rows) -> Tensor:
    """Change beliefs in place by rows, one after the other.

    `noise` holds shapes and rates of the Gammas of each output's precision, or of all, (M, G, 2), changed; or known
    variances (G,). Returns, (M, 3), the sum of log Z, the number of undone updates, and the number of rows that
    count.
    """
    if (library := _library()) is None:
        return torch.stack([_propagate(layers, beliefs, noise, rows, m=m) for m in range(len(beliefs.mean_MD))])
    sums_M3 = torch.empty(len(beliefs.mean_MD), 3, dtype=torch.float64)
    numbers = [n for each in layers for n in (each.weight_at, each.bias_at, each.fan_in, each.fan_out, each.activation)]
    members, size = beliefs.mean_MD.shape
    library.propagate(
        *(t.data_ptr() for t in (*beliefs, noise, rows.inputs_MBI, rows.targets_MBK)),
        None if rows.counts_MB is None else rows.counts_MB.data_ptr(),
        (ctypes.c_int64 * len(numbers))(*numbers),
        len(layers),
        *(members, size, rows.inputs_MBI.shape[1]),
        noise.shape[-1] if noise.ndim == 1 else noise.shape[1],
        noise.ndim == 1,
        sums_M3.data_ptr(),
        torch.get_num_threads(),
    )
    return sums_M3


def refresh(beliefs: Beliefs, sites_M4D: Tensor, factor_M2: Tensor, *, loc_D: Tensor, scale_D: Tensor) -> None:
    """Replace every factor N(w; loc, scale²/λ) of the prior in turn, as expectation propagation does, in place.

    `sites_M4D` holds for each factor precision and shift of (w − loc)/scale, and what it adds to the shape and rate
    of λ. `factor_M2` is shape and rate of the belief about λ. `loc_D` and `scale_D` are the prior's at λ = 1.
    """
    if (library := _library()) is None:
        for m in range(len(factor_M2)):
            _refresh(beliefs, sites_M4D[m], factor_M2[m], m, loc_D=loc_D, scale_D=scale_D)
        return
    tensors = (*beliefs, sites_M4D, factor_M2, loc_D, scale_D)
    library.refresh(*(t.data_ptr() for t in tensors), *beliefs.mean_MD.shape, torch.get_num_threads())


def tilted(shape: float, rate: float, *, residual: float, variance: float, count: float = 1.0) -> tuple[float, float]:
    """Return shape and rate of a Gamma over γ, α > 1, after N(residual; 0, variance + 1/(count γ)).

    They are computed from differences of log Z at variance + rate/(count (shape − 1 + j)), because the numbers
    themselves cancel for large shapes. `variance` is that of f, the residual is y − f, and `count` says how often the
    row counts. Raises an ArithmeticError if there is no such Gamma.
    """
    share, square = rate / (count * shape), 0.5 * residual * residual
    v0, v1, v2 = (variance + rate / (count * (shape - 1 + j)) for j in range(3))

    def step(before: float, after: float, fall: float) -> float:
        return -0.5 * math.log1p(-fall / before) - square * fall / (before * after)

    d1, d2 = step(v0, v1, share / (shape - 1)), step(v1, v2, share / (shape + 1))
    new_shape = 1 / math.expm1(d2 - d1 + math.log1p(1 / shape))
    new_rate = rate / (math.exp(d2) + shape * math.exp(d1) * math.expm1(d2 - d1))
    if not (new_shape > 1 and new_rate > 0 and math.isfinite(new_shape) and math.isfinite(new_rate)):
        raise ArithmeticError("no Gamma has these moments")
    return new_shape, new_rate


def _matrix(layer: Layer, part_D: Tensor) -> Tensor:
    size = layer.fan_in * layer.fan_out
    return part_D[layer.weight_at : layer.weight_at + size].view(layer.fan_out, layer.fan_in)


def _counted(shape: float, count: float) -> float:
    """Return the shape of the Gamma for a row with a count, because N(r; ·) has γ^½ instead of γ^(count/2)."""
    corrected = shape + 0.5 * (count - 1)
    return corrected if corrected > 1 else shape


def _propagate(layers: Sequence[Layer], beliefs: Beliefs, noise: Tensor, rows: Rows, *, m: int) -> Tensor:
    """Do what `propagate` does, with tensor operations, for one member; the result is (3,)."""
    known, sums = noise.ndim == 1, torch.zeros(3, dtype=torch.float64)
    own_noise = noise if known else noise[m]
    for r, (inputs_I, targets_K) in enumerate(zip(rows.inputs_MBI[m], rows.targets_MBK[m], strict=True)):
        count = 1.0 if rows.counts_MB is None else float(rows.counts_MB[m, r])
        if count <= 0:
            continue
        if known:
            noise_G = own_noise / count
        else:
            means = [rate / (count * (_counted(shape, count) - 1)) for shape, rate in own_noise.tolist()]
            noise_G = torch.tensor(means, dtype=torch.float64)
        with differentiable():
            mean_D, variance_D = (belief_MD[m].clone().requires_grad_() for belief_MD in beliefs)
            outputs = outputs_of(layers, mean_D, variance_D, inputs_BI=inputs_I.unsqueeze(0))
            mean_K, variance_K = (output[0] for output in outputs)
            residual_K = targets_K - mean_K
            log_z = torch.distributions.Normal(mean_K, (variance_K + noise_G).sqrt(), validate_args=False)
            total = log_z.log_prob(targets_K).sum()
            by_mean_D, by_variance_D = torch.autograd.grad(total, (mean_D, variance_D))
            total = total.detach()
        undone = 0 if known else _update_noise(own_noise, residual_K.tolist(), variance_K.tolist(), count)
        undone += _update_weights(beliefs, m, by_mean_D, by_variance_D)
        sums += torch.tensor([float(total), undone, 1], dtype=torch.float64)
    return sums


def _update_weights(beliefs: Beliefs, m: int, by_mean_D: Tensor, by_variance_D: Tensor) -> int:
    mean_D, variance_D = beliefs.mean_MD[m], beliefs.variance_MD[m]
    new_mean_D = mean_D + variance_D * by_mean_D
    new_variance_D = variance_D - variance_D.square() * (by_mean_D.square() - 2 * by_variance_D)
    valid_D = (new_variance_D > 0) & (new_variance_D < math.inf)
    mean_D.copy_(torch.where(valid_D, new_mean_D, mean_D))
    variance_D.copy_(torch.where(valid_D, new_variance_D, variance_D))
    return int((~valid_D).sum())


def _update_noise(noise_G2: Tensor, residuals: list[float], variances: list[float], count: float) -> int:
    undone = 0
    for k, (residual, variance) in enumerate(zip(residuals, variances, strict=True)):
        gamma = noise_G2[k if len(noise_G2) > 1 else 0]
        shape, rate = gamma.tolist()
        try:
            updated = tilted(_counted(shape, count), rate, residual=residual, variance=variance, count=count)
        except (ArithmeticError, ValueError):  # of logarithms and exponentials out of range too
            undone += 1
        else:
            gamma.copy_(torch.tensor(updated, dtype=torch.float64))
    return undone


def _refresh(beliefs: Beliefs, sites_4D: Tensor, factor_2: Tensor, m: int, *, loc_D: Tensor, scale_D: Tensor) -> None:
    """Do what `refresh` does for one member."""
    mean_D, variance_D = (belief_MD[m] for belief_MD in beliefs)
    gamma, numbers = factor_2.tolist(), torch.stack([mean_D, variance_D, loc_D, scale_D, *sites_4D], 1).tolist()
    for d, (mean, variance, loc, scale, precision, shift, shape, rate) in enumerate(numbers):
        posterior = scale * scale / variance
        left, pull = posterior - precision, posterior * ((mean - loc) / scale) - shift
        cavity = gamma[0] - shape, gamma[1] - rate
        if not (left > _INFORMED and cavity[0] > 1 and cavity[1] > 0):
            continue
        v, u = 1 / left, pull / left
        try:
            updated = tilted(*cavity, residual=u, variance=v)
        except (ArithmeticError, ValueError):
            continue
        total = v + cavity[1] / (cavity[0] - 1)
        new_mean, spread = u - v * u / total, v - v * v / total
        new = (1 / spread - left, new_mean / spread - pull, updated[0] - cavity[0], updated[1] - cavity[1])
        sites_4D[:, d] = torch.tensor(new, dtype=torch.float64)
        mean_D[d], variance_D[d] = loc + scale * new_mean, scale * scale * spread
        gamma = list(updated)
    factor_2.copy_(torch.tensor(gamma, dtype=torch.float64))


@cache
def _library() -> ctypes.CDLL | None:
    """Return the compiled kernel, or None without one; tried once, because a compiler may fail slowly."""
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    propagates = (*[pointer] * 7, *[integer] * 6, pointer, integer)
    return typed("propagation", {"propagate": propagates, "refresh": (*[pointer] * 6, *[integer] * 3)})
