"""Scores of predictions against observed targets: accuracy and proper scoring rules.

Proper rules (NLL, Brier, CRPS) are lowest in expectation for the true distribution (Gneiting & Raftery, 2007,
"Strictly proper scoring rules, prediction, and estimation").
"""

import math

import torch
from torch import Tensor

from torchbayes.metrics._checks import check_float, check_labels, check_probs, check_same_shape, weighted_mean

_AT_ONCE = 2**20  # numbers held at once


def accuracy(probs_BK: Tensor, targets_B: Tensor, *, weights_B: Tensor | None = None) -> Tensor:
    """Return the share of rows whose most probable class is the target, 0-d float64; of tied classes the first counts.

    Args:
        probs_BK: Class probabilities.
        targets_B: Integer classes in 0..K-1, or soft labels, shape (B, K): the share of each.
        weights_B: How often each row counts, at least 0; once if None.

    Raises:
        TypeError: If a dtype is wrong.
        ValueError: If shapes, classes or probabilities are wrong.
    """
    check_probs("probs_BK", probs_BK, 2)
    return weighted_mean(hits(probs_BK, check_labels(targets_B, probs_BK)), weights_B)


def hits(probs_BK: Tensor, targets_B: Tensor) -> Tensor:
    """Return 1 where the most probable class is the target, else 0, (B,); for soft labels its share in them."""
    predicted_B = probs_BK.argmax(-1)
    if targets_B.is_floating_point():
        return targets_B.gather(-1, predicted_B.unsqueeze(-1)).squeeze(-1).double()
    return (predicted_B == targets_B).double()


def nll(log_prob_B: Tensor, *, weights_B: Tensor | None = None) -> Tensor:
    r"""Return the mean negative log-probability, $-\frac1B \sum_b \log p(y_b \mid x_b)$, in nats, 0-d float64.

    Args:
        log_prob_B: Log-probability or log-density of each target. For a model average this is the log of the
            averaged probability. Minus infinity is allowed and makes the score infinite.
        weights_B: How often each row counts, at least 0; once if None.

    Raises:
        TypeError: If the dtype is not float32 or float64.
        ValueError: If the input is not a non-empty vector free of NaN.
    """
    check_float("log_prob_B", log_prob_B, 1, finite=False)
    return -weighted_mean(log_prob_B, weights_B)


def brier(probs_BK: Tensor, targets_B: Tensor, *, weights_B: Tensor | None = None) -> Tensor:
    r"""Return the Brier score, $\frac1B \sum_b \sum_k (p_{bk} - [y_b = k])^2$, summed over classes (Brier, 1950).

    It is a 0-d float64 tensor in [0, 2]. For two classes it is twice the one-column form $(p_{b1} - y_b)^2$ that
    some libraries report.

    Args:
        probs_BK: Class probabilities; for a Bernoulli probability p the two columns are 1 - p and p.
        targets_B: Integer classes in 0..K-1, or soft labels, shape (B, K): the share of each.
        weights_B: How often each row counts, at least 0; once if None.

    Raises:
        TypeError: If a dtype is wrong.
        ValueError: If shapes, classes or probabilities are wrong.
    """
    check_probs("probs_BK", probs_BK, 2)
    return weighted_mean(squared_distance(probs_BK, check_labels(targets_B, probs_BK)), weights_B)


def squared_distance(probs_BK: Tensor, targets_B: Tensor) -> Tensor:
    """Return the Brier score of each row, (B,)."""
    if targets_B.is_floating_point():  # the mean over labels drawn from the soft ones
        return (targets_B.sum(-1) * probs_BK.square().sum(-1)) + (targets_B * (1 - 2 * probs_BK)).sum(-1)
    return (probs_BK - torch.nn.functional.one_hot(targets_B, probs_BK.shape[1])).square().sum(-1)


def rmse(mean_B: Tensor, targets_B: Tensor, *, weights_B: Tensor | None = None) -> Tensor:
    r"""Return the root mean squared error, $\sqrt{\frac1B \sum_b (\mu_b - y_b)^2}$, over all elements, 0-d float64.

    Args:
        mean_B: Predicted means, any shape.
        targets_B: Observed values, the same shape.
        weights_B: How often each counts, the same shape, at least 0; once if None.

    Raises:
        TypeError: If a dtype is not float32 or float64.
        ValueError: If shapes differ, or a value is missing or not finite.
    """
    check_float("mean_B", mean_B)
    check_float("targets_B", targets_B)
    check_same_shape("mean_B", mean_B, "targets_B", targets_B)
    return weighted_mean((mean_B - targets_B).double().square(), weights_B).sqrt()


def crps_gaussian(mean_B: Tensor, scale_B: Tensor, targets_B: Tensor, *, weights_B: Tensor | None = None) -> Tensor:
    r"""Return the continuous ranked probability score of Gaussian predictions, averaged over all elements, 0-d float64.

    With $z = (y - \mu)/\sigma$: $\sigma\,[z\,(2\Phi(z) - 1) + 2\varphi(z) - 1/\sqrt\pi]$ (Gneiting et al., 2005),
    in the units of the targets; lower is better.

    Args:
        mean_B: Predicted means, any shape.
        scale_B: Predicted standard deviations, above zero, the same shape.
        targets_B: Observed values, the same shape.
        weights_B: How often each counts, the same shape, at least 0; once if None.

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
    return weighted_mean(scale_B * unit_crps, weights_B)


def crps_normals(mean_SB: Tensor, scale_SB: Tensor, targets_B: Tensor, *, weights_B: Tensor | None = None) -> Tensor:
    r"""Return the continuous ranked probability score of equal mixtures of S Gaussians, averaged over all elements.

    $\frac1S \sum_s A(y - \mu_s, \sigma_s^2) - \frac{1}{2 S^2} \sum_{s,t} A(\mu_s - \mu_t, \sigma_s^2 +
    \sigma_t^2)$, where $A(m, v) = m\,(2\Phi(m/\sqrt v) - 1) + 2 \sqrt v\,\varphi(m/\sqrt v)$ is the mean absolute
    value of a Gaussian (Grimit et al., 2006). It is a 0-d float64 tensor in the units of the targets; lower is
    better. Exact, in O(S²) for each element; memory is bounded.

    Args:
        mean_SB: Means of the components, shape (S, ...).
        scale_SB: Their standard deviations, above zero, the same shape.
        targets_B: Observed values, the shape of one component.
        weights_B: How often each counts, the same shape, at least 0; once if None.

    Raises:
        TypeError: If a dtype is not float32 or float64.
        ValueError: If shapes differ, a value is missing or not finite, or a scale is not above zero.
    """
    for name, values in (("mean_SB", mean_SB), ("scale_SB", scale_SB), ("targets_B", targets_B)):
        check_float(name, values)
    check_same_shape("mean_SB", mean_SB, "scale_SB", scale_SB)
    if mean_SB.ndim == 0:
        raise ValueError("`mean_SB` must have the components on its first axis; got a single number.")
    check_same_shape("mean_SB[0]", mean_SB[0], "targets_B", targets_B)
    lowest = scale_SB.min().item()
    if lowest <= 0:
        raise ValueError(f"`scale_SB` must be above zero; got {lowest:.4g}. Pass standard deviations.")
    return weighted_mean(normals_crps(mean_SB, scale_SB, targets_B), weights_B)


def normals_crps(mean_SB: Tensor, scale_SB: Tensor, targets_B: Tensor) -> Tensor:
    """Return the score of each target under its mixture of S Gaussians, as `crps_normals` defines it; float64."""
    draws, shape = len(mean_SB), targets_B.shape
    left, right = torch.triu_indices(draws, draws, 1, device=mean_SB.device)
    columns = (mean_SB.reshape(draws, -1), scale_SB.reshape(draws, -1), targets_B.reshape(1, -1))
    scores = []
    at_once = max(1, _AT_ONCE // (len(left) + draws))
    for parts in zip(*(each.split(at_once, dim=1) for each in columns), strict=True):
        mean, scale, target = (values.double() for values in parts)
        pairs = _mean_absolute(mean[left] - mean[right], torch.hypot(scale[left], scale[right])).sum(0)
        same = scale.sum(0) / math.sqrt(math.pi)  # half the mean distance of two draws of one component
        scores.append(_mean_absolute(target - mean, scale).mean(0) - (same + pairs) / draws**2)
    return torch.cat(scores).reshape(shape)


def _mean_absolute(mean: Tensor, scale: Tensor) -> Tensor:
    """Return E|X| of X ~ N(mean, scale²)."""
    z = mean / scale
    return mean * torch.erf(z / math.sqrt(2)) + scale * math.sqrt(2 / math.pi) * torch.exp(-0.5 * z.square())


def crps_draws(draws_SB: Tensor, targets_B: Tensor, *, weights_B: Tensor | None = None) -> Tensor:
    r"""Return the continuous ranked probability score from draws, averaged over the B points, 0-d float64.

    The energy form $E|X - y| - \frac12 E|X - X'|$ by its fair estimator, which does not pair a draw with itself,
    $\frac1S \sum_s |x_s - y| - \frac{1}{2S(S-1)} \sum_{s,t} |x_s - x_t|$: unbiased for any S >= 2, so that few and
    many draws can be compared (Ferro, 2014). It is in the units of the targets; lower is better. A single point may
    score below zero. Sorted: O(S log S) per point.

    Args:
        draws_SB: Draws from the predictive distribution, noise included with S >= 2.
        targets_B: Observed values.
        weights_B: How often each point counts, at least 0; once if None.

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
    return weighted_mean(draws_crps(draws_SB, targets_B), weights_B)


def draws_crps(draws_SB: Tensor, targets_B: Tensor) -> Tensor:
    """Return the score of each target, (B,), by the estimator of `crps_draws`; float64."""
    num_draws = len(draws_SB)
    errors_SB = (draws_SB - targets_B).double()
    # In sorted order, x_(s) is added once for each smaller draw and subtracted once for each larger draw.
    coefficients_S = 2 * torch.arange(num_draws, device=draws_SB.device, dtype=torch.float64) - (num_draws - 1)
    pairs_B = coefficients_S @ errors_SB.sort(0).values
    return errors_SB.abs().mean(0) - pairs_B / (num_draws * (num_draws - 1))
