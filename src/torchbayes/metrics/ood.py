"""Out-of-distribution detection from one score per input, higher meaning further out.

Entropy and mutual information are such scores as they stand; negate a confidence. Ties are treated exactly: equal
scores share one threshold. AUROC does not depend on which side is called positive; AUPR and FPR95 do, so they take
``positive`` (Hendrycks & Gimpel, 2017; Liang et al., 2018).
"""

from typing import Literal

import torch
from torch import Tensor

from torchbayes.metrics._checks import check_choice, check_device, check_float


def auroc(in_scores_N: Tensor, out_scores_N: Tensor) -> Tensor:
    r"""Area under the ROC curve, $P(s_\mathrm{out} > s_\mathrm{in}) + \frac12 P(s_\mathrm{out} = s_\mathrm{in})$.

    Args:
        in_scores_N: Scores of inputs in distribution, a vector of any length; infinities are allowed.
        out_scores_N: Scores of inputs out of distribution, a vector of any length.

    Returns:
        Area in [0, 1], 0.5 for uninformative scores, a 0-d float64 tensor.

    Raises:
        TypeError: If a dtype is not float32 or float64.
        ValueError: If a vector is empty, has another number of axes or holds NaN.
    """
    _check_scores(in_scores_N, out_scores_N)
    dtype = torch.promote_types(in_scores_N.dtype, out_scores_N.dtype)
    sorted_in_N, out_scores_N = in_scores_N.to(dtype).sort().values, out_scores_N.to(dtype).contiguous()
    below_N = torch.searchsorted(sorted_in_N, out_scores_N)
    not_above_N = torch.searchsorted(sorted_in_N, out_scores_N, right=True)
    return (below_N + not_above_N).double().mean() / (2 * len(sorted_in_N))


def aupr(in_scores_N: Tensor, out_scores_N: Tensor, positive: Literal["out", "in"] = "out") -> Tensor:
    r"""Area under the precision-recall curve as average precision, $\sum_i (R_i - R_{i-1}) P_i$ over thresholds.

    Both conventions are in use: "out" asks how well outliers are found ("AUPR-Out"), "in" how well inliers are
    ("AUPR-In", scores negated). Without skill the area is the share of positives, so it depends on their number.

    Args:
        in_scores_N: Scores of inputs in distribution, a vector of any length; infinities are allowed.
        out_scores_N: Scores of inputs out of distribution, a vector of any length.
        positive: Which side counts as positive.

    Returns:
        Area in [0, 1], a 0-d float64 tensor.

    Raises:
        TypeError: If a dtype is not float32 or float64.
        ValueError: If a vector is empty, has another number of axes or holds NaN, or ``positive`` is unknown.
    """
    positives_N, negatives_N = _positives_and_negatives(in_scores_N, out_scores_N, positive)
    scores_N, order_N = torch.cat([positives_N, negatives_N]).sort(descending=True)
    hits_N = (order_N < len(positives_N)).cumsum(0)
    tie_sizes = torch.unique_consecutive(scores_N, return_counts=True)[1]
    reported = tie_sizes.cumsum(0)
    hits = hits_N[reported - 1].double()
    gained = torch.diff(hits, prepend=hits.new_zeros(1)) / len(positives_N)
    return (gained * hits / reported).sum()


def fpr95(in_scores_N: Tensor, out_scores_N: Tensor, positive: Literal["in", "out"] = "in") -> Tensor:
    """False positive rate at the strictest threshold whose true positive rate is at least 95 %.

    By default inliers are positive, as in Liang et al. (2018): the share of outliers still accepted when the threshold
    accepts 95 % of the inliers. With "out" it is the share of inliers flagged when 95 % of the outliers are.

    Args:
        in_scores_N: Scores of inputs in distribution, a vector of any length; infinities are allowed.
        out_scores_N: Scores of inputs out of distribution, a vector of any length.
        positive: Which side counts as positive.

    Returns:
        Rate in [0, 1], lower is better, a 0-d float64 tensor.

    Raises:
        TypeError: If a dtype is not float32 or float64.
        ValueError: If a vector is empty, has another number of axes or holds NaN, or ``positive`` is unknown.
    """
    positives_N, negatives_N = _positives_and_negatives(in_scores_N, out_scores_N, positive)
    needed = (95 * len(positives_N) + 99) // 100
    threshold = positives_N.sort(descending=True).values[needed - 1]
    return (negatives_N >= threshold).double().mean()


def _positives_and_negatives(in_scores_N: Tensor, out_scores_N: Tensor, positive: str) -> tuple[Tensor, Tensor]:
    # The scores are turned so that a higher one means positive.
    _check_scores(in_scores_N, out_scores_N)
    check_choice("positive", positive, ("out", "in"))
    return (out_scores_N, in_scores_N) if positive == "out" else (-in_scores_N, -out_scores_N)


def _check_scores(in_scores_N: Tensor, out_scores_N: Tensor) -> None:
    check_float("in_scores_N", in_scores_N, 1, finite=False)
    check_float("out_scores_N", out_scores_N, 1, finite=False)
    check_device("out_scores_N", out_scores_N, in_scores_N)
