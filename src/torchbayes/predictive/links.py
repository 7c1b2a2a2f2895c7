"""Links from Gaussian outputs to targets: closed forms of the average of a softmax or sigmoid, and their choice."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from torchbayes.checks import check_choice
from torchbayes.model.likelihoods import Bernoulli, Categorical, Likelihood, Probit
from torchbayes.model.likelihoods import Gaussian as GaussianLikelihood
from torchbayes.model.likelihoods.protocol import own
from torchbayes.model.likelihoods.weighted import unweighted

Link = Literal["auto", "gaussian", "normal_cdf", "probit", "pairwise", "bridge", "samples"]
_KINDS: dict[str, tuple[type[Any], ...]] = {
    "gaussian": (GaussianLikelihood,),
    "normal_cdf": (Probit,),
    "probit": (Categorical, Bernoulli),
    "pairwise": (Categorical,),
    "bridge": (Categorical,),
}
_MANY = 100  # outputs, beyond which K² covariances per row are computed only on request


def normal_cdf(mean: Tensor, variance: Tensor) -> Tensor:
    """Return f / √(1 + V), at which Φ is the average of Φ(f), elementwise; exact."""
    return mean / (1 + variance).sqrt()


def probit(mean: Tensor, variance: Tensor) -> Tensor:
    """Return logits f / √(1 + π V / 8) of the averaged probabilities, elementwise (MacKay 1992)."""
    return mean / (1 + math.pi / 8 * variance).sqrt()


def pairwise_probit(mean: Tensor, covariance: Tensor) -> Tensor:
    """Return logits log p_k, p_k ∝ 1 / Σ_j exp(−(f_k − f_j) / √(1 + π Var[f_k − f_j] / 8)) (Lu et al. 2020).

    Args:
        mean: (..., K).
        covariance: (..., K, K).

    Returns:
        Tensor (..., K), normalised.
    """
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    apart = (variance.unsqueeze(-1) + variance.unsqueeze(-2)).sub(covariance, alpha=2).clamp_min(0)
    less = (mean.unsqueeze(-2) - mean.unsqueeze(-1)) * mean.new_ones(()).add(apart, alpha=math.pi / 8).rsqrt()
    return (-torch.logsumexp(less, dim=-1)).log_softmax(-1)


def laplace_bridge(mean: Tensor, covariance: Tensor) -> Tensor:
    """Return logits of the mean of the Dirichlet that the Laplace bridge gives (Hobbhahn et al. 2022).

    The bridge is between the Dirichlet and Gaussians on the plane Σ_k f_k = 0, so the Gaussian is conditioned on that
    first, as its authors do.

    Args:
        mean: (..., K).
        covariance: (..., K, K).

    Returns:
        Tensor (..., K), normalised.
    """
    classes, along = mean.shape[-1], covariance.sum(-1)
    tiny = torch.finfo(mean.dtype).tiny
    marginal, total = covariance.diagonal(dim1=-2, dim2=-1), along.sum(-1, keepdim=True)
    # where the Gaussian is on the plane already, the rest of the sum is rounding
    rounding = 8 * classes**2 * torch.finfo(mean.dtype).eps * marginal.sum(-1, keepdim=True)
    along, total = torch.where(total > rounding, along, 0.0), total.clamp_min(tiny)
    mean = mean - along * mean.sum(-1, keepdim=True) / total
    variance = torch.maximum(marginal - along.square() / total, torch.finfo(mean.dtype).eps * marginal).clamp_min(tiny)
    # in logarithms, as e^f may overflow
    spread = mean + torch.logsumexp(-mean, dim=-1, keepdim=True) - 2 * math.log(classes)
    constant = mean.new_tensor(1 - 2 / classes).log().expand_as(mean)
    return (torch.logaddexp(constant, spread) - variance.log()).log_softmax(-1)


CLOSED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "normal_cdf": normal_cdf,
    "probit": probit,
    "pairwise": pairwise_probit,
    "bridge": laplace_bridge,
}
"""Closed forms of class probabilities: mean and covariance, or variance for those of `MARGINAL` -> outputs."""

MARGINAL = frozenset({"gaussian", "normal_cdf", "probit"})
"""Links that take variances alone."""

EXACT = frozenset({"gaussian", "normal_cdf"})
"""Links without an approximation."""


def link_of(link: str, likelihood: Likelihood, *, outputs: int = 1) -> str:
    """Return the link in use: the requested one, or the one that "auto" stands for.

    Args:
        link: as for `Linearised`.
        likelihood: p(y | f).
        outputs: K.

    Raises:
        ValueError: if it is unknown, or does not suit the likelihood.
    """
    check_choice(get_args(Link), link=link)
    if link == "auto":
        few = ("pairwise",) if outputs <= _MANY else ()
        usual = ("gaussian", "normal_cdf", *few, "probit")
        return next((n for n in usual if _goes_with(n, likelihood)), "samples")
    if link in _KINDS and not _goes_with(link, likelihood):
        names, seen = " or ".join(kind.__name__ for kind in _KINDS[link]), type(unweighted(likelihood)).__name__
        raise ValueError(f"link {link!r} needs a {names} likelihood; got {seen}. Use link='samples'.")
    return link


def _goes_with(link: str, likelihood: Likelihood) -> bool:
    """Return whether a closed form suits a likelihood: its distribution, or its density for exact ones."""
    plain = unweighted(likelihood)
    if not any(isinstance(plain, kind) and type(plain).distribution is kind.distribution for kind in _KINDS[link]):
        return False
    return link not in EXACT or own(plain, "curvature_root")
