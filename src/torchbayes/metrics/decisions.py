r"""What class probabilities lead to when somebody acts on them: which classes are confused, and what referral gains.

Referral (selective prediction; Geifman and El-Yaniv, 2017): the rows that the model is least sure about are handed to
somebody else, and accuracy is that on the rows that are kept.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.metrics._checks import check_float, check_probs, check_same_shape, check_targets, check_weights


class Selection(NamedTuple):
    """Accuracy of what is kept, from the surest rows to all rows.

    Attributes:
        kept: Share of the rows that are kept, increasing to 1, shape (P,), float64.
        accuracy: Share of right predictions among them, shape (P,), float64.
    """

    kept: Tensor
    accuracy: Tensor


def selective_accuracy(correct_B: Tensor, uncertainty_B: Tensor, *, weights_B: Tensor | None = None) -> Selection:
    r"""Accuracy on the rows whose uncertainty is at most u, for every u that occurs.

    $\mathrm{acc}(u) = \sum_b [u_b \le u]\, c_b / \sum_b [u_b \le u]$. Rows of equal uncertainty are kept or referred
    together, so that the order of the rows changes nothing.

    Args:
        correct_B: 1 where the prediction is right and 0 where it is wrong, or shares between, shape (B,).
        uncertainty_B: How unsure the model is of each row, such as its predictive entropy, shape (B,).
        weights_B: How often each row counts, shape (B,), at least 0; once if None.

    Returns:
        Shares of rows and accuracies, one point for each value of the uncertainty.

    Raises:
        TypeError: If a dtype is wrong.
        ValueError: If shapes differ, values are missing or not finite, or ``correct_B`` is outside [0, 1].
    """
    check_float("correct_B", correct_B, 1)
    check_float("uncertainty_B", uncertainty_B, 1)
    check_same_shape("correct_B", correct_B, "uncertainty_B", uncertainty_B)
    lowest, highest = torch.stack(torch.aminmax(correct_B)).tolist()
    if lowest < 0 or highest > 1:
        raise ValueError(f"`correct_B` must lie in [0, 1]; got {lowest:.4g} to {highest:.4g}.")
    weights_B = torch.ones_like(correct_B) if weights_B is None else check_weights(weights_B, correct_B)
    counted_B = weights_B > 0
    values, order_B = uncertainty_B[counted_B].sort()
    weights_B, correct_B = weights_B.double()[counted_B][order_B], correct_B.double()[counted_B][order_B]
    _, sizes = torch.unique_consecutive(values, return_counts=True)
    last = sizes.cumsum(0) - 1
    total, right = weights_B.cumsum(0)[last], (weights_B * correct_B).cumsum(0)[last]
    return Selection(total / total[-1], right / total)


def confusion(probs_BK: Tensor, targets_B: Tensor, *, weights_B: Tensor | None = None) -> Tensor:
    """Count rows by their true class and by the most probable one; of tied classes the first counts.

    Args:
        probs_BK: Class probabilities, shape (B, K).
        targets_B: Integer classes in 0..K-1, shape (B,).
        weights_B: How often each row counts, shape (B,), at least 0; once if None.

    Returns:
        Counts, shape (K, K), float64: the first axis is the true class, the second the predicted one.

    Raises:
        TypeError: If a dtype is wrong.
        ValueError: If shapes, classes or probabilities are wrong.
    """
    check_probs("probs_BK", probs_BK, 2)
    targets_B, classes = check_targets(targets_B, probs_BK), probs_BK.shape[-1]
    predicted_B = probs_BK.argmax(-1)
    weights_B = torch.ones_like(predicted_B) if weights_B is None else check_weights(weights_B, predicted_B)
    counts = torch.zeros(classes * classes, dtype=torch.float64, device=probs_BK.device)
    return counts.index_add_(0, targets_B * classes + predicted_B, weights_B.double()).view(classes, classes)
