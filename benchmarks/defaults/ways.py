"""The ways to predict: methods of the library with their own defaults, and other learners on the same rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

import torchbayes as tb
from benchmarks.defaults.sets import Problem

Numbers = dict[str, float]
Way = Callable[[Problem, int], Numbers]
LEVEL, _HALF = 0.9, 1.6448536269514722  # of intervals, and their half width in standard deviations
_MOST = {"regression": 1000, "classes": 500}  # rows of a Gaussian process, whose cost grows with their cube


def _method(settings: Any, dropout: float = 0.0) -> Way:
    """Return a way: `tb.fit` with settings, and `tb.evaluate`; of a network that has dropout, if a rate is given."""

    def way(problem: Problem, seed: int) -> Numbers:
        problem = problem.with_dropout(dropout) if dropout else problem
        posterior = tb.fit(problem.model, problem.data.train, settings, seed=seed, callbacks=())
        prediction = tb.predict(posterior, problem.data.test.inputs)
        results = tb.evaluate(prediction, problem.data.test.targets).metrics
        kept = {name: float(results[name]) for name in ("nll", "rmse", "accuracy", "ece") if name in results}
        if problem.is_regression:
            kept["coverage"] = _covered(*prediction.interval(LEVEL), problem.data.test.targets)
        return {**kept, "problems": float(len(posterior.problems))}

    return way


def _covered(low: Tensor, high: Tensor, targets: Tensor) -> float:
    return float(((low <= targets) & (targets <= high)).double().mean())


def _arrays(problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    train, test = problem.data.train, problem.data.test
    inputs = [part.inputs.flatten(1).numpy() for part in (train, test)]
    return inputs[0], train.targets.numpy().ravel(), inputs[1], test.targets.numpy().ravel()


def _normal(mean: np.ndarray, sd: np.ndarray | float, targets: np.ndarray) -> Numbers:
    """Return the scores of normal predictions."""
    z = (targets - mean) / sd
    return {
        "nll": float(np.mean(0.5 * z**2 + np.log(sd) + 0.5 * math.log(2 * math.pi))),
        "rmse": float(np.sqrt(np.mean((targets - mean) ** 2))),
        "coverage": float(np.mean(np.abs(z) <= _HALF)),
    }


def _classes(probs: np.ndarray, targets: np.ndarray) -> Numbers:
    """Return the scores of class probabilities, which are kept above 1e-6: forests say 0."""
    probs = np.clip(probs, 1e-6, 1)
    return {
        "nll": float(-np.mean(np.log(probs[np.arange(len(targets)), targets.astype(int)]))),
        "accuracy": float(np.mean(probs.argmax(1) == targets)),
    }


def _forest(problem: Problem, seed: int) -> Numbers:
    """A random forest; numbers with normal noise of the out-of-bag residuals."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    inputs, targets, new, wanted = _arrays(problem)
    if not problem.is_regression:
        return _classes(RandomForestClassifier(300, random_state=seed).fit(inputs, targets).predict_proba(new), wanted)
    forest = RandomForestRegressor(300, oob_score=True, random_state=seed).fit(inputs, targets)
    return _normal(forest.predict(new), float(np.std(targets - forest.oob_prediction_)), wanted)


def _boosting(problem: Problem, seed: int) -> Numbers:
    """Boosted trees: calibrated by five folds; numbers with normal noise of the residuals of five folds."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.model_selection import cross_val_predict

    inputs, targets, new, wanted = _arrays(problem)
    if not problem.is_regression:
        folds = min(5, int(np.bincount(targets).min()))
        trees = CalibratedClassifierCV(HistGradientBoostingClassifier(random_state=seed), cv=max(folds, 2))
        return _classes(trees.fit(inputs, targets).predict_proba(new), wanted)
    trees = HistGradientBoostingRegressor(random_state=seed)
    noise = float(np.std(targets - np.asarray(cross_val_predict(trees, inputs, targets, cv=5))))
    return _normal(trees.fit(inputs, targets).predict(new), noise, wanted)


def _process(problem: Problem, seed: int) -> Numbers:
    """A Gaussian process with a length for each input, on at most 1,000 rows (classes: one length, 500 rows)."""
    from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    inputs, targets, new, wanted = _arrays(problem)
    most = _MOST["regression" if problem.is_regression else "classes"]
    chosen = np.random.default_rng(seed).permutation(len(inputs))[:most]
    inputs, targets = inputs[chosen], targets[chosen]
    width = math.sqrt(inputs.shape[1])
    if not problem.is_regression:
        kernel = ConstantKernel(1.0) * RBF(width)
        return _classes(
            GaussianProcessClassifier(kernel, random_state=seed).fit(inputs, targets).predict_proba(new), wanted
        )
    kernel = ConstantKernel(1.0) * RBF([width] * inputs.shape[1], (1e-2, 1e4)) + WhiteKernel(0.1, (1e-6, 10.0))
    process: Any = GaussianProcessRegressor(kernel, random_state=seed).fit(inputs, targets)
    mean, sd = process.predict(new, return_std=True)
    return _normal(mean, sd, wanted)


METHODS: dict[str, Way] = {
    "single network": _method(tb.MAP()),
    "deep ensemble": _method(tb.MAP(members=5)),
    "SWA": _method(tb.SWA()),
    "SWAG": _method(tb.SWAG()),
    "MultiSWAG": _method(tb.SWAG(members=5)),
    "Laplace": _method(tb.Laplace()),
    "online Laplace": _method(tb.OnlineLaplace()),
    "mean field": _method(tb.VI()),
    "IVON": _method(tb.IVON()),
    "IVON, 5 members": _method(tb.IVON(members=5)),
    "normalising flow": _method(tb.NormalizingFlow()),
    "MNF": _method(tb.MNF()),
    "SGLD": _method(tb.SGLD()),
    "SGHMC": _method(tb.SGHMC()),
    "SGNHT": _method(tb.SGNHT()),
    "SVGD": _method(tb.SVGD()),
    "repulsive ensemble": _method(tb.RepulsiveEnsemble()),
    "VBLL": _method(tb.VBLL()),
    "MC dropout": _method(tb.MCDropout(), dropout=0.1),
    "concrete dropout": _method(tb.ConcreteDropout(), dropout=0.1),
}
PEERS: dict[str, Way] = {"random forest": _forest, "boosted trees": _boosting, "Gaussian process": _process}
WAYS = {**METHODS, **PEERS}
