"""Metrics of many resamples of the same rows at once: the Bayesian bootstrap (Rubin, 1981).

A resample gives every row a weight. What does not depend on the weights, such as bins and orders, is computed once.
The rest is products of a matrix of weights (R, B), all above zero, with columns of values, or cumulative sums along
its rows. Every function returns, (R,) in float64, what the metric of its name gives with the weights of each
resample.
"""

import torch
from torch import Tensor


def resampled_mean(values_B: Tensor, weights_RB: Tensor) -> Tensor:
    """Return the weighted mean of values in each resample, (R,)."""
    return weights_RB @ values_B.double() / weights_RB.sum(-1)


def resampled_ece(confidence_B: Tensor, correct_B: Tensor, weights_RB: Tensor, *, bins: int = 15) -> Tensor:
    """Return the calibration error in bins of equal width of each resample, (R,), as `torchbayes.metrics.ece`.

    `confidence_B` is the largest probability, `correct_B` 1 where it is right, else 0, or a share.
    """
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=confidence_B.device)
    bin_B = torch.bucketize(confidence_B, edges[1:-1].to(confidence_B.dtype))
    gaps = weights_RB.new_zeros(len(bin_B), bins)
    gaps[torch.arange(len(bin_B)), bin_B] = correct_B.double() - confidence_B.double()
    return (weights_RB @ gaps).abs().sum(-1) / weights_RB.sum(-1)


def resampled_ece_mass(confidence_B: Tensor, correct_B: Tensor, weights_RB: Tensor, *, bins: int = 20) -> Tensor:
    """Return the calibration error in bins of equal mass of each resample, (R,).

    It is that of `torchbayes.metrics.ece_mass`.
    """
    order_B, last = _ties(confidence_B)
    gaps_B = (correct_B.double() - confidence_B.double())[order_B]
    sorted_RB = weights_RB[:, order_B]
    # Rows of equal confidence share their accuracy, so sums grow linearly between the ends of ties.
    ends, sums = (
        torch.nn.functional.pad(column.cumsum(-1)[:, last], (1, 0)) for column in (sorted_RB, sorted_RB * gaps_B)
    )
    shares = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=ends.device)
    bounds = (ends[:, -1:] * shares).contiguous()
    position = torch.searchsorted(ends, bounds).clamp(1, len(last))
    first, final = ends.gather(1, position - 1), ends.gather(1, position)
    low, high = sums.gather(1, position - 1), sums.gather(1, position)
    reached = torch.where(final > first, (bounds - first) / (final - first), 1.0)
    at_bounds = low + (high - low) * reached
    return at_bounds.diff().abs().sum(-1) / ends[:, -1]


def resampled_aurc(loss_B: Tensor, uncertainty_B: Tensor, weights_RB: Tensor) -> Tensor:
    """Return the area under the risk-coverage curve of each resample, (R,), as `RiskCoverage.aurc`."""
    order_B, last = _ties(uncertainty_B)
    sorted_RB = weights_RB[:, order_B]
    ends, sums = (values.cumsum(-1)[:, last] for values in (sorted_RB, sorted_RB * loss_B.double()[order_B]))
    entering = ends.diff(prepend=ends.new_zeros(len(ends), 1))
    return (entering * sums / ends).sum(-1) / ends[:, -1]


def resampled_auroc(
    in_scores_N: Tensor, out_scores_F: Tensor, *, in_weights_RN: Tensor, out_weights_RF: Tensor
) -> Tensor:
    """Return the area under the ROC curve of each resample of both sides, (R,), as `torchbayes.metrics.auroc`."""
    sorted_N, order_N = in_scores_N.sort()
    sums = torch.nn.functional.pad(in_weights_RN[:, order_N].cumsum(-1), (1, 0))
    below_F, not_above_F = (torch.searchsorted(sorted_N, out_scores_F, right=right) for right in (False, True))
    below = (sums[:, below_F] + sums[:, not_above_F]) / (2 * sums[:, -1:])
    return (out_weights_RF * below).sum(-1) / out_weights_RF.sum(-1)


def _ties(values_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return the order of values, and the end in it of each run of equal ones."""
    values_B, order_B = values_B.sort()
    _, sizes = torch.unique_consecutive(values_B, return_counts=True)
    return order_B, sizes.cumsum(0) - 1
