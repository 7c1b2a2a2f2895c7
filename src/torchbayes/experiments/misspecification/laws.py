"""What the data are, what the model can say, and what is known of both without sampling.

With x uniform on [−1, 1], y = m(x) + √v(x) ε and the likelihood N(f_w(x), σ²), the weights nearest to the law in
Kullback-Leibler divergence minimise ½ ∫ (m − f_w)². At these weights w*, with

    H = E[∇f ∇fᵀ − (m − f) ∇²f] / σ²     K = E[((m − f)² + v) ∇f ∇fᵀ] / σ⁴

the posterior of N rows is about N(w*, H⁻¹/N), and its mean is about N(w*, H⁻¹ K H⁻¹/N), the sandwich (Huber 1967, White
1982, Kleijn and van der Vaart 2012). A band of ± z posterior standard deviations around the mean of f(x) then covers
f_{w*}(x) with probability 2Φ(z s(x)/t(x)) − 1, where s² = ∇fᵀ H⁻¹ ∇f and t² = ∇fᵀ H⁻¹ K H⁻¹ ∇f. H = K, and the
coverage is right, if the law is in the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Generator, Tensor
from torch.func import grad, jacrev, vmap

_NODES = 200  # of the quadrature over x


class Shape(Protocol):
    """The functions of a model, by their weights."""

    @property
    def start(self) -> tuple[float, ...]:
        """Weights near the nearest ones of every law."""
        ...

    def __call__(self, weights: Tensor, x: Tensor) -> Tensor:
        """Return f_w(x), (..., N), from weights (..., D) and inputs (..., N)."""
        ...


@dataclass(frozen=True)
class Line:
    """f(x) = w_0 + w_1 x."""

    @property
    def start(self) -> tuple[float, ...]:
        """The line of every law."""
        return (0.0, 1.0)

    def __call__(self, weights: Tensor, x: Tensor) -> Tensor:
        """Return f_w(x)."""
        return weights[..., 0:1] + weights[..., 1:2] * x


@dataclass(frozen=True)
class Step:
    """f(x) = w_0 + w_1 tanh(w_2 x + w_3), a network with one hidden unit; the signs of w_1 to w_3 are free together."""

    @property
    def start(self) -> tuple[float, ...]:
        """The network of every law, before its ripple."""
        return (0.0, 1.0, 3.0, 0.0)

    def __call__(self, weights: Tensor, x: Tensor) -> Tensor:
        """Return f_w(x)."""
        return weights[..., 0:1] + weights[..., 1:2] * torch.tanh(weights[..., 2:3] * x + weights[..., 3:4])


@dataclass(frozen=True)
class Law:
    """y given x, with x uniform on [−1, 1].

    Attributes:
        name: in tables.
        network: whether the mean is a network of one unit plus a ripple, and the model such a network; else the mean is
            a line plus a parabola, and the model a line.
        amplitude: of the ripple or the parabola, which the model does not have.
        growing: whether the standard deviation of the noise grows as x², with the same mean square.
        outliers: share of the rows whose noise is five times as large.
    """

    name: str
    network: bool = False
    amplitude: float = 0.0
    growing: bool = False
    outliers: float = 0.0

    def mean(self, x: Tensor) -> Tensor:
        """Return m(x)."""
        if self.network:
            return torch.tanh(3 * x) + self.amplitude * torch.sin(3 * np.pi * x)
        return x + self.amplitude * (x**2 - 1 / 3)

    def scale(self, x: Tensor, noise: float) -> Tensor:
        """Return the standard deviation of the noise of a row that is no outlier."""
        return noise * np.sqrt(5.0) * x**2 if self.growing else torch.full_like(x, noise)

    def variance(self, x: Tensor, noise: float) -> Tensor:
        """Return v(x), outliers included."""
        return self.scale(x, noise) ** 2 * (1 + self.outliers * (_TIMES**2 - 1))

    def draw(self, rows: tuple[int, int], noise: float, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of R data sets of N rows, (R, N), float64."""
        x = 2 * torch.rand(rows, generator=generator, dtype=torch.float64) - 1
        far = torch.rand(rows, generator=generator, dtype=torch.float64) < self.outliers
        errors = torch.randn(rows, generator=generator, dtype=torch.float64) * self.scale(x, noise)
        return x, self.mean(x) + torch.where(far, _TIMES * errors, errors)


_TIMES = 5.0


@dataclass(frozen=True)
class Nearest:
    """The nearest weights, and two covariances that are divided by N.

    Attributes:
        weights_D: w*.
        model_DD: H⁻¹, that of the posterior.
        sandwich_DD: H⁻¹ K H⁻¹, that of its mean over data sets.
    """

    weights_D: Tensor
    model_DD: Tensor
    sandwich_DD: Tensor

    def deviations(self, shape: Shape, x_G: Tensor) -> tuple[Tensor, Tensor]:
        """Return s(x) and t(x), of one row, (G,) each."""
        slopes_GD = slopes(shape, self.weights_D, x_G)
        return tuple(((slopes_GD @ c) * slopes_GD).sum(-1).sqrt() for c in (self.model_DD, self.sandwich_DD))  # type: ignore[return-value]


def slopes(shape: Shape, weights_D: Tensor, x_N: Tensor) -> Tensor:
    """Return ∇f at each input, (N, D)."""
    return vmap(grad(lambda w, x: shape(w, x.unsqueeze(0))[0]), (None, 0))(weights_D, x_N)


def nearest(law: Law, shape: Shape, noise: float) -> Nearest:
    """Return what is known of the posterior of many rows under a Gaussian likelihood.

    Args:
        law: of the data.
        shape: of the model.
        noise: σ.

    Returns:
        The weights and covariances, float64, by quadrature over x.
    """
    nodes, shares = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(_NODES))
    shares = shares / 2
    weights_D = torch.tensor(shape.start, dtype=torch.float64)

    def divergence(w: Tensor) -> Tensor:
        return 0.5 * (shares * (law.mean(nodes) - shape(w, nodes)) ** 2).sum() / noise**2

    for _ in range(100):  # Newton, with a step that Levenberg's term keeps downhill
        gradient, bend = grad(divergence)(weights_D), jacrev(grad(divergence))(weights_D)
        slack = 1.1 * float(torch.linalg.eigvalsh(bend)[0].clamp_max(0).neg())
        weights_D = weights_D - torch.linalg.solve(bend + slack * torch.eye(len(bend)), gradient)
    bend = jacrev(grad(divergence))(weights_D)
    slopes_XD = slopes(shape, weights_D, nodes)
    squares = (law.mean(nodes) - shape(weights_D, nodes)) ** 2 + law.variance(nodes, noise)
    score_DD = (slopes_XD * (shares * squares / noise**4).unsqueeze(1)).T @ slopes_XD
    model_DD = torch.linalg.inv(bend)
    return Nearest(weights_D, model_DD, model_DD @ score_DD @ model_DD)
