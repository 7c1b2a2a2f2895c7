r"""Entropies of class probabilities, in nats, and their split into what more data could remove and what it could not.

With draws of the weights, total = aleatoric + epistemic:
$H[\bar p] = \frac1S \sum_s H[p_s] + I(y; w)$ (Depeweg et al., 2018; Houlsby et al., 2011).
"""

import torch
from torch import Tensor

from torchbayes.metrics._checks import check_probs


def entropy(probs: Tensor) -> Tensor:
    r"""Entropy over the last axis, $H[p] = -\sum_k p_k \log p_k$ with $0 \log 0 = 0$.

    Args:
        probs: Class probabilities, shape (..., K).

    Returns:
        Entropy in [0, log K] nats, shape (...), in the dtype of the input.

    Raises:
        TypeError: If the dtype is not float32 or float64.
        ValueError: If the input is empty or no distribution over its last axis.
    """
    check_probs("probs", probs)
    return _entropy(probs).to(probs.dtype)


def expected_entropy(probs_SBK: Tensor) -> Tensor:
    r"""Mean entropy of the draws, $\frac1S \sum_s H[p_s]$: the aleatoric part.

    Args:
        probs_SBK: Class probabilities of each draw, shape (S, B, K).

    Returns:
        Mean entropy in [0, log K] nats, shape (B,), in the dtype of the input.

    Raises:
        TypeError: If the dtype is not float32 or float64.
        ValueError: If the input has another number of axes, is empty or no distribution over its last axis.
    """
    check_probs("probs_SBK", probs_SBK, 3)
    return _entropy(probs_SBK).mean(0).to(probs_SBK.dtype)


def mutual_information(probs_SBK: Tensor) -> Tensor:
    r"""Mutual information of target and weights, $I(y; w) = H[\frac1S \sum_s p_s] - \frac1S \sum_s H[p_s]$: epistemic.

    The two terms nearly cancel where draws agree, so sums run in float64 and rounding below zero is cut off.

    Args:
        probs_SBK: Class probabilities of each draw, shape (S, B, K).

    Returns:
        Mutual information in [0, min(log K, log S)] nats, shape (B,), in the dtype of the input.

    Raises:
        TypeError: If the dtype is not float32 or float64.
        ValueError: If the input has another number of axes, is empty or no distribution over its last axis.
    """
    check_probs("probs_SBK", probs_SBK, 3)
    total_B = _entropy(probs_SBK.mean(0, dtype=torch.float64))
    return (total_B - _entropy(probs_SBK).mean(0)).clamp_min(0).to(probs_SBK.dtype)


def _entropy(probs: Tensor) -> Tensor:
    return torch.special.entr(probs).sum(-1, dtype=torch.float64)
