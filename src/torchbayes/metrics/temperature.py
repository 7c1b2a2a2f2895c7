"""Temperature scaling: one number fitted after training that sharpens or flattens every prediction.

Guo et al. (2017), "On calibration of modern neural networks", section 4.2.
"""

import math

import torch
from torch import Tensor

from torchbayes.checks import check_each, check_positive
from torchbayes.metrics._checks import check_float, check_labels, check_weights

_MAX_STEPS = 200
_RELATIVE_TOLERANCE = 1e-10


def fit_temperature(
    outputs_BK: Tensor,
    targets_B: Tensor,
    bounds: tuple[float, float] = (0.01, 100.0),
    *,
    weights_B: Tensor | None = None,
) -> float:
    r"""Return the temperature T that minimises the NLL of $\mathrm{softmax}(z / T)$ on held-out data.

    T is above 1 for overconfident predictions, below 1 for underconfident ones. In $\beta = 1/T$ the objective
    $\frac1B \sum_b \log \sum_k e^{\beta z_{bk}} - \beta z_{b y_b}$ is convex, so its one stationary point is found
    by Newton steps on the slope, kept inside a bracket by bisection, in float64. Soft labels have $\sum_k q_{bk}
    z_{bk}$ instead of $z_{b y_b}$. Scaled predictions are ``torch.log_softmax(outputs_BK / T, -1)``; they keep
    their order, so accuracy does not change.

    The optimum lies at T = 0 when every target has the largest output (separable data) and at infinity or beyond
    when outputs carry no information about the targets. The search is therefore bounded: a result equal to one of
    ``bounds`` means that the data set no limit inside them. If every temperature fits equally well, the result is
    the one nearest to 1.

    Args:
        outputs_BK: Logits, or log-probabilities of a model average (each defined up to a constant per row), finite
            but for classes of probability 0, which have minus infinity.
        targets_B: Integer classes in 0..K-1, or soft labels, shape (B, K).
        bounds: Smallest and largest temperature allowed.
        weights_B: How often each row counts, at least 0; once if None.

    Raises:
        TypeError: If a dtype is wrong.
        ValueError: If shapes or classes are wrong, an output is NaN or infinite, or minus infinity for a target, or
            ``bounds`` is not 0 < low < high.
    """
    check_float("outputs_BK", outputs_BK, 2, finite=False)
    check_float("outputs_BK", outputs_BK.masked_fill(outputs_BK.isneginf(), 0.0))
    targets_B = check_labels(targets_B, outputs_BK)
    check_each(check_positive, length=2, bounds=bounds)
    if not bounds[0] < bounds[1]:
        raise ValueError(f"`bounds` must be two finite temperatures, 0 < low < high; got {bounds}. Try (0.01, 100).")
    outputs_BK = outputs_BK.detach().double()
    if targets_B.is_floating_point():
        target_B1 = torch.where(targets_B == 0, 0.0, targets_B.double() * outputs_BK).sum(1, keepdim=True)
    else:
        target_B1 = outputs_BK.gather(1, targets_B[:, None])
    if not target_B1.isfinite().all():
        raise ValueError(
            f"{int((~target_B1.isfinite()).sum())} of {len(target_B1)} targets have the output -inf, probability 0 at "
            f"every temperature. Leave out such rows."
        )
    gaps_BK = outputs_BK - target_B1
    weights_B = torch.ones_like(gaps_BK[:, 0]) if weights_B is None else check_weights(weights_B, gaps_BK[:, 0])
    weights_B = weights_B / weights_B.sum()
    low, high = 1 / bounds[1], 1 / bounds[0]
    slope_low, slope_high = (
        _slope_and_curvature(gaps_BK, weights_B, low)[0],
        _slope_and_curvature(gaps_BK, weights_B, high)[0],
    )
    if slope_low == 0 == slope_high:
        return min(max(1.0, bounds[0]), bounds[1])
    if slope_low >= 0:
        return bounds[1]
    # A slope that has underflowed to zero is separable data too: the true slope is below zero.
    if slope_high <= 0:
        return bounds[0]
    return 1 / _root_of_slope(gaps_BK, weights_B, low, high)


def _root_of_slope(gaps_BK: Tensor, weights_B: Tensor, low: float, high: float) -> float:
    # The slope is below zero at `low` and above it at `high`.
    beta, last_step = min(max(1.0, low), high), math.inf
    for _ in range(_MAX_STEPS):
        slope, curvature = _slope_and_curvature(gaps_BK, weights_B, beta)
        if slope > 0:
            high = beta
        else:
            low = beta
        proposal = beta - slope / curvature if curvature > 0 else math.inf
        # Newton steps that shrink by less than half creep along an exponential tail; bisect in log beta instead.
        if not low <= proposal <= high or abs(proposal - beta) > 0.5 * last_step:
            proposal = math.sqrt(low * high)
        last_step = abs(proposal - beta)
        beta = proposal
        if last_step <= _RELATIVE_TOLERANCE * beta:
            break
    return beta


def _slope_and_curvature(gaps_BK: Tensor, weights_B: Tensor, beta: float) -> tuple[float, float]:
    # Derivatives of the mean NLL in the inverse temperature: mean and variance of the gaps to the target's output.
    probs_BK = torch.softmax(beta * gaps_BK, -1)
    gaps_BK = torch.where(probs_BK == 0, 0.0, gaps_BK)  # the gap of a class of probability 0 may be infinite
    mean_B = (probs_BK * gaps_BK).sum(-1)
    variance_B = (probs_BK * (gaps_BK - mean_B[:, None]).square()).sum(-1)
    slope, curvature = torch.stack([weights_B @ mean_B, weights_B @ variance_B]).tolist()
    return slope, curvature
