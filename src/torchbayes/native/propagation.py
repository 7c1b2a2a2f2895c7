r"""Means and variances of the outputs of a fully connected ReLU network, and passes of probabilistic backpropagation.

Weights are independent normals of means m and variances v, and so is, by assumption, what every layer takes, of mean x
and variance s. Then z = W x + b has

    mean Σ_i m_i x_i + m_b,    variance Σ_i (m_i² s_i + v_i (x_i² + s_i)) + v_b,

and max(0, z) of z ~ N(m, v), with a = m/√v, h = φ(a)/Φ(a) and m' = m + √v h,

    mean Φ(a) m',    variance (Φ(a) m') m' Φ(−a) + Φ(a) v (1 − h (h + a)).

A row (x, y) under noise of precision γ ~ Gamma(α, rate β) has Z = N(y; mean, variance + β/(α − 1)), and changes

    m ← m + v ∂log Z/∂m,    v ← v − v² ((∂log Z/∂m)² − 2 ∂log Z/∂v),

as well as α and β, by Z₁ and Z₂ at α + 1 and α + 2:

    α ← 1/(Z Z₂/Z₁² (α + 1)/α − 1),    β ← 1/(Z₂/Z₁ (α + 1)/β − Z₁/Z α/β).

Updates that leave a variance not positive are undone (Hernandez-Lobato and Adams 2015). On a CPU a kernel does so
(propagation.cpp), with derivatives by hand; without a compiler tensor operations do, with those of autograd: equal to
rounding. All numbers are float64 on the CPU.
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
from torchbayes.native.description import Activation, Layer
from torchbayes.native.process import differentiable

FLOOR = 1e-12  # of the variance of a unit's input
_FAR = -30.0  # where φ/Φ is taken from its expansion
_INFORMED = 1e-6  # precision of a cavity, in units of the prior, below which its factor stays as it is


class Beliefs(NamedTuple):
    """Independent normals over the weights of M members.

    Attributes:
        mean_MD: m.
        variance_MD: v.
    """

    mean_MD: Tensor
    variance_MD: Tensor


class Rows(NamedTuple):
    """Rows in the order they are taken.

    Attributes:
        inputs_MBI: inputs.
        targets_MBK: targets.
        counts_MB: how often each counts; once if None.
    """

    inputs_MBI: Tensor
    targets_MBK: Tensor
    counts_MB: Tensor | None = None


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
    """Return means and variances of the outputs at each row, each (B, K); differentiable.

    Args:
        layers: the network.
        mean_D: m.
        variance_D: v.
        inputs_BI: inputs.
    """
    mean, variance = inputs_BI, torch.zeros_like(inputs_BI)
    for layer in layers:
        m, v = (_matrix(layer, part) for part in (mean_D, variance_D))
        mean, variance = mean @ m.mT, variance @ (m.square() + v).mT + mean.square() @ v.mT
        if layer.bias_at >= 0:
            own = slice(layer.bias_at, layer.bias_at + layer.fan_out)
            mean, variance = mean + mean_D[own], variance + variance_D[own]
        if layer.activation == Activation.RELU:
            mean, variance = rectified(mean, variance)
    return mean, variance


def propagate(layers: Sequence[Layer], beliefs: Beliefs, noise: Tensor, *, rows: Rows) -> Tensor:
    """Change beliefs in place by rows, one after the other.

    Args:
        layers: the network.
        beliefs: over its weights; changed.
        noise: shapes and rates of the Gammas of each output's precision, or of all, (M, G, 2), changed; or known
            variances (G,).
        rows: the rows.

    Returns:
        (M, 3): the sum of log Z, the number of updates that were undone, and that of rows that count.
    """
    if (library := _library()) is None:
        return torch.stack([_propagate(layers, beliefs, noise, rows, m=m) for m in range(len(beliefs.mean_MD))])
    seen_M3 = torch.empty(len(beliefs.mean_MD), 3, dtype=torch.float64)
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
        seen_M3.data_ptr(),
        torch.get_num_threads(),
    )
    return seen_M3


def refresh(beliefs: Beliefs, sites_M4D: Tensor, factor_M2: Tensor, *, loc_D: Tensor, scale_D: Tensor) -> None:
    """Replace every factor N(w; loc, scale²/λ) of the prior in turn, as expectation propagation does.

    Args:
        beliefs: over the weights; changed.
        sites_M4D: what each factor says: precision and shift of (w − loc)/scale, and what it adds to the shape and rate
            of λ; changed.
        factor_M2: shape and rate of the belief about λ; changed.
        loc_D: means of the prior.
        scale_D: its standard deviations at λ = 1.
    """
    if (library := _library()) is None:
        for m in range(len(factor_M2)):
            _refresh(beliefs, sites_M4D[m], factor_M2[m], m, loc_D=loc_D, scale_D=scale_D)
        return
    tensors = (*beliefs, sites_M4D, factor_M2, loc_D, scale_D)
    library.refresh(*(t.data_ptr() for t in tensors), *beliefs.mean_MD.shape, torch.get_num_threads())


def tilted(shape: float, rate: float, *, residual: float, variance: float, count: float = 1.0) -> tuple[float, float]:
    """Return shape and rate of a Gamma over γ after N(residual; 0, variance + 1/(count γ)).

    By differences of log Z at variance + rate/(count (shape − 1 + j)): these numbers themselves cancel for large
    shapes.

    Args:
        shape: α, above 1.
        rate: β.
        residual: y − f.
        variance: of f.
        count: how often the row counts.

    Raises:
        ArithmeticError: if there is no such Gamma.
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
    """Return the shape of the Gamma of a row that counts so often: of its γ^(count/2), N(r; ·) has γ^½ alone."""
    found = shape + 0.5 * (count - 1)
    return found if found > 1 else shape


def _propagate(layers: Sequence[Layer], beliefs: Beliefs, noise: Tensor, rows: Rows, *, m: int) -> Tensor:
    """Do what the kernel does for one member; `beliefs` and `noise` are changed.

    Returns:
        As `propagate` does, (3,).
    """
    known, seen = noise.ndim == 1, torch.zeros(3, dtype=torch.float64)
    own = noise if known else noise[m]
    for r, (inputs_I, targets_K) in enumerate(zip(rows.inputs_MBI[m], rows.targets_MBK[m], strict=True)):
        count = 1.0 if rows.counts_MB is None else float(rows.counts_MB[m, r])
        if count <= 0:
            continue
        if known:
            noise_G = own / count
        else:
            means = [rate / (count * (_counted(shape, count) - 1)) for shape, rate in own.tolist()]
            noise_G = torch.tensor(means, dtype=torch.float64)
        with differentiable():
            mean_D, variance_D = (part[m].clone().requires_grad_() for part in beliefs)
            outputs = outputs_of(layers, mean_D, variance_D, inputs_BI=inputs_I.unsqueeze(0))
            mean_K, variance_K = (part[0] for part in outputs)
            residual_K = targets_K - mean_K
            log_z = torch.distributions.Normal(mean_K, (variance_K + noise_G).sqrt(), validate_args=False)
            total = log_z.log_prob(targets_K).sum()
            by_mean_D, by_variance_D = torch.autograd.grad(total, (mean_D, variance_D))
            total = total.detach()
        undone = 0 if known else _update_noise(own, residual_K.tolist(), variance_K.tolist(), count)
        undone += _update_weights(beliefs, m, by_mean_D, by_variance_D)
        seen += torch.tensor([float(total), undone, 1], dtype=torch.float64)
    return seen


def _update_weights(beliefs: Beliefs, m: int, by_mean_D: Tensor, by_variance_D: Tensor) -> int:
    mean_D, variance_D = beliefs.mean_MD[m], beliefs.variance_MD[m]
    moved_D = mean_D + variance_D * by_mean_D
    left_D = variance_D - variance_D.square() * (by_mean_D.square() - 2 * by_variance_D)
    good_D = (left_D > 0) & (left_D < math.inf)
    mean_D.copy_(torch.where(good_D, moved_D, mean_D))
    variance_D.copy_(torch.where(good_D, left_D, variance_D))
    return int((~good_D).sum())


def _update_noise(noise_G2: Tensor, residuals: list[float], variances: list[float], count: float) -> int:
    undone = 0
    for k, (residual, variance) in enumerate(zip(residuals, variances, strict=True)):
        gamma = noise_G2[k if len(noise_G2) > 1 else 0]
        shape, rate = gamma.tolist()
        try:
            found = tilted(_counted(shape, count), rate, residual=residual, variance=variance, count=count)
        except (ArithmeticError, ValueError):  # of logarithms and exponentials out of range too
            undone += 1
        else:
            gamma.copy_(torch.tensor(found, dtype=torch.float64))
    return undone


def _refresh(beliefs: Beliefs, sites_4D: Tensor, factor_2: Tensor, m: int, *, loc_D: Tensor, scale_D: Tensor) -> None:
    """Do what the kernel does for one member."""
    mean_D, variance_D = (part[m] for part in beliefs)
    whole, numbers = factor_2.tolist(), torch.stack([mean_D, variance_D, loc_D, scale_D, *sites_4D], 1).tolist()
    for d, (mean, variance, loc, scale, precision, shift, shape, rate) in enumerate(numbers):
        own = scale * scale / variance
        left, pull = own - precision, own * ((mean - loc) / scale) - shift
        cavity = whole[0] - shape, whole[1] - rate
        if not (left > _INFORMED and cavity[0] > 1 and cavity[1] > 0):
            continue
        v, u = 1 / left, pull / left
        try:
            found = tilted(*cavity, residual=u, variance=v)
        except (ArithmeticError, ValueError):
            continue
        total = v + cavity[1] / (cavity[0] - 1)
        now, spread = u - v * u / total, v - v * v / total
        new = (1 / spread - left, now / spread - pull, found[0] - cavity[0], found[1] - cavity[1])
        sites_4D[:, d] = torch.tensor(new, dtype=torch.float64)
        mean_D[d], variance_D[d] = loc + scale * now, scale * scale * spread
        whole = list(found)
    factor_2.copy_(torch.tensor(whole, dtype=torch.float64))


@cache
def _library() -> ctypes.CDLL | None:
    """Return the compiled kernel, or None where there is none; tried once, as a compiler may fail slowly."""
    try:
        library = load("propagation")
    except UnavailableError:
        return None
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    library.propagate.argtypes = [*[pointer] * 7, *[integer] * 6, pointer, integer]
    library.refresh.argtypes = [*[pointer] * 6, *[integer] * 3]
    library.propagate.restype = library.refresh.restype = None
    return library
