"""Modes of small networks to many digits, and Laplace posteriors at them.

The error of a Laplace estimate includes how far the log joint density at its weights is below that of the mode, and
stochastic gradients stop short of the mode. These networks are small, so modes are found on all the data in float64: by
L-BFGS (Liu and Nocedal 1989), or, in regression with directions of very different curvature, where L-BFGS is slow, by
damped Gauss-Newton steps (Marquardt 1963).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

import torchbayes as tb
from torchbayes.comparison.rounds import laplace_at
from torchbayes.evidence import ModelTarget
from torchbayes_experiments.streams import Purpose, generator

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Mode:
    """Where an ascent of the log joint density ended."""

    weights_D: Tensor  # the weights
    log_joint: float  # log p(D|w) + log p(w) at these weights, in nats


def climb(target: ModelTarget, starts_MD: Tensor, *, steps: int) -> list[Mode]:
    """Climb the log joint density in float64 by L-BFGS from each start, and return the ends, the highest first."""
    one = torch.ones(1, dtype=torch.float64)

    def negative(weights: np.ndarray) -> tuple[float, np.ndarray]:
        value = target.parts(torch.as_tensor(weights).unsqueeze(0)).at(one)
        return -float(value.log_density[0]), -value.gradient[0].numpy()

    options = {"maxiter": steps, "maxfun": 2 * steps, "ftol": 1e-14, "gtol": 1e-6, "maxcor": 30}
    ends = [minimize(negative, s.numpy(), jac=True, method="L-BFGS-B", options=options) for s in starts_MD.double()]
    modes = [Mode(torch.as_tensor(end.x), -float(end.fun)) for end in ends]
    return sorted(modes, key=lambda mode: -mode.log_joint)


def climb_regression(
    model: tb.Model, data: Pair, start_D: Tensor, *, steps: int, tolerance: float
) -> tuple[Mode, float]:
    """Climb the log joint density of a regression with known noise and one normal prior by Levenberg and Marquardt.

        δ = ((1/s² + a) I + JᵀJ/σ²)⁻¹ g,    g the gradient of the log joint density

    The damping a is divided by five after a step that increases the log joint density, and tripled otherwise.
    The model has one output, `Gaussian(σ)` and `Normal(s)`, in float64. The climb stops where the predicted gain of an
    undamped step, ½ gᵀ (I/s² + JᵀJ/σ²)⁻¹ g in nats, is below `tolerance`; that gain is returned beside the end.
    """
    from torch.func import grad, vmap

    (inputs, targets), noise = data, float(model.likelihood.scale)  # type: ignore[attr-defined]
    precision, weights_D = float(model.prior.stds()[0]) ** -2, start_D.clone()
    jacobian = vmap(grad(lambda w, x: model.network(w, x.unsqueeze(0))[0, 0]), (None, 0))

    def loss(at_D: Tensor) -> tuple[Tensor, float]:
        errors_N = (targets - model.network(at_D, inputs))[:, 0] / noise
        return errors_N, 0.5 * float(errors_N.square().sum() + precision * at_D.square().sum())

    (errors_N, now), damping, promise = loss(weights_D), 0.01 * precision, math.inf
    for _ in range(steps):
        jacobian_ND = jacobian(weights_D, inputs) / noise
        gradient_D = jacobian_ND.mT @ errors_N - precision * weights_D
        solve = _damped(jacobian_ND, gradient_D)
        promise = 0.5 * float(gradient_D @ solve(precision))
        if promise < tolerance:
            break
        for _ in range(30):
            tried_D = weights_D + solve(precision + damping)
            tried_N, then = loss(tried_D)
            if then < now:
                weights_D, errors_N, now, damping = tried_D, tried_N, then, damping / 5
                break
            damping = 3 * max(damping, 1e-4 * precision)
    joint = -now - len(inputs) * math.log(noise) + 0.5 * len(weights_D) * math.log(precision)
    return Mode(weights_D, joint - 0.5 * (len(inputs) + len(weights_D)) * math.log(2 * math.pi)), promise


def _damped(jacobian_ND: Tensor, gradient_D: Tensor) -> Callable[[float], Tensor]:
    """Return a -> (a I + JᵀJ)⁻¹ g, in the smaller of the two spaces."""
    rows, size = jacobian_ND.shape
    wide = size > rows
    square = jacobian_ND @ jacobian_ND.mT if wide else jacobian_ND.mT @ jacobian_ND

    def solve(shift: float) -> Tensor:
        factor = torch.linalg.cholesky(square + shift * torch.eye(len(square), dtype=square.dtype))
        right = jacobian_ND @ gradient_D if wide else gradient_D
        solved = torch.cholesky_solve(right.unsqueeze(1), factor)[:, 0]
        return (gradient_D - jacobian_ND.mT @ solved) / shift if wide else solved

    return solve


def laplace(
    model: tb.Model, data: Pair, mode: Mode, *, curvature: Literal["ggn", "hessian"] = "ggn"
) -> tuple[tb.LaplacePosterior, bool]:
    """Return the Laplace posterior at one mode, with a dense precision, and whether it reports to be at a mode."""
    return laplace_at(model, data, tb.Laplace("dense", curvature, prior="model"), start=mode.weights_D.unsqueeze(0))


def log_symmetries(hidden: int) -> float:
    """Return log(2^H H!), for the arrangements of H tanh units that give the same function (MacKay 1992).

    Units can be permuted, and the signs of a unit's incoming and outgoing weights can be flipped together. Under a
    prior that is invariant to both, every arrangement is a mode with the same evidence.
    """
    return hidden * math.log(2) + math.lgamma(hidden + 1)


def rearranged(model: tb.Model, weights_SD: Tensor, *, seed: int) -> Tensor:
    """Return draws of a network with one hidden layer of tanh units, each with its units in a random arrangement.

    Arrangements are drawn uniformly. The posterior is invariant to them, so draws around one mode become draws around
    all modes equivalent to it.
    """
    source = generator(Purpose.ARRANGEMENT, seed)
    first, bias, last, rest = torch.split(weights_SD, list(model.layout.sizes), dim=1)
    units, count = bias.shape[1], len(weights_SD)
    order_SH = torch.rand(count, units, generator=source).argsort(1)
    sign_SH = (torch.randint(2, (count, units), generator=source) * 2 - 1).to(weights_SD)

    def arrange(values_SXH: Tensor) -> Tensor:
        placed = values_SXH.gather(2, order_SH.unsqueeze(1).expand_as(values_SXH))
        return placed * sign_SH.unsqueeze(1)

    first_SHI = arrange(first.unflatten(1, (units, -1)).mT).mT
    last_SKH = arrange(last.unflatten(1, (-1, units)))
    return torch.cat([first_SHI.flatten(1), arrange(bias.unsqueeze(1))[:, 0], last_SKH.flatten(1), rest], 1)
