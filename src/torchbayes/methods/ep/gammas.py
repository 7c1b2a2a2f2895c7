"""A Gamma over the precision γ of noise, and the normal over log s, s = γ^{−½}, that a flat vector of weights holds.

Under γ ~ Gamma(α, rate β), log s = −½ log γ has the mean −½ (ψ(α) − log β) and the variance ¼ ψ′(α).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchbayes.checks import seen
from torchbayes.model.likelihoods import Gaussian
from torchbayes.model.model import Model
from torchbayes.model.priors.joint import Joint
from torchbayes.model.priors.noise import LogInverseChi
from torchbayes.model.priors.univariate import Normal

_STEPS = 50  # most steps of Newton's method, which needs about six


def as_log_scales(gammas: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of log s for shapes and rates (..., 2), each (...)."""
    shape, rate = gammas.unbind(-1)
    return -0.5 * (torch.special.digamma(shape) - rate.log()), 0.25 * torch.special.polygamma(1, shape)


def of_log_scales(mean: Tensor, variance: Tensor) -> Tensor:
    """Return shapes and rates, float64 (..., 2), for which log s has this mean and variance."""
    trigamma = 4 * variance.double()
    shape = 0.5 + 1 / trigamma  # below the solution, from which Newton's method on 1/ψ′ climbs
    for _ in range(_STEPS):
        value, slope = torch.special.polygamma(1, shape), torch.special.polygamma(2, shape)
        shape = shape + value * (1 - value / trigamma) / slope
    return torch.stack([shape, (torch.special.digamma(shape) + 2 * mean.double()).exp()], -1)


def noise_before(model: Model, likelihood: Gaussian, shape: float) -> Tensor:
    """Return the belief about each learned noise before the data, shapes and rates (G, 2), float64.

    It is that of the likelihood's own prior or of a joint one. Without a prior it is `shape`, worth 2 `shape`
    residuals of the size of the targets' spread. Raises ValueError if the prior is of another kind, or so wide that
    the noise has no variance.
    """
    start = model.network.layout.size
    prior = next(s.prior for s in model.prior.segments if s.where.stop > start)
    if likelihood.prior is None and not isinstance(prior, Joint):
        spread = torch.tensor(likelihood.spread or 1.0, dtype=torch.float64).expand(likelihood.outputs)
        return torch.stack([torch.full_like(spread, shape), shape * spread.square()], -1)
    if isinstance(prior, LogInverseChi):
        scale = torch.tensor(prior.scales, dtype=torch.float64).expand(likelihood.outputs)
        gammas = torch.stack([torch.full_like(scale, prior.df / 2), prior.df / 2 * scale.square()], -1)
    elif isinstance(prior, Normal | Joint):
        gammas = of_log_scales(model.prior.locs()[start:], model.prior.stds()[start:].square())
    else:
        raise ValueError(
            f"the prior of the log noise scale must be normal, or priors.LogInverseChi; got {seen(prior)}. Leave it "
            f"out, or choose one of these."
        )
    least = float(gammas[..., 0].min())
    if not least > 1 or not math.isfinite(float(gammas.sum())):
        raise ValueError(
            f"the prior of the log noise scale is worth {2 * least:.3g} residuals; PBP needs more than 2, as else the "
            f"noise has no mean square. Give LogInverseChi a larger `df`, a normal prior a smaller scale, or none."
        )
    return gammas
