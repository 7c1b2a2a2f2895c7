r"""Jackknife+ and CV+: intervals from predictions that leave a row out, of the rows that the model was fitted to.

With μ₋ᵢ the prediction of a fit without row i, σ₋ᵢ a scale (1 if there is none) and R_i = |y_i − μ₋ᵢ(x_i)| / σ₋ᵢ(x_i),

    plus      [(n + 1 − k)-th smallest of μ₋ᵢ(x) − R_i σ₋ᵢ(x),  k-th smallest of μ₋ᵢ(x) + R_i σ₋ᵢ(x)]
    minmax    [min_i (μ₋ᵢ(x) − q σ₋ᵢ(x)),  max_i (μ₋ᵢ(x) + q σ₋ᵢ(x))],  q the k-th smallest R_i

with k = ⌈(n + 1) c⌉ (Barber, Candès, Ramdas and Tibshirani 2021). If rows are exchangeable, and the fit does not depend
on their order, "plus" covers a new target with probability at least 1 − 2 (1 − c), and usually about c; "minmax" with
at least c. With predictions that leave out one of K folds of m rows (CV+), the bound of "plus" is
1 − 2 (1 − c) − min{2 (1 − 1/K)/(m + 1), (1 − K/n)/(K + 1)}. Of several numbers in a row R_i is the largest, and the box
has the same bounds.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torchbayes.checks import as_numbers, check_choice, seen
from torchbayes.conformal.ranks import check_coverage, rank_of
from torchbayes.native.process import undisturbed

Kind = Literal["plus", "minmax"]
KINDS: tuple[Kind, ...] = ("plus", "minmax")


@undisturbed
def jackknife_intervals(
    means_N: Any,
    targets_N: Any,
    means_NB: Any,
    *,
    coverage: float = 0.9,
    scales_N: Any = None,
    scales_NB: Any = None,
    kind: Kind = "plus",
) -> tuple[Tensor, Tensor]:
    """Return intervals from predictions of any model that leave a row out.

    For CV+, row i of `means_NB` is the prediction of the fit without the fold of row i: `means_FB[fold_N]`. For draws
    of a posterior with weights that leave a row out (`torchbayes.diagnostics.psis` of −log p(y_i | f_s)), predictions
    are weighted means over the draws.

    Args:
        means_N: μ₋ᵢ(x_i) at the rows of the fit, (N,) or (N, K').
        targets_N: y_i, in the same shape.
        means_NB: μ₋ᵢ(x_b) at new rows, (N, B) or (N, B, K').
        coverage: c, in (0, 1).
        scales_N: σ₋ᵢ(x_i), above 0, in the shape of the means; None for intervals of R_i alone.
        scales_NB: σ₋ᵢ(x_b), in the shape of `means_NB`.
        kind: "plus", or "minmax", which is wider and covers at least c.

    Returns:
        Low and high ends, (B,) or (B, K') each, float64; ±∞ where the rows are too few.

    Raises:
        TypeError: if values are not numbers.
        ValueError: if shapes do not fit, a value is not finite, a scale is not above 0, or another setting is wrong.
    """
    check_coverage(coverage=coverage)
    check_choice(KINDS, kind=kind)
    if (scales_N is None) != (scales_NB is None):
        raise ValueError("`scales_N` and `scales_NB` go together; got one of them.")
    given, means_N = means_N, _numbers("means_N", means_N)
    if means_N.ndim not in {1, 2} or not len(means_N):
        raise ValueError(f"`means_N` must have shape (N,) or (N, K'); got {seen(given)}.")
    targets_N = _numbers("targets_N", targets_N, means_N.shape)
    new_rows = as_numbers("means_NB", means_NB).shape[1:2] or (1,)
    wanted = (len(means_N), *new_rows, *means_N.shape[1:])
    means_NB = _numbers("means_NB", means_NB, wanted)
    ones = means_N.new_ones(())
    scale_N = ones if scales_N is None else _numbers("scales_N", scales_N, means_N.shape, least=0.0)
    scale_NB = ones if scales_NB is None else _numbers("scales_NB", scales_NB, wanted, least=0.0)
    return ends_of(LeftOut((targets_N - means_N).abs() / scale_N, means_NB, scale_NB), coverage, kind)


class LeftOut(NamedTuple):
    """Scores of the rows of the fit, and predictions of new rows that leave each of them out."""

    scores_N: Tensor  # R_i, (N,) or (N, K')
    means_NB: Tensor
    scales_NB: Tensor


def ends_of(left: LeftOut, coverage: float, kind: Kind) -> tuple[Tensor, Tensor]:
    """Return the ends of the intervals, in the shape of predictions of new rows."""
    scores_N = left.scores_N if left.scores_N.ndim == 1 else left.scores_N.amax(1)
    rows, rank = len(scores_N), rank_of(len(scores_N), coverage)
    if rank > rows:
        infinite = torch.full_like(left.means_NB[0], math.inf)
        return -infinite, infinite
    if kind == "minmax":
        half_NB = scores_N.kthvalue(rank).values * left.scales_NB
        return (left.means_NB - half_NB).amin(0), (left.means_NB + half_NB).amax(0)
    half_NB = scores_N.view(-1, *[1] * (left.means_NB.ndim - 1)) * left.scales_NB
    low = (left.means_NB - half_NB).kthvalue(rows + 1 - rank, dim=0).values
    return low, (left.means_NB + half_NB).kthvalue(rank, dim=0).values


def _numbers(name: str, values: Any, shape: Any = None, *, least: float = -math.inf) -> Tensor:
    """Return finite numbers, float64, of this shape and above `least`; an error that names them if they are not."""
    tensor = as_numbers(name, values)
    if shape is not None and tensor.shape != tuple(shape):
        raise ValueError(f"`{name}` must have shape {tuple(shape)}; got {seen(values)}.")
    if not tensor.isfinite().all():
        raise ValueError(f"`{name}` holds NaN or infinite values: {int((~tensor.isfinite()).sum())}.")
    if tensor.numel() and not tensor.min() > least:
        raise ValueError(f"`{name}` must be above {least:g}; the smallest is {float(tensor.min()):g}.")
    return tensor
