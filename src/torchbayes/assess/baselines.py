"""Predictors that need no network, on the same rows: a constant, a linear model and boosted trees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbayes.assess.evaluate import evaluate
from torchbayes.assess.evaluation import Evaluation
from torchbayes.model.likelihoods import Bernoulli, Gaussian, Poisson, Probit
from torchbayes.model.likelihoods.weighted import unweighted
from torchbayes.predictive.average import Predictive
from torchbayes.randomness.seeds import Purpose, generator

_VALUES = 2_000_000  # of inputs, for each class: fits then take seconds
_FEWEST = 10  # rows
_FOLDS = 5
_SENTENCES = {
    "constant": "Constant: a prediction that is the same for every row, from the training targets alone.",
    "linear": "Linear: ridge or logistic regression.",
    "trees": "Trees: boosted ones, by scikit-learn.",
}
_AHEAD = {"linear": "a linear model predicts", "trees": "boosted trees predict"}


def baselines(model: Any, train: Any, test: Any, *, target_scale: float = 1.0) -> dict[str, Evaluation]:
    """Return the scores of predictors that need no network, by name: what a method is compared with.

    - "constant" is that of `constant`.
    - "linear": ridge regression whose penalty leave-one-out errors choose, or logistic regression.
    - "trees": histogram gradient boosting.

    The last two are scikit-learn's, otherwise with its defaults, where inputs are rows of numbers and targets a class
    or a number each. Of many rows they see a random part, which they learn in seconds. A number has normal noise
    around the prediction, of the standard deviation of the residuals in 5 folds. With N rows, probabilities p are mixed
    with the shares of the classes: (N p + share)/(N + 1), so that no class is impossible.

    Args:
        model: of the fit, for its likelihood.
        train: training rows, inputs (N, D) and targets.
        test: test rows, likewise.
        target_scale: units of the raw targets per unit of these.

    Returns:
        Name -> evaluation on the test rows; without those that such targets do not allow.
    """
    same = constant(model, train[1], test[1], target_scale=target_scale)
    if same is None:
        return {}
    return {"constant": same, **_learned(model, train, test, same=same, target_scale=target_scale)}


def _learned(model: Any, train: Any, test: Any, *, same: Evaluation, target_scale: float) -> dict[str, Evaluation]:
    inputs, targets = train
    vectors = all(
        isinstance(rows, Tensor) and rows.ndim == 2 and rows.is_floating_point() for rows in (inputs, test[0])
    )
    if not vectors or len(inputs) < _FEWEST or isinstance(unweighted(model.likelihood), Poisson):
        return {}
    labels = labels_of(model, targets)
    if labels is None and targets.shape[1:] not in {(), (1,)}:
        return {}
    classes = 1 if labels is None or same.probs is None else same.probs.shape[-1]
    order = torch.randperm(len(inputs), generator=generator(Purpose.BASELINES, 0))
    order = order[: max(_VALUES // (inputs.shape[1] * classes), _FEWEST)]
    x, new = (rows.detach().cpu().double().numpy() for rows in (inputs[order], test[0]))
    if not np.isfinite(x).all() or not np.isfinite(new).all():
        return {}
    if labels is None or same.probs is None:
        y = targets[order].detach().cpu().double().reshape(-1).numpy()
        return _of_numbers(x, y, new, test[1], target_scale=target_scale)
    y = labels[order].cpu().numpy()
    return _of_classes(x, y, new, labels_of(model, test[1]), shares_BK=same.probs) if len(set(y)) > 1 else {}


def _of_numbers(
    x: np.ndarray, y: np.ndarray, new: np.ndarray, targets: Tensor, *, target_scale: float
) -> dict[str, Evaluation]:
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeCV
    from sklearn.model_selection import KFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    kinds = {
        "linear": make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 3, 13))),
        "trees": HistGradientBoostingRegressor(random_state=0),
    }
    scores, folds, true = {}, KFold(_FOLDS, shuffle=True, random_state=0), targets.double().cpu().reshape(-1, 1)
    for name, kind in kinds.items():
        sd = float(np.sqrt(np.mean((cross_val_predict(kind, x, y, cv=folds) - y) ** 2)))
        if sd > 0:
            mean = torch.from_numpy(kind.fit(x, y).predict(new)).reshape(1, -1, 1)
            scores[name] = evaluate(Predictive(mean, Gaussian(sd)), true, target_scale=target_scale)
    return scores


def _of_classes(
    x: np.ndarray, y: np.ndarray, new: np.ndarray, labels: Tensor | None, *, shares_BK: Tensor
) -> dict[str, Evaluation]:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    kinds = {
        "linear": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        "trees": HistGradientBoostingClassifier(random_state=0),
    }
    scores, rows = {}, len(y)
    for name, kind in kinds.items():
        fitted = kind.fit(x, y)
        probs_BK = torch.zeros_like(shares_BK, dtype=torch.float64)
        probs_BK[:, torch.from_numpy(fitted.classes_)] = torch.from_numpy(fitted.predict_proba(new)).double()
        scores[name] = evaluate(Predictive.from_probs((rows * probs_BK + shares_BK) / (rows + 1)), labels)
    return scores


def described(others: Iterable[str]) -> str:
    """Return what predictors of these names are."""
    return " ".join(_SENTENCES[name] for name in others if name in _SENTENCES)


def warnings_of(evaluation: Evaluation, others: Mapping[str, Evaluation]) -> list[str]:
    """Return a warning for each predictor by which the targets are more likely than by a fit, beyond chance.

    Of the constant one chance is no excuse.
    """
    warnings = [worse(evaluation.metrics, others["constant"].metrics)] if "constant" in others else []
    for name, sentence in _AHEAD.items():
        if name in others and _is_ahead(others[name], evaluation):
            nll = f"{others[name].metrics['nll']:.4g} against {evaluation.metrics['nll']:.4g}"
            warnings.append(f"Warning: {sentence} the targets better, with an NLL of {nll}.")
    return list(filter(None, warnings))


def _is_ahead(other: Evaluation, evaluation: Evaluation) -> bool:
    """Return whether log densities are higher by more than chance: by 1.96 standard errors of their mean difference."""
    if other.log_prob.shape != evaluation.log_prob.shape or len(other.log_prob) < 2 or evaluation.weights is not None:
        return False
    gain_N = other.log_prob.double().cpu() - evaluation.log_prob.double().cpu()
    return bool(gain_N.mean() > 1.96 * gain_N.std() / len(gain_N) ** 0.5)


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
