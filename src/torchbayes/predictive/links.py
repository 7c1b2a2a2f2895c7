"""Links from Gaussian outputs to targets: closed forms of the average of a softmax or sigmoid, and their choice."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from torchbayes.checks import check_choice, holds
from torchbayes.model.likelihoods import Bernoulli, Categorical, Likelihood, Probit
from torchbayes.model.likelihoods import Gaussian as GaussianLikelihood
from torchbayes.model.likelihoods.weighted import unweighted

Link = Literal["auto", "gaussian", "normal_cdf", "probit", "pairwise", "bridge", "samples"]
_KINDS: dict[str, tuple[type[Any], ...]] = {
    "gaussian": (GaussianLikelihood,),
    "normal_cdf": (Probit,),
    "probit": (Categorical, Bernoulli),
    "pairwise": (Categorical,),
    "bridge": (Categorical,),
}
MANY = 100  # outputs; beyond, K² covariances per row are computed only on request


def normal_cdf(mean: Tensor, variance: Tensor) -> Tensor:
    """Return f / √(1 + V), at which Φ is the average of Φ(f), elementwise; exact."""
    return mean / (1 + variance).sqrt()


def probit(mean: Tensor, variance: Tensor) -> Tensor:
    """Return logits f / √(1 + π V / 8) of the averaged probabilities, elementwise (MacKay 1992)."""
    return mean / (1 + math.pi / 8 * variance).sqrt()


def centre(outputs: Tensor) -> Tensor:
    """Return weights of the mean of the outputs, (..., K): equal, but 0 for a class whose probability underflows."""
    behind = outputs - outputs.amax(-1, keepdim=True)
    used = behind > math.log(torch.finfo(outputs.dtype).tiny)
    return used.to(outputs.dtype) / used.sum(-1, keepdim=True)


def class_probit(mean: Tensor, apart: Tensor) -> Tensor:
    """Return logits (f_k − f̄) / √(1 + π V_k / 8), (..., K), V_k the variance of f_k less the mean of the others.

    The softmax ignores what all outputs share, and so do these. For two classes they are the probit of the
    difference. `apart` is Var[f_k − f̄], (..., K), f̄ the mean under the weights of `centre`: a class whose
    probability underflows, such as a masked one, does not count.
    """
    used = centre(mean) > 0
    classes = used.sum(-1, keepdim=True).to(mean.dtype)
    average = torch.where(used, mean, 0.0).sum(-1, keepdim=True) / classes
    # f_k less the mean of the other n − 1 outputs is n / (n − 1) times f_k less the mean of all outputs.
    factor = torch.where(used, classes / (classes - 1).clamp_min(1), 1.0)
    return probit(mean - average, factor.square() * apart)


def pairwise_probit(mean: Tensor, covariance: Tensor) -> Tensor:
    """Return logits log p_k, p_k ∝ 1 / Σ_j exp(−(f_k − f_j) / √(1 + π Var[f_k − f_j] / 8)) (Lu et al. 2020).

    They are normalised, (..., K). A masked class has mean −∞, and gets probability 0.
    """
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    apart = (variance.unsqueeze(-1) + variance.unsqueeze(-2)).sub(covariance, alpha=2).clamp_min(0)
    row, column = mean.unsqueeze(-1), mean.unsqueeze(-2)
    difference = torch.where(row == column, 0.0, column - row)  # two masked classes are equal too
    difference = difference * mean.new_ones(()).add(apart, alpha=math.pi / 8).rsqrt()
    return (-torch.logsumexp(difference, dim=-1)).log_softmax(-1)


def laplace_bridge(mean: Tensor, covariance: Tensor) -> Tensor:
    """Return normalised logits, (..., K), of the mean of the Laplace bridge's Dirichlet (Hobbhahn et al. 2022).

    The bridge is between the Dirichlet and Gaussians on the plane Σ_k f_k = 0. The softmax ignores what all outputs
    share, so the Gaussian is projected onto the plane: f − Σ_k f_k / K has the same softmax. Its authors instead
    condition the Gaussian on the plane, which is the same only where the sum is independent of the projection. A
    class whose probability underflows, such as a masked one, is left out; its log probability is that of the probit
    of its difference from the likeliest class.
    """
    limits, marginal = torch.finfo(mean.dtype), covariance.diagonal(dim1=-2, dim2=-1)
    behind, top = _behind(mean, covariance)
    used = behind > math.log(limits.tiny)
    classes = used.sum(-1, keepdim=True).to(mean.dtype)
    mean = torch.where(used, mean, 0.0)
    mean = torch.where(used, mean - mean.sum(-1, keepdim=True) / classes, -torch.inf)
    shared = torch.where(used.unsqueeze(-2), covariance, 0.0).sum(-1) / classes
    total = torch.where(used, shared, 0.0).sum(-1, keepdim=True) / classes
    # Where all of the variance is shared, the difference is rounding.
    variance = torch.maximum(marginal - 2 * shared + total, limits.eps * marginal).clamp_min(limits.tiny)
    # In logarithms, because e^f may overflow.
    spread = mean + torch.logsumexp(torch.where(used, -mean, -torch.inf), dim=-1, keepdim=True) - 2 * classes.log()
    constant = (1 - 2 / classes).clamp_min(0).log().expand_as(mean)
    log_alpha = torch.logaddexp(constant, spread) - variance.log()
    return torch.where(used, log_alpha, log_alpha.gather(-1, top) + behind).log_softmax(-1)


def _behind(mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probit of the difference of every class from the likeliest class, and its index, (..., 1)."""
    top = mean.argmax(-1, keepdim=True)
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    shared = covariance.gather(-1, top.unsqueeze(-2).expand(*variance.shape, 1)).squeeze(-1)
    apart = (variance + variance.gather(-1, top) - 2 * shared).clamp_min(0)
    return probit(mean - mean.gather(-1, top), apart), top


CLOSED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "normal_cdf": normal_cdf,
    "probit": probit,
    "class_probit": class_probit,
    "pairwise": pairwise_probit,
    "bridge": laplace_bridge,
}
"""Closed forms of class probabilities: mean and covariance, or variance for those of `MARGINAL` -> outputs."""

CENTRED = "class_probit"
"""The link that takes variances of the outputs less their mean: "probit" over several classes."""

MARGINAL = frozenset({"gaussian", "normal_cdf", "probit", CENTRED})
"""Links that take variances alone."""

EXACT = frozenset({"gaussian", "normal_cdf"})
"""Links without an approximation."""


def centre_of(link: str) -> Callable[[Tensor], Tensor] | None:
    """Return the weights of the mean that a link subtracts from the outputs; None for a link that does not."""
    return centre if link == CENTRED else None


def link_of(link: str, likelihood: Likelihood, *, outputs: int = 1) -> str:
    """Return the link in use: the requested one, or what "auto" stands for; `CENTRED` for "probit" of classes.

    A ValueError if it is unknown, or does not suit the likelihood.
    """
    check_choice(get_args(Link), link=link)
    if link == "auto":
        few = ("pairwise",) if outputs <= MANY else ()
        usual = ("gaussian", "normal_cdf", *few, "probit")
        link = next((n for n in usual if _goes_with(n, likelihood)), "samples")
    if link in _KINDS and not _goes_with(link, likelihood):
        names, seen = " or ".join(kind.__name__ for kind in _KINDS[link]), type(unweighted(likelihood)).__name__
        raise ValueError(f"link {link!r} needs a {names} likelihood; got {seen}. Use link='samples'.")
    return CENTRED if link == "probit" and not isinstance(unweighted(likelihood), Bernoulli) else link


def _goes_with(link: str, likelihood: Likelihood) -> bool:
    """Return whether a closed form suits a likelihood: its distribution, or its density for exact links."""
    plain = unweighted(likelihood)
    if not any(isinstance(plain, kind) and type(plain).distribution is kind.distribution for kind in _KINDS[link]):
        return False
    return link not in EXACT or holds(plain, "curvature_root")
