"""Out-of-distribution detection from one score per input, higher meaning further out.

Entropy and mutual information are such scores as they stand; negate a confidence. Ties are treated exactly: equal
scores share one threshold. AUROC does not depend on which side is called positive; AUPR and FPR95 do, so they take
``positive`` (Hendrycks & Gimpel, 2017; Liang et al., 2018). An input of weight w is w inputs.
"""

from typing import Literal

import torch
from torch import Tensor

from torchbayes.checks import check_choice
from torchbayes.metrics._checks import check_device, check_float, check_weights


def auroc(
    in_scores_N: Tensor,
    out_scores_N: Tensor,
    *,
    in_weights_N: Tensor | None = None,
    out_weights_N: Tensor | None = None,
) -> Tensor:
    r"""Return the area under the ROC curve, a 0-d float64 tensor in [0, 1], 0.5 for uninformative scores.

    It is $P(s_\mathrm{out} > s_\mathrm{in}) + \frac12 P(s_\mathrm{out} = s_\mathrm{in})$.

    Args:
        in_scores_N: Scores of inputs in distribution, a vector of any length; infinities are allowed.
        out_scores_N: Scores of inputs out of distribution, a vector of any length.
        in_weights_N: How often each of the former counts, or None where each counts once.
        out_weights_N: How often each of the latter counts.

    Raises:
        TypeError: If a dtype is not float32 or float64.
        ValueError: If a vector is empty, has another number of axes or holds NaN, or weights do not fit.
    """
    weights = _weights(in_scores_N, out_scores_N, in_weights_N, out_weights_N)
    dtype = torch.promote_types(in_scores_N.dtype, out_scores_N.dtype)
    (sorted_in_N, order_N), out_scores_N = in_scores_N.to(dtype).sort(), out_scores_N.to(dtype).contiguous()
    sums = torch.nn.functional.pad(weights[0][order_N].cumsum(0), (1, 0))
    below_N, not_above_N = (sums[torch.searchsorted(sorted_in_N, out_scores_N, right=r)] for r in (False, True))
    return (weights[1] * (below_N + not_above_N)).sum() / (2 * sums[-1] * weights[1].sum())


def aupr(
    in_scores_N: Tensor,
    out_scores_N: Tensor,
    positive: Literal["out", "in"] = "out",
    *,
    in_weights_N: Tensor | None = None,
    out_weights_N: Tensor | None = None,
) -> Tensor:
    r"""Return the area under the precision-recall curve as average precision, a 0-d float64 tensor in [0, 1].

    It is $\sum_i (R_i - R_{i-1}) P_i$ over thresholds. Both conventions are in use: "out" asks how well outliers
    are found ("AUPR-Out"), "in" how well inliers are ("AUPR-In", scores negated). Without skill the area is the
    share of positives, so it depends on their number.

    Args:
        in_scores_N: Scores of inputs in distribution, a vector of any length; infinities are allowed.
        out_scores_N: Scores of inputs out of distribution, a vector of any length.
        positive: Which side counts as positive.
        in_weights_N: How often each of the former counts, or None where each counts once.
        out_weights_N: How often each of the latter counts.

    Raises:
        TypeError: If a dtype is not float32 or float64.
        ValueError: If a vector is empty, has another number of axes or holds NaN, weights do not fit, or
            ``positive`` is unknown.
    """
    weights = _weights(in_scores_N, out_scores_N, in_weights_N, out_weights_N)
    positives_N, negatives_N = _positives_and_negatives(in_scores_N, out_scores_N, positive)
    hits_N, misses_N = weights if positive == "in" else weights[::-1]
    scores_N, order_N = torch.cat([positives_N, negatives_N]).sort(descending=True)
    reported = torch.unique_consecutive(scores_N, return_counts=True)[1].cumsum(0) - 1
    hits = torch.cat([hits_N, torch.zeros_like(misses_N)])[order_N].cumsum(0)[reported]
    counts = torch.cat([hits_N, misses_N])[order_N].cumsum(0)[reported]
    gained = torch.diff(hits, prepend=hits.new_zeros(1)) / hits_N.sum()
    return torch.where(gained == 0, 0.0, gained * hits / counts).sum()


def fpr95(
    in_scores_N: Tensor,
    out_scores_N: Tensor,
    positive: Literal["in", "out"] = "in",
    *,
    in_weights_N: Tensor | None = None,
    out_weights_N: Tensor | None = None,
) -> Tensor:
    """Return the false positive rate at the strictest threshold whose true positive rate is at least 95 %.

    It is a 0-d float64 tensor in [0, 1]; lower is better. By default inliers are positive, as in Liang et al.
    (2018): the share of outliers still accepted when the threshold accepts 95 % of the inliers. With "out" it is
    the share of inliers flagged when 95 % of the outliers are.

    Args:
        in_scores_N: Scores of inputs in distribution, a vector of any length; infinities are allowed.
        out_scores_N: Scores of inputs out of distribution, a vector of any length.
        positive: Which side counts as positive.
        in_weights_N: How often each of the former counts, or None where each counts once.
        out_weights_N: How often each of the latter counts.

    Raises:
        TypeError: If a dtype is not float32 or float64.
        ValueError: If a vector is empty, has another number of axes or holds NaN, weights do not fit, or
            ``positive`` is unknown.
    """
    weights = _weights(in_scores_N, out_scores_N, in_weights_N, out_weights_N)
    positives_N, negatives_N = _positives_and_negatives(in_scores_N, out_scores_N, positive)
    hits_N, misses_N = weights if positive == "in" else weights[::-1]
    sorted_N, order_N = positives_N.sort(descending=True)
    accepted_N = hits_N[order_N].cumsum(0)
    threshold = sorted_N[torch.searchsorted(100 * accepted_N, 95 * accepted_N[-1])]
    return (misses_N * (negatives_N >= threshold)).sum() / misses_N.sum()


def _positives_and_negatives(in_scores_N: Tensor, out_scores_N: Tensor, positive: str) -> tuple[Tensor, Tensor]:
    # The scores are turned so that a higher one means positive.
    check_choice(("out", "in"), positive=positive)
    return (out_scores_N, in_scores_N) if positive == "out" else (-in_scores_N, -out_scores_N)


def _weights(in_scores_N: Tensor, out_scores_N: Tensor, *given: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return how often each input counts, float64, once the scores are checked."""
    check_float("in_scores_N", in_scores_N, 1, finite=False)
    check_float("out_scores_N", out_scores_N, 1, finite=False)
    check_device("out_scores_N", out_scores_N, in_scores_N)
    checked = [
        torch.ones_like(scores, dtype=torch.float64) if weights is None else check_weights(weights, scores, name)
        for scores, weights, name in zip(
            (in_scores_N, out_scores_N), given, ("in_weights_N", "out_weights_N"), strict=True
        )
    ]
    return checked[0], checked[1]
