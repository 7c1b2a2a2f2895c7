"""What a predictive says of each row, as named tensors, in operations that export: no branch depends on a number."""

from __future__ import annotations

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from torchbayes.model.likelihoods.dirichlet import DirichletCategorical
from torchbayes.model.likelihoods.quantiles import average_quantile

_NEAR, _TERMS = 0.1, 16  # below |r| = 0.1 the series to the 16th power is exact to 1e-16


def summary(
    distribution: Distribution, *, spread: Tensor | None = None, level: float | None = 0.95
) -> dict[str, Tensor]:
    """Return the average of S predictive distributions and its uncertainty, named as in a `Predictive`.

    `distribution` has batch shape (S, B, ...); `spread` is the variance of each draw's outputs in closed form,
    (S, B, ...), under a normal likelihood. For classes the result has `probs` (B, ..., K), and `entropy`, its parts
    `mutual_information` and `expected_entropy`, (B, ...) in nats. For numbers it has `mean`, `variance`, its parts
    `epistemic` and `aleatoric`, and the ends of the central interval, `lower` and `upper`, (B, ...), unless `level`
    is None or the distribution has no `cdf`.
    """
    if isinstance(distribution, distributions.Categorical | distributions.Bernoulli):
        return _of_classes(distribution)
    return _of_numbers(distribution, spread, level)


def _of_classes(classes: distributions.Categorical | distributions.Bernoulli) -> dict[str, Tensor]:
    probs = torch.as_tensor(classes.probs)
    all_probs = probs
    if isinstance(classes, distributions.Bernoulli):  # from logits, because 1 − p would lose small probabilities
        other = torch.as_tensor(-classes.logits).sigmoid() if "logits" in vars(classes) else 1 - probs
        all_probs = torch.stack([other, probs], dim=-1)
    mean = all_probs.mean(0)
    mutual, expected = _divergence(all_probs, mean), _entropy(all_probs).mean(0)
    if isinstance(classes, DirichletCategorical):
        within = classes.mutual_information().mean(0)
        mutual, expected = mutual + within, expected - within
    return {
        "probs": probs.mean(0),
        "entropy": _entropy(mean),
        "mutual_information": mutual,
        "expected_entropy": expected,
    }


def _of_numbers(numbers: Distribution, spread: Tensor | None, level: float | None) -> dict[str, Tensor]:
    means, noise, predictive = numbers.mean, numbers.variance, numbers
    mean = means.mean(0)  # the first of its kind, because ONNX gives the name `mean` to no other node then
    between = means.var(0, correction=0)
    if spread is not None:
        between = between + spread.mean(0)
        predictive = distributions.Normal(means, (noise + spread).sqrt(), validate_args=False)
    aleatoric = noise.mean(0)
    moments = {"mean": mean, "variance": between + aleatoric, "epistemic": between, "aleatoric": aleatoric}
    if level is None:
        return moments
    try:
        lower, upper = average_quantile(predictive, ((1 - level) / 2, (1 + level) / 2))
    except NotImplementedError:
        return moments
    return {**moments, "lower": lower, "upper": upper}


def _entropy(probs: Tensor) -> Tensor:
    """Return −Σ_k p_k log p_k over the last axis, with 0 log 0 = 0."""
    return -(probs * probs.clamp_min(torch.finfo(probs.dtype).tiny).log()).sum(-1)


def _divergence(each: Tensor, mean: Tensor) -> Tensor:
    """Return the mean divergence of S distributions from their mean, as a sum whose terms do not cancel.

    It is Σ_sk p̄_k φ(p_sk / p̄_k − 1) / S with φ(r) = (1 + r) log(1 + r) − r, by its series where r is small.
    """
    if len(each) == 1:
        return torch.zeros_like(mean[..., 0])
    kind = torch.finfo(each.dtype)
    apart = (each - mean) / mean.clamp_min(kind.tiny)
    series = torch.zeros_like(apart)
    for power in range(_TERMS, 1, -1):  # Σ (−1)ⁿ rⁿ / (n (n − 1)), from the last term
        series = series * apart + (-1) ** power / (power * (power - 1))
    convex = apart.clamp_min(kind.eps - 1).log1p() * (1 + apart) - apart
    return (torch.where(apart.abs() < _NEAR, series * apart.square(), convex) * mean).sum(-1).mean(0)
