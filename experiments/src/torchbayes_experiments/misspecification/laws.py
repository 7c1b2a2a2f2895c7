"""What the data are, and what is known of the posterior of a line without sampling.

With x uniform on [−1, 1], y = m(x) + √v(x) ε, the features φ = (1, x) and the likelihood N(wᵀφ, σ²), the weights
nearest to the law in Kullback-Leibler divergence minimise E[(m − wᵀφ)²]. At these weights w*, with

    H = E[φ φᵀ] / σ²     K = E[((m − w*ᵀφ)² + v) φ φᵀ] / σ⁴

the posterior of N rows is about N(w*, H⁻¹/N), but its mean is about N(w*, H⁻¹ K H⁻¹/N) over data sets, the sandwich
(Huber 1967, White 1982, Kleijn and van der Vaart 2012). A band of ± z posterior standard deviations around the mean
then covers w*ᵀφ with probability 2Φ(z s/t) − 1, where s² = φᵀ H⁻¹ φ and t² = φᵀ H⁻¹ K H⁻¹ φ. If the law is in the model
H = K, and the coverage is right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor

_NODES = 100  # of the quadrature over x
_TIMES = 5.0  # noise of an outlier, in units of that of other rows


@dataclass(frozen=True)
class Law:
    """y given x, with x uniform on [−1, 1]; the mean is x plus a parabola.

    Attributes:
        name: in tables.
        amplitude: of the parabola, which a line does not have.
        growing: whether the standard deviation of the noise grows as x², with the same mean square.
        outliers: share of the rows whose noise is five times as large.
    """

    name: str
    amplitude: float = 0.0
    growing: bool = False
    outliers: float = 0.0

    def mean(self, x: Tensor) -> Tensor:
        """Return m(x)."""
        return x + self.amplitude * (x**2 - 1 / 3)

    def scale(self, x: Tensor, noise: float) -> Tensor:
        """Return the standard deviation of the noise of a row that is no outlier."""
        return noise * math.sqrt(5.0) * x**2 if self.growing else torch.full_like(x, noise)

    def variance(self, x: Tensor, noise: float) -> Tensor:
        """Return v(x), outliers included."""
        return self.scale(x, noise) ** 2 * (1 + self.outliers * (_TIMES**2 - 1))

    def draw(self, rows: tuple[int, int], noise: float, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of R data sets of N rows, (R, N), float64."""
        x = 2 * torch.rand(rows, generator=generator, dtype=torch.float64) - 1
        far = torch.rand(rows, generator=generator, dtype=torch.float64) < self.outliers
        errors = torch.randn(rows, generator=generator, dtype=torch.float64) * self.scale(x, noise)
        return x, self.mean(x) + torch.where(far, _TIMES * errors, errors)


def features(x: Tensor) -> Tensor:
    """Return φ = (1, x), (..., 2)."""
    return torch.stack([torch.ones_like(x), x], -1)


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

    def ratio(self, x_G: Tensor) -> Tensor:
        """Return s(x)/t(x), (G,)."""
        of_GD = features(x_G)
        squares = [((of_GD @ c) * of_GD).sum(-1) for c in (self.model_DD, self.sandwich_DD)]
        return (squares[0] / squares[1]).sqrt()


def nearest(law: Law, noise: float) -> Nearest:
    """Return what is known of the posterior of many rows under Gaussian noise of standard deviation σ.

    Args:
        law: of the data.
        noise: σ.

    Returns:
        The weights and covariances, float64, by Gauss-Legendre quadrature over x, which is exact here.
    """
    nodes, shares = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(_NODES))
    of_XD = features(nodes) * (shares / 2).sqrt().unsqueeze(1)
    moment = of_XD.T @ of_XD
    weights_D = torch.linalg.solve(moment, of_XD.T @ (law.mean(nodes) * (shares / 2).sqrt()))
    squares_X = (law.mean(nodes) - features(nodes) @ weights_D) ** 2 + law.variance(nodes, noise)
    score = (of_XD * squares_X.unsqueeze(1)).T @ of_XD / noise**4
    model_DD = torch.linalg.inv(moment) * noise**2
    return Nearest(weights_D, model_DD, model_DD @ score @ model_DD)
