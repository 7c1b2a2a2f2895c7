r"""E log p(w) of priors under normal weights w ~ N(μ, v), with its derivatives by μ and v, where it has a closed form.

    N(m, s²)         −½ ((μ − m)² + v)/s² − log s√2π
    Laplace(m, b)    −A/b − log 2b,    A = √(2v/π) e^{−d²/2v} + d erf(d/√2v),    d = μ − m,    the mean of |w − m|
    N(m, Σ), joint   log N(μ; m, Σ) − ½ Σ_i (Σ⁻¹)_ii v_i
    LogHalfNormal    u − ½ e^{2u + 2v} + constant,    u = μ − log scale
    LogInverseChi    −ν (u + ½ e^{−2u + 2v}) − constant,    u = μ − log scale
    LogUniform       −log √v − E log |z + ε|,    z = |μ|/√v
    flat             0

For an independent q the KL divergence to the prior is −Σ E log p(w) less the entropy of q. Of other priors it has no
closed form; what bounds there are can be off by thousands of nats, so their expectation is left to draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torchbayes.model.priors.bound import Segment
from torchbayes.model.priors.joint import Joint
from torchbayes.model.priors.multiplied import LogHalfNormal
from torchbayes.model.priors.noise import LogInverseChi
from torchbayes.model.priors.sparse import LogUniform, expected_log_size
from torchbayes.model.priors.univariate import Flat, Laplace, Normal

_CLOSED = (Normal, Laplace, Flat, Joint, LogInverseChi, LogHalfNormal, LogUniform)
_QUADRATIC = (Normal, Flat, Joint)


def is_closed(segment: Segment, *, normal: bool = True, correlated: bool = False) -> bool:
    """Return whether the expectation has a closed form.

    Args:
        segment: one run of weights.
        normal: whether these are normal; of any others the means and variances are enough where log p is quadratic.
        correlated: whether they are correlated with each other; means and variances are then not enough for a joint
            prior that has correlations too.
    """
    if correlated and isinstance(segment.prior, Joint) and not segment.prior.is_independent:
        return False
    return isinstance(segment.prior, _CLOSED if normal else _QUADRATIC)


def add_expected_(segment: Segment, mean: Tensor, variance: Tensor, *, scale: float, into: Sequence[Tensor]) -> Tensor:
    """Return E log p(w) of one segment, and add `scale` times its derivatives to two tensors.

    Args:
        segment: one with a closed form.
        mean: μ of all weights, (M, D).
        variance: v of all weights, (M, D).
        scale: factor on the derivatives.
        into: receive the derivatives by μ and by v, each (M, D).

    Returns:
        Float64 tensor (M,), in nats.
    """
    prior, where = segment.prior, segment.where
    mean, variance = mean[:, where], variance[:, where]
    by_mean, by_variance = (tensor[:, where] for tensor in into)
    if isinstance(prior, Normal):
        prior.add_gradient_(by_mean, mean, scale)
        by_variance.sub_(0.5 * scale / prior.scale**2)
        return prior.total(mean) - 0.5 / prior.scale**2 * variance.sum(-1, dtype=torch.float64)
    if isinstance(prior, Joint):
        prior.add_gradient_(by_mean, mean, scale)
        precision = prior.precision(mean)
        by_variance.sub_(precision, alpha=0.5 * scale)
        return prior.total(mean) - 0.5 * (variance * precision).sum(-1, dtype=torch.float64)
    if isinstance(prior, Laplace):
        distance, density, share = _folded(mean - prior.loc, variance)
        by_mean.sub_(share, alpha=scale / prior.scale)
        by_variance.sub_(density, alpha=scale / prior.scale)
        return -(distance.sum(-1, dtype=torch.float64) / prior.scale) - mean.shape[-1] * math.log(2 * prior.scale)
    if isinstance(prior, LogInverseChi):
        u = mean - torch.as_tensor(prior.scales, dtype=torch.float64).log().to(mean)
        swollen = torch.exp(2 * (variance - u))
        by_mean.add_(swollen - 1, alpha=scale * prior.df)
        by_variance.sub_(swollen, alpha=scale * prior.df)
        return (-prior.df * (u + 0.5 * swollen) - prior.log_constant).sum(-1, dtype=torch.float64)
    if isinstance(prior, LogHalfNormal):
        u = mean - math.log(prior.scale)
        swollen = torch.exp(2 * (u + variance))
        by_mean.sub_(swollen - 1, alpha=scale)
        by_variance.sub_(swollen, alpha=scale)
        return (u - 0.5 * swollen + 0.5 * math.log(2 / math.pi)).sum(-1, dtype=torch.float64)
    if isinstance(prior, LogUniform):
        scale_MD = variance.sqrt()
        ratio = mean.abs() / scale_MD
        size, slope = expected_log_size(ratio)
        by_mean.sub_(slope / scale_MD * mean.sign(), alpha=scale)
        by_variance.add_((ratio * slope - 1) / variance, alpha=0.5 * scale)
        return -(size + scale_MD.log()).sum(-1, dtype=torch.float64)
    return mean.new_zeros(len(mean), dtype=torch.float64)  # a flat prior


def _folded(centred: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return E|w| of w ~ N(d, v), and its derivatives by v, which is the density at 0, and by d."""
    scale = variance.sqrt()
    ratio = centred / scale
    density = torch.exp(-0.5 * ratio.square()) / (scale * math.sqrt(2 * math.pi))
    share = torch.erf(ratio / math.sqrt(2))
    return 2 * variance * density + centred * share, density, share
