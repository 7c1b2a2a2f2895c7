"""Consequences of acting on class probabilities: which classes are confused, and what referral gains.

Referral (selective prediction; Geifman and El-Yaniv, 2017): the rows of which the model is least sure are handed to
somebody else, and accuracy is that on the rows that are kept.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.metrics._checks import check_float, check_probs, check_same_shape, check_targets, check_weights


class RiskCoverage(NamedTuple):
    """Mean loss of what is kept, from the most confident rows to all rows.

    Attributes:
        coverage: share of the rows that are kept, increasing to 1, (P,), float64.
        risk: mean loss among them, (P,), float64.
    """

    coverage: Tensor
    risk: Tensor

    @property
    def aurc(self) -> Tensor:
        r"""Area under the curve, $\sum_p (c_p - c_{p-1})\, r_p$ with coverage c and risk r: 0-d float64.

        Without ties this is the mean of the risks at the coverages 1/B, 2/B, ..., 1 (Geifman et al., 2019). Rows of
        equal uncertainty enter together, at the risk with all of them, so a score that is equal for all rows has
        the mean loss as its area.
        """
        return (self.coverage.diff(prepend=torch.zeros_like(self.coverage[:1])) * self.risk).sum()


class Selection(NamedTuple):
    """Accuracy of what is kept, from the most confident rows to all rows.

    Attributes:
        kept: share of the rows that are kept, increasing to 1, (P,), float64.
        accuracy: share of right predictions among them, (P,), float64.
    """

    kept: Tensor
    accuracy: Tensor


def selective_accuracy(correct_B: Tensor, uncertainty_B: Tensor, *, weights_B: Tensor | None = None) -> Selection:
    r"""Return the accuracy on the rows whose uncertainty is at most u, and their share, for every u that occurs.

    $\mathrm{acc}(u) = \sum_b [u_b \le u]\, c_b / \sum_b [u_b \le u]$. Rows of equal uncertainty are kept or
    referred together, so the order of the rows changes nothing.

    Args:
        correct_B: 1 where the prediction is right and 0 where it is wrong, or shares between.
        uncertainty_B: How unsure the model is of each row, such as its predictive entropy.
        weights_B: How often each row counts, at least 0; once if None.

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
    return Selection(*_means_of_kept(correct_B, uncertainty_B, weights_B))


def risk_coverage(loss_B: Tensor, uncertainty_B: Tensor, *, weights_B: Tensor | None = None) -> RiskCoverage:
    r"""Return the mean loss on the rows whose uncertainty is at most u, and their share, for every u that occurs.

    $\mathrm{risk}(u) = \sum_b [u_b \le u]\, l_b / \sum_b [u_b \le u]$ (Geifman and El-Yaniv, 2017). Rows of equal
    uncertainty are kept or referred together, so the order of the rows changes nothing. With loss 0 for right and 1
    for wrong predictions, risk is one minus `selective_accuracy`; for a regression the loss may be the squared
    error, and the uncertainty the predictive standard deviation.

    Args:
        loss_B: What each prediction costs.
        uncertainty_B: How unsure the model is of each row, such as one minus its confidence.
        weights_B: How often each row counts, at least 0; once if None.

    Raises:
        TypeError: If a dtype is wrong.
        ValueError: If shapes differ, or values are missing or not finite.
    """
    check_float("loss_B", loss_B, 1)
    check_float("uncertainty_B", uncertainty_B, 1)
    check_same_shape("loss_B", loss_B, "uncertainty_B", uncertainty_B)
    return RiskCoverage(*_means_of_kept(loss_B, uncertainty_B, weights_B))


def _means_of_kept(values_B: Tensor, uncertainty_B: Tensor, weights_B: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the share of rows up to each uncertainty that occurs, and the mean value of these rows."""
    weights_B = torch.ones_like(values_B) if weights_B is None else check_weights(weights_B, values_B)
    counted_B = weights_B > 0
    levels, order_B = uncertainty_B[counted_B].sort()
    weights_B, values_B = weights_B.double()[counted_B][order_B], values_B.double()[counted_B][order_B]
    _, sizes = torch.unique_consecutive(levels, return_counts=True)
    last = sizes.cumsum(0) - 1
    total, sums = weights_B.cumsum(0)[last], (weights_B * values_B).cumsum(0)[last]
    return total / total[-1], sums / total


def confusion(probs_BK: Tensor, targets_B: Tensor, *, weights_B: Tensor | None = None) -> Tensor:
    """Return counts of rows by true class (first axis) and by most probable class, (K, K), float64.

    Of tied classes the first counts.

    Args:
        probs_BK: Class probabilities.
        targets_B: Integer classes in 0..K-1.
        weights_B: How often each row counts, at least 0; once if None.

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
