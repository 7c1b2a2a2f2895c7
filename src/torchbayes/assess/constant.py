"""The simplest prediction, the same for every row, from the training targets alone: a method must beat it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchbayes.assess.evaluate import evaluate
from torchbayes.assess.evaluation import Evaluation
from torchbayes.model.likelihoods import Bernoulli, Gaussian, Poisson, Probit
from torchbayes.model.likelihoods.weighted import unweighted
from torchbayes.predictive.average import Predictive


def constant(model: Any, train: Any, test: Any, *, target_scale: float = 1.0) -> Evaluation | None:
    """Return the scores of the constant predictor: shares of the classes, or a normal of the targets' mean and sd.

    Counts under a Poisson likelihood are predicted by a Poisson distribution of their mean rate. A class without
    training rows counts as one row. None where targets are neither one class nor one or several numbers for each
    row.
    """
    if not isinstance(train, Tensor) or not isinstance(test, Tensor) or train.ndim > 2 or not len(test):
        return None
    likelihood = unweighted(model.likelihood)
    labels, new = labels_of(model, train), labels_of(model, test)
    if labels is not None and new is not None:
        counts = torch.bincount(labels, minlength=max(int(new.max()) + 1, 2)).double().clamp_min(1)
        return evaluate(Predictive.from_probs((counts / counts.sum()).expand(len(new), -1)), new)
    values, targets = (t.double().reshape(len(t), -1) for t in (train, test))
    mean, sd = values.mean(0), values.std(0, correction=0)
    if isinstance(likelihood, Poisson):
        same = Predictive(mean.clamp_min(1e-12).log().expand(1, *targets.shape), Poisson())
        return evaluate(same, test.reshape(targets.shape))
    if not bool((sd > 0).all()):
        return None
    noise = Gaussian(float(sd)) if len(sd) == 1 else Gaussian(tuple(sd.tolist()))
    return evaluate(Predictive(mean.expand(1, *targets.shape), noise), targets, target_scale=target_scale)


def labels_of(model: Any, targets: Tensor) -> Tensor | None:
    """Return targets as labels of classes (N,); None for others."""
    likelihood = unweighted(model.likelihood)
    if isinstance(likelihood, Bernoulli | Probit) and targets[0].numel() == 1:
        return targets.reshape(-1).long()
    classes = not targets.is_floating_point() and targets.ndim == 1 and not isinstance(likelihood, Poisson)
    return targets if classes else None


def worse(metrics: Mapping[str, float], same: Mapping[str, float] | None) -> str:
    """Return a warning if targets are no more likely than under the constant predictor (`same`), else ""."""
    if not same or metrics["nll"] < same["nll"]:
        return ""
    return "Warning: the targets are no more likely than under a constant prediction. Do not use this fit."


def r_squared(evaluation: Evaluation) -> float | None:
    """Return R² = 1 − Σ (y − m)² / Σ (y − ȳ)² of predicted means m, ȳ the mean of these targets; None for others.

    Rows count by their weights.
    """
    mean, targets = evaluation.mean, evaluation.targets
    if "rmse" not in evaluation.metrics or mean is None or not isinstance(targets, Tensor):
        return None
    mean_NK, targets_NK = (t.double().reshape(len(mean), -1) for t in (mean, targets))
    weights_N1 = torch.ones(len(mean), 1) if evaluation.weights is None else evaluation.weights.double()[:, None]
    centre_K = (weights_N1 * targets_NK).sum(0) / weights_N1.sum()
    residual, total = (float((weights_N1 * (targets_NK - m).square()).sum()) for m in (mean_NK, centre_K))
    return None if total == 0 else 1 - residual / total
