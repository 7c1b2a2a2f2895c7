"""E log p(y | f) under normal outputs f ~ N(m, v), independent or not: exact for normal noise, else a lower bound.

    Gaussian      log N(y; m, s²) − ½ Σ_k v_k / s_k²                                              exact
    Categorical   m_y − E LSE(f),    E LSE(f) ≤ LSE_k(m_k + ½ v_k)                                Jensen
                                     E LSE(f) ≤ ½ Σ_k a_k² v_k + LSE_k(m_k + ½ (1 − 2 a_k) v_k)   Knowles and Minka
    Bernoulli     y m − E log(1 + e^f), the same with the two classes (f, 0)

LSE is the log of a sum of exponentials. The second bound (Knowles and Minka 2011) holds for every a. It is Jensen's at
a = 0, and convex in a. Its minimum has a = softmax(m + ½ (1 − 2a) v), and is approached by steps that never raise the
bound. Jensen's bound takes the mean of e^f, since E e^f = e^{m + v/2} whatever the correlations of the outputs. Both
are used by Harrison, Willes and Snoek (2024).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from torchbayes.checks import holds
from torchbayes.model.likelihoods.binary import Bernoulli
from torchbayes.model.likelihoods.categorical import Categorical
from torchbayes.model.likelihoods.gaussian import Gaussian
from torchbayes.model.likelihoods.protocol import Likelihood, Parameters, counted
from torchbayes.model.likelihoods.shapes import like
from torchbayes.model.likelihoods.weighted import unweighted

Bound = Literal["jensen", "knowles_minka"]
_STEPS, _SIZES = 6, (1.0, 0.3, 0.1)


def check_expected(likelihood: Likelihood) -> None:
    """Raise ValueError if the expectation under normal outputs is not known and has no bound."""
    plain = unweighted(likelihood)
    if not isinstance(plain, Gaussian | Categorical | Bernoulli) or not holds(plain, "curvature_root"):
        raise ValueError(
            f"the mean of log p(y | f) under normal outputs has a closed form or a bound for Gaussian, Categorical "
            f"and Bernoulli likelihoods; got {plain!r}. Use one of these, or VI, which takes draws."
        )


def expected_log_prob(
    likelihood: Likelihood,
    mean: Tensor,
    variance: Tensor,
    *,
    targets: Any,
    parameters: Parameters,
    bound: Bound = "jensen",
) -> Tensor:
    """Return E log p(y_b | f) of each row under f ~ N(m, v), or a lower bound of it, (B,), in nats.

    Means and marginal variances are (B, ..., K). `check_expected` accepts the likelihood.
    """
    plain_targets = counted(likelihood, mean, targets)
    plain, values = plain_targets.likelihood, plain_targets.targets
    if isinstance(plain, Gaussian):
        excess = (variance / plain.noise(mean, parameters).square()).flatten(1).sum(-1)
        values_per_place = plain.log_prob(mean, values, parameters) - 0.5 * excess
    elif isinstance(plain, Bernoulli):
        values = like(values, mean.shape[-1]).to(mean.dtype)
        moments = [torch.stack([moment, torch.zeros_like(moment)], dim=-1) for moment in (mean, variance)]
        values_per_place = (values * mean - expected_lse(moments[0], moments[1], bound=bound)).flatten(1).sum(-1)
    else:
        if values.is_floating_point():
            scores = torch.where(values == 0, 0.0, values * mean).sum(-1)  # a masked class has the mean −∞
        else:
            scores = mean.gather(-1, values.unsqueeze(-1)).squeeze(-1)
        values_per_place = scores - expected_lse(mean, variance, bound=bound)
    return _summed(values_per_place, plain_targets.weights)


def expected_lse(mean: Tensor, variance: Tensor, *, bound: Bound = "jensen") -> Tensor:
    """Return an upper bound of E log Σ_k e^{f_k} under f ~ N(m, v), (...), in nats.

    Means and marginal variances are (..., K).
    """
    if bound == "jensen":
        return torch.logsumexp(mean + 0.5 * variance, dim=-1)
    with torch.no_grad():  # at the best a its derivative is 0, and any a gives a bound
        a = _best(mean, variance)
    return _at(a, mean, variance)


def _at(a: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Return the bound of Knowles and Minka."""
    return 0.5 * (a.square() * variance).sum(-1) + torch.logsumexp(mean + (0.5 - a) * variance, dim=-1)


def _best(mean: Tensor, variance: Tensor) -> Tensor:
    """Return a where the bound is lowest, or nearly: by steps of Newton's method, shorter where these raise it.

    With p = softmax(m + ½ (1 − 2a) v) a step solves (I + (diag p − p pᵀ) diag v) d = p − a, a diagonal plus rank one.
    """
    a, likely = torch.zeros_like(mean), mean.softmax(-1)
    for begin in (likely, (0.5 * likely * variance).clamp_max(0.5)):  # the second is for large variances
        a = _lower(a, begin, mean, variance)
    for _ in range(_STEPS):
        p = (mean + (0.5 - a) * variance).softmax(-1)
        inverse = 1 / (1 + p * variance)
        along = (p * variance * inverse * (p - a)).sum(-1, keepdim=True) / (p * inverse).sum(-1, keepdim=True)
        step = inverse * (p - a + p * along)
        for size in _SIZES:
            a = _lower(a, a + size * step, mean, variance)
    return a


def _lower(a: Tensor, other: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Return, at each place, the one of two a with the lower bound."""
    lower = _at(other, mean, variance) < _at(a, mean, variance)
    return torch.where(lower.unsqueeze(-1), other, a)


def _summed(each: Tensor, weights: Tensor | None) -> Tensor:
    """Return Σ c over the places of each row; places of weight 0 do not count, whatever their value."""
    if weights is not None:
        weights = weights.to(each.dtype).view(*weights.shape, *[1] * (each.ndim - weights.ndim))
        each = torch.where(weights == 0, 0.0, weights * each)
    return each.flatten(1).sum(-1) if each.ndim > 1 else each
