r"""Entropies of class probabilities, in nats, split into the part that more data could remove and the rest.

With draws of the weights, total = aleatoric + epistemic:
$H[\bar p] = \frac1S \sum_s H[p_s] + I(y; w)$ (Depeweg et al., 2018; Houlsby et al., 2011).
"""

import torch
from torch import Tensor

from torchbayes.metrics._checks import check_probs

_NEAR, _TERMS = 1e-3, 5  # below |r| = 0.001 the series to the fifth power is exact to 1e-13
_TINY, _EPS = torch.finfo(torch.float64).tiny, torch.finfo(torch.float64).eps
_AT_ONCE = 2**16  # numbers in double precision that fit in a processor's cache with intermediate results


def entropy(probs: Tensor) -> Tensor:
    r"""Return the entropy over the last axis, $H[p] = -\sum_k p_k \log p_k$ with $0 \log 0 = 0$, in nats, (...).

    Args:
        probs: Class probabilities, shape (..., K).

    Raises:
        TypeError: If the dtype is not float32 or float64.
        ValueError: If the input is empty or not a distribution over its last axis.
    """
    check_probs("probs", probs)
    return _entropy(probs).to(probs.dtype)


def expected_entropy(probs_SBK: Tensor) -> Tensor:
    r"""Return the mean entropy of the draws, $\frac1S \sum_s H[p_s]$, the aleatoric part, in [0, log K] nats, (B,).

    Args:
        probs_SBK: Class probabilities of each draw.

    Raises:
        TypeError: If the dtype is not float32 or float64.
        ValueError: If the input has another number of axes, is empty or not a distribution over its last axis.
    """
    check_probs("probs_SBK", probs_SBK, 3)
    return _entropy(probs_SBK).mean(0).to(probs_SBK.dtype)


def mutual_information(probs_SBK: Tensor) -> Tensor:
    r"""Return the mutual information of target and weights, the epistemic part of the entropy, in nats, (B,).

    It is $H[\frac1S \sum_s p_s] - \frac1S \sum_s H[p_s]$, in [0, min(log K, log S)]. The two terms nearly cancel
    where draws agree, so it is computed as `divergence`.

    Args:
        probs_SBK: Class probabilities of each draw.

    Raises:
        TypeError: If the dtype is not float32 or float64.
        ValueError: If the input has another number of axes, is empty or not a distribution over its last axis.
    """
    check_probs("probs_SBK", probs_SBK, 3)
    parts = probs_SBK.split(rows_at_once(probs_SBK), dim=1)
    return torch.cat([divergence(chunk.double()) for chunk in parts]).to(probs_SBK.dtype)


def rows_at_once(values_SBK: Tensor) -> int:
    """Return how many rows to pass to `divergence` at once: those that fit in a processor's cache, at least one."""
    return max(1, _AT_ONCE // values_SBK[:, 0].numel())


def entropies(probs: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return total and expected entropy and mutual information, (...), in nats, of probabilities (S, ..., K).

    `weights` (S, ...) of the draws sum to 1; they are equal if None.
    """
    return _entropy(average(probs, weights)), average(_entropy(probs), weights), divergence(probs, weights)


def average(values: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean over S, (...), with weights (S, ...) that sum to 1 and may lack last axes; equal ones if None."""
    if weights is None:
        return values.mean(0)
    return (values * weights.reshape(*weights.shape, *[1] * (values.ndim - weights.ndim))).sum(0)


def divergence(probs: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Return the mean divergence of S distributions from their mean, in nats, at least 0, (...).

    It is $\frac1S \sum_s \mathrm{KL}(p_s \| \bar p)$ of float64 probabilities (S, ..., K), computed as $\frac1S
    \sum_{sk} \bar p_k\, \varphi(p_{sk} / \bar p_k - 1)$ with $\varphi(r) = (1 + r) \log(1 + r) - r \ge 0$, whose
    terms do not cancel, however close the distributions are. `weights` (S, ...) take the place of 1/S.
    """
    mean = average(probs, weights)
    apart = (probs - mean).div_(mean.clamp_min(_TINY))
    convex = apart.clamp_min(_EPS - 1).log1p_().mul_(1 + apart).sub_(apart)  # 0 log 0 = 0
    small = apart.abs() < _NEAR
    if small.any():
        r = apart[small]
        series = torch.zeros_like(r)
        for power in range(_TERMS, 1, -1):  # Σ (−1)ⁿ rⁿ / (n (n − 1)), from the last term
            series.mul_(r).add_((-1) ** power / (power * (power - 1)))
        convex[small] = series.mul_(r).mul_(r)
    return average(convex.mul_(mean).sum(-1), weights)


def _entropy(probs: Tensor) -> Tensor:
    return torch.special.entr(probs).sum(-1, dtype=torch.float64)
