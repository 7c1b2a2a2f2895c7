"""Scores of predictions against observed targets: accuracy and proper scoring rules.

Proper rules (NLL, Brier, CRPS) are lowest in expectation for the true distribution (Gneiting & Raftery, 2007,
"Strictly proper scoring rules, prediction, and estimation").
"""

import math

import torch
from torch import Tensor

from torchbayes.metrics._checks import check_float, check_labels, check_probs, check_same_shape, weighted_mean


def accuracy(probs_BK: Tensor, targets_B: Tensor, *, weights_B: Tensor | None = None) -> Tensor:
    """Share of rows whose most probable class is the target; of tied classes the first counts.

    Args:
        probs_BK: Class probabilities, shape (B, K).
        targets_B: Integer classes in 0..K-1, shape (B,), or soft labels, shape (B, K): the share of each.
        weights_B: How often each row counts, shape (B,), at least 0; once if None.

    Returns:
        Accuracy in [0, 1], a 0-d float64 tensor.

    Raises:
        TypeError: If a dtype is wrong.
        ValueError: If shapes, classes or probabilities are wrong.
    """
    check_probs("probs_BK", probs_BK, 2)
    return weighted_mean(hits(probs_BK, check_labels(targets_B, probs_BK)), weights_B)


def hits(probs_BK: Tensor, targets_B: Tensor) -> Tensor:
    """Return 1 where the most probable class is the target, else 0; for soft labels that class's probability, (B,)."""
    predicted_B = probs_BK.argmax(-1)
    if targets_B.is_floating_point():
        return targets_B.gather(-1, predicted_B.unsqueeze(-1)).squeeze(-1).double()
    return (predicted_B == targets_B).double()


def nll(log_prob_B: Tensor, *, weights_B: Tensor | None = None) -> Tensor:
    r"""Mean negative log-probability, $-\frac1B \sum_b \log p(y_b \mid x_b)$, in nats.

    Args:
        log_prob_B: Log-probability or log-density of each target, shape (B,). For a model average this is
            the log of the averaged probability. Minus infinity is allowed and makes the score infinite.
        weights_B: How often each row counts, shape (B,), at least 0; once if None.

    Returns:
        Mean negative log-probability, a 0-d float64 tensor.

    Raises:
        TypeError: If the dtype is not float32 or float64.
        ValueError: If the input is not a non-empty vector free of NaN.
    """
    check_float("log_prob_B", log_prob_B, 1, finite=False)
    return -weighted_mean(log_prob_B, weights_B)


def brier(probs_BK: Tensor, targets_B: Tensor, *, weights_B: Tensor | None = None) -> Tensor:
    r"""Brier score, $\frac1B \sum_b \sum_k (p_{bk} - [y_b = k])^2$, summed over classes (Brier, 1950).

    It lies in [0, 2]. For two classes it is twice the one-column form $(p_{b1} - y_b)^2$ that some libraries report.

    Args:
        probs_BK: Class probabilities, shape (B, K); for a Bernoulli probability p the two columns are 1 - p and p.
        targets_B: Integer classes in 0..K-1, shape (B,), or soft labels, shape (B, K): the share of each.
        weights_B: How often each row counts, shape (B,), at least 0; once if None.

    Returns:
        Brier score, a 0-d float64 tensor.

    Raises:
        TypeError: If a dtype is wrong.
        ValueError: If shapes, classes or probabilities are wrong.
    """
    check_probs("probs_BK", probs_BK, 2)
    targets_B = check_labels(targets_B, probs_BK)
    if targets_B.is_floating_point():  # the mean over labels drawn from them
        each_B = (targets_B.sum(-1) * probs_BK.square().sum(-1)) + (targets_B * (1 - 2 * probs_BK)).sum(-1)
    else:
        each_B = (probs_BK - torch.nn.functional.one_hot(targets_B, probs_BK.shape[1])).square().sum(-1)
    return weighted_mean(each_B, weights_B)


def rmse(mean_B: Tensor, targets_B: Tensor, *, weights_B: Tensor | None = None) -> Tensor:
    r"""Root mean squared error, $\sqrt{\frac1B \sum_b (\mu_b - y_b)^2}$, over all elements.

    Args:
        mean_B: Predicted means, any shape.
        targets_B: Observed values, the same shape.
        weights_B: How often each counts, the same shape, at least 0; once if None.

    Returns:
        Error in the units of the targets, a 0-d float64 tensor.

    Raises:
        TypeError: If a dtype is not float32 or float64.
        ValueError: If shapes differ, or a value is missing or not finite.
    """
    check_float("mean_B", mean_B)
    check_float("targets_B", targets_B)
    check_same_shape("mean_B", mean_B, "targets_B", targets_B)
    return weighted_mean((mean_B - targets_B).double().square(), weights_B).sqrt()


def crps_gaussian(mean_B: Tensor, scale_B: Tensor, targets_B: Tensor) -> Tensor:
    r"""Continuous ranked probability score of Gaussian predictions, averaged over all elements.

    With $z = (y - \mu)/\sigma$: $\sigma\,[z\,(2\Phi(z) - 1) + 2\varphi(z) - 1/\sqrt\pi]$
    (Gneiting et al., 2005).

    Args:
        mean_B: Predicted means, any shape.
        scale_B: Predicted standard deviations, above zero, the same shape.
        targets_B: Observed values, the same shape.

    Returns:
        Score in the units of the targets, lower is better, a 0-d float64 tensor.

    Raises:
        TypeError: If a dtype is not float32 or float64.
        ValueError: If shapes differ, a value is missing or not finite, or a scale is not above zero.
    """
    for name, values in (("mean_B", mean_B), ("scale_B", scale_B), ("targets_B", targets_B)):
        check_float(name, values)
        check_same_shape(name, values, "targets_B", targets_B)
    lowest = scale_B.min().item()
    if lowest <= 0:
        raise ValueError(f"`scale_B` must be above zero; got {lowest:.4g}. Pass standard deviations.")
    z = ((targets_B - mean_B) / scale_B).double()
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    unit_crps = z * torch.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi)
    return (scale_B * unit_crps).mean()


def crps_draws(draws_SB: Tensor, targets_B: Tensor) -> Tensor:
    r"""Continuous ranked probability score from draws, averaged over the B points.

    The energy form $E|X - y| - \frac12 E|X - X'|$ by its fair estimator, which does not pair a draw with itself,
    $\frac1S \sum_s |x_s - y| - \frac{1}{2S(S-1)} \sum_{s,t} |x_s - x_t|$: unbiased for any S >= 2, so that few and
    many draws can be compared (Ferro, 2014). A single point may score below zero. Sorted: O(S log S) per point.

    Args:
        draws_SB: Draws from the predictive distribution, noise included, shape (S, B) with S >= 2.
        targets_B: Observed values, shape (B,).

    Returns:
        Score in the units of the targets, lower is better, a 0-d float64 tensor.

    Raises:
        TypeError: If a dtype is not float32 or float64.
        ValueError: If shapes do not fit, a value is missing or not finite, or there are fewer than two draws.
    """
    check_float("draws_SB", draws_SB, 2)
    check_float("targets_B", targets_B, 1)
    check_same_shape("draws_SB[0]", draws_SB[0], "targets_B", targets_B)
    num_draws = draws_SB.shape[0]
    if num_draws < 2:
        raise ValueError("`draws_SB` must hold at least 2 draws for the fair estimator; got 1. Draw more.")
    errors_SB = (draws_SB - targets_B).double()
    # Of the sorted draws, x_(s) is added once for each smaller draw and subtracted once for each larger.
    coefficients_S = 2 * torch.arange(num_draws, device=draws_SB.device, dtype=torch.float64) - (num_draws - 1)
    pairs_B = coefficients_S @ errors_SB.sort(0).values
    return (errors_SB.abs().mean(0) - pairs_B / (num_draws * (num_draws - 1))).mean()
