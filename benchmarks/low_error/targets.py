"""Six targets of sampler-benchmarks (Robnik, Cohn-Gordon and Seljak 2025), written once for PyTorch and JAX.

| name       | density                                                                                | size |
|------------|----------------------------------------------------------------------------------------|-----:|
| gaussian   | independent normals with variances from 1000^-1/2 to 1000^1/2                          |  100 |
| banana     | x₀ = 10 z₀, x₁ = 0.03 (x₀² − 100) + z₁                                                 |    2 |
| rosenbrock | eighteen pairs, x ~ N(1, 1), y given x ~ N(x², 0.1)                                    |   36 |
| brownian   | Brownian motion with unknown scales, ten of thirty observations missing                |   32 |
| credit     | logistic regression of 1,000 loans, scales of coefficients ~ Gamma(½, ½), local, global |   51 |
| items      | item response: 400 students, 100 questions, 30,012 answers                             |  501 |

The last three are those of the Inference Gym (Sountsov, Radul and others 2020). Parameters are without constraints;
what is scored are the squares of the model's own parameters, in which scales are positive. `targets.npz` has the data:
observations and answers of the Inference Gym (Apache License 2.0), and the German credit data in numbers of the UCI
repository (Hofmann 1994, CC BY 4.0).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.statistical.posteriors import Arrays, Posterior

PAIRS, STUDENTS, QUESTIONS = 18, 400, 100


def identity(xp: Any, w: Any) -> Any:
    """Return parameters that have no constraint."""
    del xp
    return w


def standard(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Return starts that are N(0, I)."""
    return random.normal(size=shape)


@dataclass(frozen=True)
class Target:
    """A density with what is scored, and where chains start.

    Attributes:
        posterior: the density; here of parameters (..., D), which gives (...).
        budget: gradients of a chain after tuning, after which a run ends.
        values: (array library, parameters (..., D)) -> the model's parameters (..., D).
        first: (generator, shape (M, D)) -> starts of chains.
        judged: the contraction by whose steps to low error a run ends, as in sampler-benchmarks: 0 for the mean over
            parameters, 1 for the maximum.
        exact: E[x²] and Var[x²] in closed form, (2, D); None where references.json has E[x²] and E[x⁴].
    """

    posterior: Posterior
    budget: int
    values: Callable[[Any, Any], Any] = identity
    first: Callable[[np.random.Generator, tuple[int, int]], np.ndarray] = standard
    judged: int = 1
    exact: np.ndarray | None = None

    def starts(self, chains: int) -> np.ndarray:
        """Return where chains start, (M, D); the same for every sampler."""
        return self.first(np.random.default_rng(2), (chains, self.posterior.size))


def softplus(xp: Any, values: Any) -> Any:
    """Return log(1 + e^v)."""
    if hasattr(xp, "nn"):  # PyTorch, whose logaddexp is five times slower
        return xp.nn.functional.softplus(values, threshold=40.0)
    return xp.logaddexp(values, 0 * values)


def _data() -> dict[str, np.ndarray]:
    with np.load(Path(__file__).with_name("targets.npz")) as file:
        return {name: file[name] for name in file}


def _gaussian() -> Target:
    variances = np.logspace(-1.5, 1.5, 100)
    posterior = Posterior(100, {"variances": variances}, lambda xp, data, w: -0.5 * (w**2 / data["variances"]).sum(-1))
    wide = variances.max() ** 0.5
    exact = np.stack([variances, 2 * variances**2])
    return Target(posterior, 20_000, first=lambda random, shape: wide * random.normal(size=shape), exact=exact)


def _banana() -> Target:
    def log_density(xp: Any, data: Arrays, w: Any) -> Any:
        x, y = w[..., 0], w[..., 1]
        return -0.5 * (x / 10) ** 2 - 0.5 * (y - 0.03 * (x**2 - 100)) ** 2

    return Target(Posterior(2, {}, log_density), 100_000, exact=np.array([[100.0, 19.0], [20_000.0, 4610.0]]))


def _rosenbrock() -> Target:
    def log_density(xp: Any, data: Arrays, w: Any) -> Any:
        x, y = w[..., :PAIRS], w[..., PAIRS:]
        return -0.5 * ((x - 1) ** 2 + (x**2 - y) ** 2 / 0.1).sum(-1)

    exact = np.repeat([[2.0, 10.1], [6.0, 668.02]], PAIRS, axis=1)
    return Target(Posterior(2 * PAIRS, {}, log_density), 150_000, judged=0, exact=exact)


def _brownian() -> Target:
    """Scales ~ LogNormal(0, 2²), softplus of the first two parameters; then the path."""
    observed = _data()["brownian"]
    seen = np.isfinite(observed)

    def log_density(xp: Any, data: Arrays, w: Any) -> Any:
        scales, path = softplus(xp, w[..., :2]), w[..., 2:]
        logs = xp.log(scales)
        prior = -(0.125 * logs**2 + logs + softplus(xp, -w[..., :2])).sum(-1)  # with log σ(w), the log-Jacobian
        moves = path[..., 0] ** 2 + ((path[..., 1:] - path[..., :-1]) ** 2).sum(-1)
        rest = (data["seen"] * (path - data["observed"]) ** 2).sum(-1)
        level = -0.5 * moves / scales[..., 0] ** 2 - 30 * logs[..., 0]
        return prior + level - 0.5 * rest / scales[..., 1] ** 2 - 20 * logs[..., 1]

    def values(xp: Any, w: Any) -> Any:
        return xp.concatenate([softplus(xp, w[..., :2]), w[..., 2:]], -1)

    data = {"seen": seen.astype(float), "observed": np.where(seen, observed, 0.0)}
    return Target(Posterior(32, data, log_density), 100_000, values=values)


def _credit() -> Target:
    """Logs of the global and 25 local scales, and 25 standard scores; a coefficient is the product of three."""
    table = _data()["credit"].astype(float)
    inputs = (table[:, :-1] - table[:, :-1].mean(0)) / table[:, :-1].std(0)
    data = {"inputs": np.column_stack([inputs, np.ones(len(table))]), "signs": 2 * table[:, -1] - 3}

    def log_density(xp: Any, data: Arrays, w: Any) -> Any:
        scales, scores = xp.exp(w[..., :26]), w[..., 26:]
        margins = data["signs"] * ((scores * scales[..., 1:] * scales[..., :1]) @ data["inputs"].T)
        prior = 0.5 * (w[..., :26] - scales).sum(-1) - 0.5 * (scores**2).sum(-1)
        return prior - softplus(xp, -margins).sum(-1)

    def values(xp: Any, w: Any) -> Any:
        return xp.concatenate([xp.exp(w[..., :26]), w[..., 26:]], -1)

    def first(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        return np.concatenate([np.zeros((shape[0], 26)), random.normal(size=(shape[0], 25))], 1)

    return Target(Posterior(51, data, log_density), 250_000, values=values, first=first)


def _items() -> Target:
    """Abilities of students about their mean, that mean ~ N(0.75, 1), and difficulties of questions."""
    arrays, shape = _data(), (STUDENTS, QUESTIONS)
    asked, correct = (
        np.unpackbits(arrays[name], count=STUDENTS * QUESTIONS).reshape(shape).astype(float)
        for name in ("asked", "correct")
    )

    def log_density(xp: Any, data: Arrays, w: Any) -> Any:
        abilities, mean, difficulties = w[..., :STUDENTS], w[..., STUDENTS], w[..., STUDENTS + 1 :]
        total = abilities + mean[..., None]
        odds, product = xp.exp(total)[..., :, None], 1.0
        for quarter in range(4):  # the logarithm of a product of four costs a quarter of four logarithms
            some = slice(QUESTIONS // 4 * quarter, QUESTIONS // 4 * (quarter + 1))
            chance = data["asked"][:, some] * xp.exp(-difficulties[..., None, some])
            product = product * (1 + odds * chance)
        gain = (total * data["by_student"]).sum(-1) - (difficulties * data["by_question"]).sum(-1)
        prior = (abilities**2).sum(-1) + (mean - 0.75) ** 2 + (difficulties**2).sum(-1)
        return gain - xp.log(product).sum((-2, -1)) - 0.5 * prior

    data = {"asked": asked, "by_student": correct.sum(1), "by_question": correct.sum(0)}
    return Target(Posterior(STUDENTS + 1 + QUESTIONS, data, log_density), 60_000)


TARGETS = {
    "gaussian": _gaussian(),
    "banana": _banana(),
    "rosenbrock": _rosenbrock(),
    "brownian": _brownian(),
    "credit": _credit(),
    "items": _items(),
}
