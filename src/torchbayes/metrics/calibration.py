"""Calibration: does a stated confidence, interval or quantile hold as often as it claims?

Classification compares the confidence (largest probability) with the accuracy in bins of confidence (Guo et al., 2017,
"On calibration of modern neural networks"); regression compares intervals and quantiles with how often targets fall
inside or below them (Kuleshov et al., 2018). Expected calibration errors depend on the bins and are biased upwards on
little data, so compare them only at equal binning and equal B; NLL and Brier score involve no such choice.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchbayes.checks import check_choice, check_share
from torchbayes.metrics._checks import (
    check_bins,
    check_float,
    check_labels,
    check_probs,
    check_same_shape,
    check_weights,
    weighted_mean,
)
from torchbayes.metrics.scoring import hits


@dataclass(frozen=True, eq=False)
class Reliability:
    """What a reliability diagram shows: mean confidence and accuracy in each bin of confidence.

    An empty bin has count, confidence and accuracy zero (never NaN): leave out bins of count zero when drawing.

    Attributes:
        confidence: mean largest probability in each bin, (bins,), float64.
        accuracy: share of right predictions in each bin, (bins,), float64.
        count: number of points in each bin, (bins,), int64, with sum B; with weights their sum, float64.
        edges: bounds of the bins in confidence, (bins + 1,), float64, non-decreasing.
        kind: "width" for bins of equal width on [0, 1], "mass" for bins of equal count.
    """

    confidence: Tensor
    accuracy: Tensor
    count: Tensor
    edges: Tensor
    kind: Literal["width", "mass"]

    @property
    def ece(self) -> Tensor:
        """Expected calibration error: mean over points of their bin's |accuracy - confidence|, 0-d float64."""
        return ((self.accuracy - self.confidence).abs() * self.count).sum() / self.count.sum()


def reliability(
    probs_BK: Tensor,
    targets_B: Tensor,
    bins: int = 15,
    *,
    kind: Literal["width", "mass"] = "width",
    weights_B: Tensor | None = None,
) -> Reliability:
    """Return each bin's mean confidence and accuracy, with predictions binned by confidence.

    Bins of equal width are (lower, upper], as in Guo et al. (2017). Bins of equal mass hold B / bins points each,
    up to one, by rank of confidence. Points of equal confidence share their mean accuracy, so the result does not
    depend on the order of the rows even where a tie is split between bins. Where points have weights, bins of equal
    mass have equal total weights, and a point on a bound is split between both bins.

    Args:
        probs_BK: Class probabilities.
        targets_B: Integer classes in 0..K-1, or soft labels, shape (B, K): the share of each.
        bins: Number of bins. With fewer points than bins, some bins of equal mass are empty.
        kind: "width" or "mass".
        weights_B: How often each row counts, at least 0; once if None.

    Raises:
        TypeError: If a dtype is wrong.
        ValueError: If shapes, classes, probabilities, ``bins`` or ``kind`` are wrong.
    """
    check_probs("probs_BK", probs_BK, 2)
    targets_B = check_labels(targets_B, probs_BK)
    check_bins(bins)
    check_choice(("width", "mass"), kind=kind)
    confidence_B, correct_B = probs_BK.amax(-1), hits(probs_BK, targets_B)
    weights_B = None if weights_B is None else check_weights(weights_B, confidence_B)
    if kind == "mass" and weights_B is not None:
        return _of_equal_weight(confidence_B, correct_B, weights_B, bins)
    if kind == "width":
        edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=probs_BK.device)
        # Edges are rounded to the dtype of the confidences, so that float32 0.2 is on the edge 0.2.
        bin_B = torch.bucketize(confidence_B, edges[1:-1].to(confidence_B.dtype))
    else:
        confidence_B, correct_B, bin_B, edges = _bins_of_equal_mass(confidence_B, correct_B, bins)

    def total(values_B: Tensor) -> Tensor:
        return values_B.new_zeros(bins).index_add_(0, bin_B, values_B)

    if weights_B is None:
        count = total(torch.ones_like(bin_B))
        size = count.clamp_min(1)
        return Reliability(total(confidence_B.double()) / size, total(correct_B) / size, count, edges, kind)
    count = total(weights_B)
    size = torch.where(count == 0, 1.0, count)
    confidence, accuracy = (total(weights_B * each_B) / size for each_B in (confidence_B.double(), correct_B))
    return Reliability(confidence, accuracy, count, edges, kind)


def _of_equal_weight(confidence_B: Tensor, correct_B: Tensor, weights_B: Tensor, bins: int) -> Reliability:
    """Return bins of equal total weight, as differences of integrals over the sorted points."""
    counted_B = weights_B > 0
    confidence_B, order_B = confidence_B[counted_B].sort()
    weights_B, correct_B = weights_B[counted_B][order_B], correct_B[counted_B][order_B]
    _, tie_B = torch.unique_consecutive(confidence_B, return_inverse=True)
    right, size = (
        weights_B.new_zeros(int(tie_B[-1]) + 1).index_add_(0, tie_B, v) for v in (weights_B * correct_B, weights_B)
    )
    ends_B = weights_B.cumsum(0)
    bounds = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=ends_B.device) * ends_B[-1]
    position = torch.searchsorted(ends_B, bounds, right=True).clamp_max(len(ends_B) - 1)

    def total(values_B: Tensor) -> Tensor:
        before_B = (weights_B * values_B).cumsum(0) - weights_B * values_B
        return (before_B[position] + (bounds - (ends_B - weights_B)[position]) * values_B[position]).diff()

    count = bounds.diff()
    confidence, accuracy = (total(each_B) / count for each_B in (confidence_B.double(), (right / size)[tie_B]))
    return Reliability(confidence, accuracy, count, confidence_B.double()[position], "mass")


def _bins_of_equal_mass(confidence_B: Tensor, correct_B: Tensor, bins: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # Returns the sorted confidences, their correctness averaged over ties, their bins, and the edges.
    confidence_B, order_B = confidence_B.sort()
    _, tie_B, size = torch.unique_consecutive(confidence_B, return_inverse=True, return_counts=True)
    right = correct_B.new_zeros(len(size)).index_add_(0, tie_B, correct_B[order_B])
    rank_B = torch.arange(len(confidence_B), device=confidence_B.device)
    first = (torch.arange(bins + 1, device=rank_B.device) * len(rank_B) + bins - 1) // bins
    edges = confidence_B.double()[first.clamp_max(len(rank_B) - 1)]
    return confidence_B, (right / size)[tie_B], rank_B * bins // len(rank_B), edges


def ece(probs_BK: Tensor, targets_B: Tensor, bins: int = 15, *, weights_B: Tensor | None = None) -> Tensor:
    r"""Return the expected calibration error in bins of equal width, a 0-d float64 tensor in [0, 1].

    It is $\sum_i \frac{n_i}{B} |\mathrm{acc}_i - \mathrm{conf}_i|$.

    Args:
        probs_BK: Class probabilities.
        targets_B: Integer classes in 0..K-1, or soft labels, shape (B, K).
        bins: Number of bins (lower, upper] of equal width on [0, 1]; 15 in Guo et al. (2017).
        weights_B: How often each row counts, at least 0; once if None.

    Raises:
        TypeError: If a dtype is wrong.
        ValueError: If shapes, classes, probabilities or ``bins`` are wrong.
    """
    return reliability(probs_BK, targets_B, bins, kind="width", weights_B=weights_B).ece


def ece_mass(probs_BK: Tensor, targets_B: Tensor, bins: int = 20, *, weights_B: Tensor | None = None) -> Tensor:
    r"""Return the expected calibration error in bins of equal mass, a 0-d float64 tensor in [0, 1].

    It is $\sum_i \frac{n_i}{B} |\mathrm{acc}_i - \mathrm{conf}_i|$. Twenty bins of equal mass are the choice of the
    code published with Izmailov et al. (2021), "What are Bayesian neural network posteriors really like?". That
    code bounds its bins by strict inequalities on both sides and so drops points that lie on an edge: ties with an
    edge and the largest confidence. Here every point counts, so the two differ where confidences are tied
    (saturated at one, say) and by no more than about bins / B otherwise.

    Args:
        probs_BK: Class probabilities.
        targets_B: Integer classes in 0..K-1, or soft labels, shape (B, K).
        bins: Number of bins of (almost) equal count.
        weights_B: How often each row counts, at least 0; once if None.

    Raises:
        TypeError: If a dtype is wrong.
        ValueError: If shapes, classes, probabilities or ``bins`` are wrong.
    """
    return reliability(probs_BK, targets_B, bins, kind="mass", weights_B=weights_B).ece


def interval_coverage(
    lower_B: Tensor, upper_B: Tensor, targets_B: Tensor, *, weights_B: Tensor | None = None
) -> Tensor:
    r"""Return the share of targets inside their interval, a 0-d float64 tensor; ideally the stated level.

    It is $\frac1B \sum_b [l_b \le y_b \le u_b]$.

    Args:
        lower_B: Lower ends, any shape; minus infinity is allowed.
        upper_B: Upper ends, the same shape, nowhere below ``lower_B``; infinity is allowed.
        targets_B: Observed values, the same shape.
        weights_B: How often each counts, the same shape, at least 0; once if None.

    Raises:
        TypeError: If a dtype is not float32 or float64.
        ValueError: If shapes differ, values are missing or NaN, or an interval is reversed.
    """
    _check_intervals(lower_B, upper_B, targets_B)
    return weighted_mean((lower_B <= targets_B) & (targets_B <= upper_B), weights_B)


def _check_intervals(lower_B: Tensor, upper_B: Tensor, targets_B: Tensor) -> None:
    for name, values in (("lower_B", lower_B), ("upper_B", upper_B), ("targets_B", targets_B)):
        check_float(name, values, finite=name == "targets_B")
        check_same_shape(name, values, "targets_B", targets_B)
    reversed_count = int((lower_B > upper_B).sum())
    if reversed_count:
        raise ValueError(f"`lower_B` is above `upper_B` in {reversed_count} intervals. Swap the two arguments?")


def interval_score(
    lower_B: Tensor, upper_B: Tensor, targets_B: Tensor, *, coverage: float, weights_B: Tensor | None = None
) -> Tensor:
    r"""Return the mean interval score, a 0-d float64 tensor in the units of the targets; lower is better.

    It is $(u - l) + \frac2a (l - y)_+ + \frac2a (y - u)_+$ with $a = 1 -$ coverage: the width, and a penalty for
    targets outside (Gneiting & Raftery, 2007). In expectation the quantiles at a/2 and 1 - a/2 are best.

    Args:
        lower_B: Lower ends, any shape; minus infinity is allowed.
        upper_B: Upper ends, the same shape, nowhere below ``lower_B``; infinity is allowed.
        targets_B: Observed values, the same shape.
        coverage: Probability that the intervals are meant to hold, in (0, 1).
        weights_B: How often each counts, the same shape, at least 0; once if None.

    Raises:
        TypeError: If a dtype is not float32 or float64.
        ValueError: If shapes differ, values are missing or NaN, an interval is reversed, or ``coverage`` is wrong.
    """
    _check_intervals(lower_B, upper_B, targets_B)
    check_share(coverage=coverage)
    if not coverage:
        raise ValueError("`coverage` must be above 0; got 0.0. 0.9 is usual.")
    outside_B = (lower_B - targets_B).clamp_min(0) + (targets_B - upper_B).clamp_min(0)
    return weighted_mean((upper_B - lower_B) + 2 / (1 - coverage) * outside_B, weights_B)


def quantile_calibration(
    levels_Q: Tensor, quantiles_QB: Tensor, targets_B: Tensor, *, weights_B: Tensor | None = None
) -> Tensor:
    r"""Return the observed level of each predicted quantile, in [0, 1], float64 (Q,).

    It is $\hat p_q = \frac1B \sum_b [y_b \le F_b^{-1}(p_q)]$. Calibrated predictions have observed equal to stated
    levels; $\sum_q (\hat p_q - p_q)^2$ is the calibration error of Kuleshov et al. (2018), "Accurate uncertainties
    for deep learning using calibrated regression".

    Args:
        levels_Q: Stated levels, each strictly between 0 and 1.
        quantiles_QB: Predicted quantiles at those levels.
        targets_B: Observed values.
        weights_B: How often each counts, at least 0; once if None.

    Raises:
        TypeError: If a dtype is not float32 or float64.
        ValueError: If shapes do not fit, values are missing or not finite, or a level is outside (0, 1).
    """
    check_float("levels_Q", levels_Q, 1)
    check_float("quantiles_QB", quantiles_QB, 2)
    check_float("targets_B", targets_B, 1)
    check_same_shape("quantiles_QB[0]", quantiles_QB[0], "targets_B", targets_B)
    check_same_shape("quantiles_QB[:, 0]", quantiles_QB[:, 0], "levels_Q", levels_Q)
    lowest, highest = torch.stack(torch.aminmax(levels_Q)).tolist()
    if lowest <= 0 or highest >= 1:
        raise ValueError(f"`levels_Q` must lie strictly between 0 and 1; got {lowest:.4g} to {highest:.4g}.")
    return torch.stack([weighted_mean(below_B, weights_B) for below_B in targets_B <= quantiles_QB])


def central_level(below_B: Tensor, up_to_B: Tensor) -> Tensor:
    r"""Return the level of the smallest central interval that holds each target, in the shape and dtype of the targets.

    It is $\max(0,\, 1 - 2 \min(F(y), 1 - F(y^-)))$. The central interval of level c runs from the quantile at level
    (1 - c) / 2 to that at (1 + c) / 2. The share of targets whose level is at most c is the coverage of those
    intervals, for every c at once; ideally it is c. For continuous distributions the two arguments are equal; in
    discrete ones intervals hold more than they say.

    Args:
        below_B: Predicted probability of values below the target, F(y-), any shape.
        up_to_B: Predicted probability of values up to the target, F(y), the same shape, nowhere lower.

    Raises:
        TypeError: If a dtype is not float32 or float64.
        ValueError: If shapes differ, values are missing or outside [0, 1], or the two are swapped.
    """
    for name, values in (("below_B", below_B), ("up_to_B", up_to_B)):
        check_float(name, values)
        lowest, highest = torch.stack(torch.aminmax(values)).tolist()
        if lowest < 0 or highest > 1:
            raise ValueError(f"`{name}` must lie in [0, 1]; got {lowest:.4g} to {highest:.4g}.")
    check_same_shape("below_B", below_B, "up_to_B", up_to_B)
    swapped = int((below_B > up_to_B).sum())
    if swapped:
        raise ValueError(f"`below_B` is above `up_to_B` for {swapped} targets. Swap the two arguments?")
    return (1 - 2 * torch.minimum(up_to_B, 1 - below_B)).clamp_min(0)
