"""Posteriors as statisticians meet them, written once for PyTorch and JAX: data by fixed seeds, parameters on the line.

A log density takes the array library, `torch` or `jax.numpy`, the data as its arrays, and one vector of parameters
without constraints; the log-Jacobians of positive and bounded parameters are part of it. Constants are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Posterior:
    """A log density and its data.

    Attributes:
        size: number of parameters.
        data: name -> array.
        log_density: (array library, data, parameters (D,)) -> number, in nats.
    """

    size: int
    data: Mapping[str, np.ndarray]
    log_density: Callable[[Any, Arrays, Any], Any]


def starts(name: str, chains: int) -> np.ndarray:
    """Return where chains start, uniform on (-2, 2), (M, D); the same on both sides."""
    return np.random.default_rng(1).uniform(-2, 2, (chains, POSTERIORS[name].size))


def _normal(values: Any, scale: float = 1.0) -> Any:
    return -0.5 * ((values / scale) ** 2).sum()


def _regression(rows: int, columns: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """Return inputs whose neighbouring columns have a correlation of one half, coefficients, and a generator."""
    random = np.random.default_rng(seed)
    noise = random.normal(size=(rows, columns))
    inputs = noise + np.roll(noise, 1, axis=1) * 0.6
    inputs[:, 0] = 1.0
    return inputs, random.normal(size=columns), random


def _linear() -> Posterior:
    x, coefficients, random = _regression(50, 5, 1)
    y = x @ coefficients + 0.5 * random.normal(size=50)

    def log_density(xp: Any, data: Arrays, w: Any) -> Any:
        rest = (data["y"] - data["x"] @ w[:5]) / xp.exp(w[5])
        return _normal(rest) - 50 * w[5] + _normal(w[:5], 5.0) + _normal(w[5], 1.0)

    return Posterior(6, {"x": x, "y": y}, log_density)


def _logistic() -> Posterior:
    x, coefficients, random = _regression(100, 6, 2)
    y = (random.uniform(size=100) < 1 / (1 + np.exp(-x @ coefficients))) * 2.0 - 1.0

    def log_density(xp: Any, data: Arrays, w: Any) -> Any:
        margin = data["y"] * (data["x"] @ w)
        return -xp.logaddexp(0 * margin, -margin).sum() + _normal(w, 2.5)

    return Posterior(6, {"x": x, "y": y}, log_density)


def _poisson() -> Posterior:
    x, coefficients, random = _regression(80, 4, 3)
    y = random.poisson(np.exp(x @ coefficients * 0.5)).astype(float)

    def log_density(xp: Any, data: Arrays, w: Any) -> Any:
        rate = data["x"] @ w
        return (data["y"] * rate - xp.exp(rate)).sum() + _normal(w, 2.5)

    return Posterior(4, {"x": x, "y": y}, log_density)


def _schools(*, centred: bool) -> Posterior:
    """Six groups of measurements whose errors are known; parameters μ, log τ, and effects or their standard scores."""
    random = np.random.default_rng(4)
    errors = np.array([9.0, 10.0, 11.0, 12.0, 15.0, 18.0])
    y = 6 + 8 * random.normal(size=6) + errors * random.normal(size=6)

    def log_density(xp: Any, data: Arrays, w: Any) -> Any:
        tau = xp.exp(w[1])
        effects = w[2:] if centred else w[0] + tau * w[2:]
        level = _normal((w[2:] - w[0]) / tau) - 6 * w[1] if centred else _normal(w[2:])
        half_cauchy = w[1] - xp.log1p((tau / 5) ** 2)
        return _normal((data["y"] - effects) / data["errors"]) + level + _normal(w[0], 5.0) + half_cauchy

    return Posterior(8, {"y": y, "errors": errors}, log_density)


def _mixture() -> Posterior:
    """Two normals in one dimension: the lower mean, log of the gap, log scales, and the logit of the share."""
    random = np.random.default_rng(5)
    y = np.concatenate([random.normal(-1.5, 0.7, size=35), random.normal(1.5, 1.0, size=45)])

    def log_density(xp: Any, data: Arrays, w: Any) -> Any:
        y, gap = data["y"], xp.exp(w[1])
        share = -xp.logaddexp(0 * w[4], -w[4]), -xp.logaddexp(0 * w[4], w[4])
        first = share[0] - w[2] - 0.5 * ((y - w[0]) / xp.exp(w[2])) ** 2
        second = share[1] - w[3] - 0.5 * ((y - w[0] - gap) / xp.exp(w[3])) ** 2
        # uniform share, mean N(0, 5²), gap half-normal of scale 5, log scales N(0, 1)
        prior = _normal(w[0], 5.0) + _normal(gap, 5.0) + w[1] + _normal(w[2:4]) + share[0] + share[1]
        return xp.logaddexp(first, second).sum() + prior

    return Posterior(5, {"y": y}, log_density)


def _gp() -> Posterior:
    """A Gaussian process with a squared exponential kernel: log length, log amplitude and log noise."""
    random = np.random.default_rng(6)
    x = np.sort(random.uniform(0, 10, size=25))
    y = np.sin(x) + 0.3 * random.normal(size=25)
    squares = (x[:, None] - x[None]) ** 2

    def log_density(xp: Any, data: Arrays, w: Any) -> Any:
        kernel = xp.exp(2 * w[1] - 0.5 * data["squares"] * xp.exp(-2 * w[0]))
        factor = xp.linalg.cholesky(kernel + (xp.exp(2 * w[2]) + 1e-6) * data["eye"])
        rest = xp.linalg.solve(factor, data["y"])
        return _normal(rest) - xp.log(xp.diagonal(factor)).sum() + _normal(w[:2]) + _normal(w[2] + 1)

    return Posterior(3, {"squares": squares, "eye": np.eye(25), "y": y}, log_density)


def _powers(xp: Any, data: Arrays, base: Any) -> Any:
    """Return the matrix of base^(t − s) for s ≤ t, which solves a linear recurrence."""
    return xp.exp(data["lags"] * xp.log(base)) * data["past"]


def _lags(count: int) -> dict[str, np.ndarray]:
    lags = np.subtract.outer(np.arange(count), np.arange(count)).astype(float)
    return {"lags": lags.clip(0), "past": (lags >= 0).astype(float)}


def _arma() -> Posterior:
    """ARMA(1, 1) about a mean: the mean, atanh φ, logit of −θ (a moving average of negative sign), log σ."""
    random = np.random.default_rng(7)
    noise, y = random.normal(size=121), np.zeros(121)
    for t in range(1, 121):
        y[t] = 0.7 * y[t - 1] + noise[t] - 0.4 * noise[t - 1]

    def log_density(xp: Any, data: Arrays, w: Any) -> Any:
        y, phi, base = data["y"] - w[0], xp.tanh(w[1]), 1 / (1 + xp.exp(-w[2]))
        rest = _powers(xp, data, base) @ (y[1:] - phi * y[:-1])  # e_t = u_t − θ e_{t−1}, with base −θ
        prior = _normal(w[0], 2.0) + _normal(w[3]) + xp.log(1 - phi**2) + xp.log(base * (1 - base))
        return _normal(rest / xp.exp(w[3])) - 120 * w[3] + prior

    return Posterior(4, {"y": y, **_lags(120)}, log_density)


def _garch() -> Posterior:
    """GARCH(1, 1): log ω, logit of α + β, and logit of the share of β in it."""
    random = np.random.default_rng(8)
    y, variance = np.zeros(200), 1.0
    for t in range(200):
        y[t] = np.sqrt(variance) * random.normal()
        variance = 0.2 + 0.15 * y[t] ** 2 + 0.65 * variance
    squares = np.concatenate([[y.var()], y[:-1] ** 2])

    def log_density(xp: Any, data: Arrays, w: Any) -> Any:
        total, share = 1 / (1 + xp.exp(-w[1])), 1 / (1 + xp.exp(-w[2]))
        beta = total * share
        variances = _powers(xp, data, beta) @ (xp.exp(w[0]) + (total - beta) * data["squares"])
        prior = _normal(w[0] + 1) + xp.log(total * (1 - total)) + xp.log(share * (1 - share))
        return -0.5 * (xp.log(variances) + data["y"] ** 2 / variances).sum() + prior

    return Posterior(3, {"y": y, "squares": squares, **_lags(200)}, log_density)


def _ill() -> Posterior:
    """Independent normals with standard deviations from 0.01 to 10."""
    scales = np.logspace(-2, 1, 20)
    return Posterior(20, {"scales": scales}, lambda xp, data, w: _normal(w / data["scales"]))


def _correlated() -> Posterior:
    """Ten normals, of which neighbours have a correlation of 0.95."""
    covariance = 0.95 ** np.abs(np.subtract.outer(np.arange(10), np.arange(10)))
    data = {"precision": np.linalg.inv(covariance)}
    return Posterior(10, data, lambda xp, data, w: -0.5 * (w @ data["precision"] @ w))


def _funnel() -> Posterior:
    """A funnel of Neal, v ~ N(0, 1) and five of N(0, e^v): mild, so that step sizes can follow it."""
    return Posterior(6, {}, lambda xp, data, w: _normal(w[0]) + _normal(w[1:] * xp.exp(-w[0] / 2)) - 2.5 * w[0])


def _student() -> Posterior:
    """A regression with errors of Student t with four degrees of freedom, and outliers among them."""
    x, coefficients, random = _regression(60, 4, 9)
    y = x @ coefficients + 0.5 * random.standard_t(2.0, size=60)

    def log_density(xp: Any, data: Arrays, w: Any) -> Any:
        rest = (data["y"] - data["x"] @ w[:4]) / xp.exp(w[4])
        return -2.5 * xp.log1p(rest**2 / 4).sum() - 60 * w[4] + _normal(w[:4], 5.0) + _normal(w[4], 1.0)

    return Posterior(5, {"x": x, "y": y}, log_density)


def _horseshoe() -> Posterior:
    """A sparse regression: standard scores, log local scales of half-Student t (ν = 3), log global scale, log noise."""
    x, _, random = _regression(50, 5, 10)
    y = x @ np.array([0.5, 2.0, 0, 0, 0]) + random.normal(size=50)

    def log_density(xp: Any, data: Arrays, w: Any) -> Any:
        local, overall = xp.exp(w[5:10]), xp.exp(w[10])
        rest = (data["y"] - data["x"] @ (w[:5] * local * overall)) / xp.exp(w[11])
        scales = (w[5:10] - 2 * xp.log1p(local**2 / 3)).sum() + w[10] - 2 * xp.log1p(overall**2 / 3)
        return _normal(rest) - 50 * w[11] + _normal(w[:5]) + scales + _normal(w[11])

    return Posterior(12, {"x": x, "y": y}, log_density)


POSTERIORS: dict[str, Posterior] = {
    "linear": _linear(),
    "logistic": _logistic(),
    "poisson": _poisson(),
    "groups": _schools(centred=False),
    "groups-centred": _schools(centred=True),
    "mixture": _mixture(),
    "gp": _gp(),
    "arma": _arma(),
    "garch": _garch(),
    "ill": _ill(),
    "correlated": _correlated(),
    "funnel": _funnel(),
    "student": _student(),
    "horseshoe": _horseshoe(),
}
