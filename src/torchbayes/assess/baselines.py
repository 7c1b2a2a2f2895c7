"""Predictors that need no network, on the same rows: a constant, a linear model and boosted trees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbayes.assess.constant import constant, labels_of, worse
from torchbayes.assess.evaluate import evaluate
from torchbayes.assess.evaluation import Evaluation
from torchbayes.model.likelihoods import Gaussian, Poisson
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
