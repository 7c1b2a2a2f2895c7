"""Inverse problems of differential equations whose solutions are known, simulated from their equations.

The equations, sensors and noise are those of four examples of NeuralUQ (Zou et al. 2024), of which the first comes from
Yang et al. (2021); the noise is drawn anew for each seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, distributions, nn

import torchbayes as tb
from torchbayes.inverse import Problem, derivatives

_DOUBLE = torch.float64


@dataclass(frozen=True)
class Simulated:
    """A problem, its rows, and what is true.

    Attributes:
        problem: network, equations and coefficients.
        rows: inputs and targets, with noise.
        points: where functions are compared, (n, d).
        truth: name of a quantity -> its values at the points, (n, K).
        coefficients: the true numbers by name.
    """

    problem: Problem
    rows: tuple[dict[str, Tensor], Tensor]
    points: Tensor
    truth: Mapping[str, Tensor]
    coefficients: Mapping[str, float]


def perceptron(inputs: int, outputs: int, hidden: tuple[int, ...]) -> nn.Sequential:
    """Return a stack of linear layers and tanh, in double precision, as curvatures of third derivatives need it."""
    sizes = [inputs, *hidden, outputs]
    layers = [nn.Linear(a, b, dtype=_DOUBLE) for a, b in pairwise(sizes)]
    return nn.Sequential(*[module for layer in layers for module in (layer, nn.Tanh())][:-1])


def poisson(hidden: tuple[int, ...], source: Generator) -> Simulated:
    """0.01 u″ + k tanh u = f with u = sin³ 6x on [−0.7, 0.7] and k = 0.7: 8 values of u, 32 of f, noise 0.1."""

    def equation(u: Any, x: Tensor, k: Any) -> Tensor:
        value, _, second = derivatives(u, x, order=2)
        return 0.01 * second + k["k"] * value.tanh()

    def exact(x: Tensor) -> tuple[Tensor, Tensor]:
        sine, cosine = (6 * x).sin(), (6 * x).cos()
        u = sine**3
        return u, 0.01 * 36 * (6 * sine * cosine**2 - 3 * u) + 0.7 * u.tanh()

    sensors, collocation = _line(-0.7, 0.7, 8), _line(-0.7, 0.7, 32)
    points = _line(-0.7, 0.7, 100)
    problem = Problem(
        perceptron(1, 1, hidden),
        {"u": lambda u, x, k: u(x), "source": equation},
        coefficients={"k": tb.priors.Normal(1.0, loc=0.5)},
        noise={"u": 0.1, "source": 0.1},
    )
    observed = {"u": (sensors, exact(sensors)[0], 0.1), "source": (collocation, exact(collocation)[1], 0.1)}
    u, f = exact(points)
    return Simulated(problem, _rows(problem, observed, source), points, {"u": u, "source": f}, {"k": 0.7})


def kraichnan_orszag(hidden: tuple[int, ...], source: Generator) -> Simulated:
    """u₁′ = a u₂u₃, u₂′ = b u₁u₃, u₃′ = −(a + b) u₁u₂, with a = b = 1 and u(0) = (1, 0.8, 0.5), for t ≤ 10.

    11 values of u₁ and u₃, 7 of u₂, and 14 times of the equations; noise 0.05.
    """

    def rates(u: Tensor, a: Any, b: Any) -> Tensor:
        first, second, third = u.unbind(-1)
        return torch.stack([a * second * third, b * first * third, -(a + b) * first * second], -1)

    def equation(u: Any, t: Tensor, k: Any) -> Tensor:
        value, slope = derivatives(u, t)
        return slope - rates(value, k["a"], k["b"])

    path = _path(lambda _, u: rates(u, 1.0, 1.0), torch.tensor([1.0, 0.8, 0.5], dtype=_DOUBLE), 10.0, 1000)
    sensors, collocation = _line(0.8, 9.2, 11), _line(0.0, 9.8, 14)
    seen = path[(100 * sensors[:, 0]).round().long()].clone()
    seen[7:, 1] = math.nan
    points = _line(0.0, 10.0, 101)
    problem = Problem(
        perceptron(1, 3, hidden),
        {"u": lambda u, t, k: u(t), "equation": equation},
        coefficients={"a": tb.priors.Normal(2.0), "b": tb.priors.Normal(2.0)},
        noise={"u": 0.05, "equation": 0.05},
    )
    observed = {"u": (sensors, seen, 0.05), "equation": (collocation, torch.zeros(14, 3, dtype=_DOUBLE), 0.05)}
    return Simulated(problem, _rows(problem, observed, source), points, {"u": path[::10]}, {"a": 1.0, "b": 1.0})


def korteweg_de_vries(hidden: tuple[int, ...], source: Generator) -> Simulated:
    """u_t − k₁ u u_x − k₂ u_xxx = f with f = 0, two solitons, k₁ = 1.5, k₂ = 0.25, noise 0.1.

    200 values of u and 100 of f in [−10, 10] × [−1.5, 1.5].
    """

    def equation(u: Any, x: Tensor, k: Any) -> Tensor:
        value, slope, _, third = derivatives(u, x, order=3)
        return derivatives(u, x, axis=1)[1] - k["k1"] * value * slope - k["k2"] * third

    def exact(x: Tensor) -> Tensor:
        place, time = x[:, :1], -x[:, 1:] / 4
        above = 3 + 4 * (2 * place - 8 * time).cosh() + (4 * place - 64 * time).cosh()
        return 12 * above / (3 * (place - 28 * time).cosh() + (3 * place - 36 * time).cosh()) ** 2

    low, high = torch.tensor([-10.0, -1.5], dtype=_DOUBLE), torch.tensor([10.0, 1.5], dtype=_DOUBLE)
    sensors, collocation = (low + (high - low) * torch.rand(n, 2, generator=source, dtype=_DOUBLE) for n in (200, 100))
    points = torch.cartesian_prod(*(_line(a, b, n)[:, 0] for a, b, n in ((-10, 10, 41), (-1.5, 1.5, 7))))
    problem = Problem(
        perceptron(2, 1, hidden),
        {"u": lambda u, x, k: u(x), "source": equation},
        coefficients={"k1": distributions.LogNormal(0.0, 1.0), "k2": distributions.LogNormal(0.0, 1.0)},
        noise={"u": 0.1, "source": 0.1},
    )
    observed = {"u": (sensors, exact(sensors), 0.1), "source": (collocation, 0 * collocation[:, :1], 0.1)}
    rows = _rows(problem, observed, source)
    return Simulated(problem, rows, points, {"u": exact(points)}, {"k1": 1.5, "k2": 0.25})


def epidemic(hidden: tuple[int, ...], source: Generator) -> Simulated:
    """I′ = β I S/N − γI − νI, R′ = γI, D′ = νI, S = N − I − R − D, a rate β of time that is unknown: days 0 to 159.

    In units of 100,000 people of 604.6; time in units of 100 days. Noise 0.1 of I, R and D, and 0.02 a day of the
    equations, as in the example; there the data are those of Italy in 2020, whose rates are unknown.
    """
    people, gamma, nu = 604.6, 0.025, 0.006

    def rate(days: Tensor) -> Tensor:
        return 0.02 + 0.23 / (1 + ((days - 28) / 5).exp())

    def rates(u: Tensor, beta: Any, gamma: Any, nu: Any) -> Tensor:
        ill = u[..., 0]
        infected = beta * ill * (1 - u.sum(-1) / people)
        return torch.stack([infected - (gamma + nu) * ill, gamma * ill, nu * ill], -1)

    def spread(x: Tensor, k: Any) -> Tensor:
        return F.softplus(k["beta"](x))

    def equation(u: Any, x: Tensor, k: Any) -> Tensor:
        value, slope = derivatives(u, x)
        return slope / 100 - rates(value, spread(x, k)[..., 0], k["gamma"], k["nu"])

    start = torch.tensor([0.003, 0.0, 0.0], dtype=_DOUBLE)
    path = _path(lambda day, u: rates(u, rate(day), gamma, nu), start, 160.0, 1600)[::10]
    days = torch.arange(160, dtype=_DOUBLE)
    points = (days / 100)[::4, None]
    problem = Problem(
        perceptron(1, 3, hidden),
        {"u": lambda u, x, k: u(x), "equation": equation, "beta": lambda u, x, k: spread(x, k)},
        coefficients={
            "gamma": distributions.LogNormal(-3.5, 1.0),
            "nu": distributions.LogNormal(-3.5, 1.0),
            "beta": perceptron(1, 1, (hidden[-1],)),
        },
        noise={"u": 0.1, "equation": 0.02},
    )
    rows = _rows(
        problem,
        {"u": ((days / 100)[:, None], path[:160], 0.1), "equation": ((days / 100)[::4, None], 0 * path[:160:4], 0.0)},
        source,
    )
    truth = {"u": path[:160:4], "beta": rate(days)[::4, None]}
    return Simulated(problem, rows, points, truth, {"gamma": gamma, "nu": nu})


CASES: dict[str, Callable[[tuple[int, ...], Generator], Simulated]] = {
    "poisson": poisson,
    "kraichnan_orszag": kraichnan_orszag,
    "korteweg_de_vries": korteweg_de_vries,
    "epidemic": epidemic,
}


def _line(low: float, high: float, count: int) -> Tensor:
    return torch.linspace(low, high, count, dtype=_DOUBLE).unsqueeze(-1)


def _rows(problem: Problem, observed: Mapping[str, Any], source: Generator) -> tuple[dict[str, Tensor], Tensor]:
    """Return rows with normal noise: name -> (points, values, scale of the noise)."""
    noisy = {
        name: (points, values + scale * torch.randn(values.shape, generator=source, dtype=_DOUBLE))
        for name, (points, values, scale) in observed.items()
    }
    return problem.rows(noisy)


def _path(rates: Callable[[Tensor, Tensor], Tensor], start: Tensor, end: float, steps: int) -> Tensor:
    """Return the solution u′ = rates(t, u) at steps + 1 times, by the classical Runge-Kutta method."""
    values, step = [start], end / steps
    for number in range(steps):
        time, u = torch.tensor(number * step, dtype=_DOUBLE), values[-1]
        first = rates(time, u)
        second = rates(time + step / 2, u + step / 2 * first)
        third = rates(time + step / 2, u + step / 2 * second)
        last = rates(time + step, u + step * third)
        values.append(u + step / 6 * (first + 2 * second + 2 * third + last))
    return torch.stack(values)
