"""Means of parameters and their squares by quadrature: on a lattice, over all parameters or those that are not normal.

The trapezoid rule on a lattice is as good as any for densities that are smooth and vanish at infinity: its error falls
faster than any power of the spacing. The lattice lies in coordinates in which the covariance is the identity, and
of its points only those are used at which the density is not negligible. They are found from neighbour to neighbour,
beginning at the mode, so that a density of any shape is covered if it is in one piece.

Where a density is normal in some parameters given the others, its mean, covariance and integral over those are had from
its gradient and its Hessian, and the lattice, or a line, is one of the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

LogDensity = Callable[[Tensor], Tensor]
_NEGLIGIBLE = 30.0  # nats below the mode at which points are left out
_CHUNK = 1 << 8  # points at a time: each may take a matrix over time


class Moments(NamedTuple):
    """What an integral gives.

    Attributes:
        mean_D: means.
        covariance_DD: covariance.
        log_mass: log of the integral of the density.
    """

    mean_D: Tensor
    covariance_DD: Tensor
    log_mass: float

    @property
    def values_F(self) -> Tensor:
        """The means of the parameters and of their squares, (2 D,)."""
        return torch.cat([self.mean_D, self.covariance_DD.diagonal() + self.mean_D.square()])


class Points(NamedTuple):
    """Points at which a density is summed.

    Attributes:
        values_PW: the points.
        log_P: log density there, and of the volume that a point stands for.
    """

    values_PW: Tensor
    log_P: Tensor


def on_lattice(log_density: LogDensity, size: int, spacing: float) -> Moments:
    """Return the moments of a density that is in one piece.

    Args:
        log_density: vector (D,) -> number, run by vmap.
        size: D.
        spacing: of the lattice, in standard deviations.
    """
    return _moments(lattice(log_density, size, spacing))


def lattice(log_density: LogDensity, size: int, spacing: float) -> Points:
    """Return the points of a lattice that cover a density which is in one piece; arguments as of `on_lattice`."""
    known = _normal_at_mode(log_density, size)
    for coarse, negligible in ((0.9, 10.0), (0.9, 16.0)):
        known = _moments(_about(log_density, known, coarse, negligible))
    return _about(log_density, known, spacing, _NEGLIGIBLE)


def line(values_P: Tensor) -> Points:
    """Return evenly spaced points of one parameter, whose density is still to be added."""
    step = math.log(values_P[1] - values_P[0])
    return Points(values_P.unsqueeze(1), torch.full_like(values_P, step))


class NormalGiven:
    """A density that is normal in some parameters, given the others.

    log p(r, w) = c(w) + b(w)ᵀ r − ½ rᵀ A(w) r: c, b and A are value, gradient and minus the Hessian at r = 0.
    """

    def __init__(self, log_density: LogDensity, size: int, given: Sequence[int]) -> None:
        """Say which.

        Args:
            log_density: vector (D,) -> number, run by vmap.
            size: D.
            given: indices of the parameters w in which it is not normal.
        """
        self._log_density, self._given = log_density, list(given)
        self._others = [number for number in range(size) if number not in given]
        self._order = torch.tensor([*self._given, *self._others]).argsort()

    def marginal(self, given_W: Tensor) -> Tensor:
        """Return the log density of w, with the others integrated out."""
        return self._conditional(given_W)[0]

    def moments(self, points: Points, change: Tensor | None = None) -> Moments:
        """Return the moments of all parameters, in their order.

        Args:
            points: of w, with its density.
            change: linear maps (P, R, R) to the other parameters whose moments are wanted, one for each point.
        """
        _, centre_PR, spread_PRR = vmap(self._conditional, chunk_size=_CHUNK)(points.values_PW)
        if change is not None:
            centre_PR, spread_PRR = (change @ centre_PR.unsqueeze(-1)).squeeze(-1), change @ spread_PRR @ change.mT
        both = _moments(points._replace(values_PW=torch.cat([points.values_PW, centre_PR], 1)))
        covariance_DD, known = both.covariance_DD, len(self._given)
        covariance_DD[known:, known:] += torch.einsum("p,pij->ij", points.log_P.softmax(0), spread_PRR)
        order = self._order
        return both._replace(mean_D=both.mean_D[order], covariance_DD=covariance_DD[order][:, order])

    def on_line(self, values_P: Tensor) -> Points:
        """Return the points of a line with the density there, for one parameter w."""
        points = line(values_P)
        return points._replace(log_P=points.log_P + vmap(self.marginal, chunk_size=_CHUNK)(points.values_PW))

    def _conditional(self, given_W: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the log density of w, and mean and covariance of the others given it."""

        def of_others(rest_R: Tensor) -> Tensor:
            return self._log_density(torch.cat([given_W, rest_R])[self._order])

        zeros_R = given_W.new_zeros(len(self._others))
        slope_R = grad(of_others)(zeros_R)
        factor_RR = torch.linalg.cholesky(-jacrev(grad(of_others))(zeros_R))
        spread_RR = torch.cholesky_inverse(factor_RR)
        centre_R = spread_RR @ slope_R
        log_mass = of_others(zeros_R) + 0.5 * slope_R @ centre_R - factor_RR.diagonal().log().sum()
        return log_mass + 0.5 * len(zeros_R) * math.log(2 * math.pi), centre_R, spread_RR


def _moments(points: Points) -> Moments:
    """Return the moments of points by their weight."""
    share_P = points.log_P.softmax(0)
    mean_D = share_P @ points.values_PW
    away_PD = points.values_PW - mean_D
    return Moments(mean_D, (share_P[:, None] * away_PD).T @ away_PD, float(points.log_P.logsumexp(0)))


def _normal_at_mode(log_density: LogDensity, size: int) -> Moments:
    """Return mode and inverse curvature, by BFGS from the origin."""
    at_D = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([at_D], max_iter=1000, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        value = -log_density(at_D)
        value.backward()
        return value

    search.step(loss)  # type: ignore[arg-type]
    mode_D = at_D.detach()
    return Moments(mode_D, torch.linalg.inv(-jacrev(grad(log_density))(mode_D)), 0.0)


def _about(log_density: LogDensity, known: Moments, spacing: float, negligible: float) -> Points:
    """Return the points of a lattice in coordinates in which what is known of the density is standard."""
    factor_DD, size = torch.linalg.cholesky(known.covariance_DD), len(known.mean_D)

    def placed(steps_PD: Tensor) -> Tensor:
        return known.mean_D + spacing * steps_PD.double() @ factor_DD.T

    def log_at(steps_PD: Tensor) -> Tensor:
        return vmap(log_density, chunk_size=_CHUNK)(placed(steps_PD))

    steps_PD, log_P = _covered(log_at, size, negligible)
    volume = float(factor_DD.diagonal().log().sum()) + size * math.log(spacing)
    return Points(placed(steps_PD), log_P + volume)


def _covered(log_at: Callable[[Tensor], Tensor], size: int, negligible: float) -> tuple[Tensor, Tensor]:
    """Return the points of the integer lattice at which a density is not negligible, and its log there.

    Args:
        log_at: points (P, D), int64 -> log density (P,).
        size: D, at most 7: a point is coded by 9 bits for each of its coordinates.
        negligible: nats below the largest log density seen.
    """
    base = 512
    powers_D = base ** torch.arange(size)
    moves_ED = torch.cat([torch.eye(size, dtype=torch.int64), -torch.eye(size, dtype=torch.int64)])
    points_PD = torch.zeros(1, size, dtype=torch.int64)
    log_P = log_at(points_PD)
    known = (points_PD + base // 2) @ powers_D  # sorted codes of all points that were looked at
    edge_PD = points_PD
    while len(edge_PD):
        near_PD = (edge_PD[:, None] + moves_ED).reshape(-1, size)
        if near_PD.abs().max() >= base // 2 - 1:
            raise ValueError("the density reaches beyond 255 steps of the lattice. Make its spacing wider.")
        codes = torch.unique((near_PD + base // 2) @ powers_D)
        seen = known[torch.searchsorted(known, codes).clamp(max=len(known) - 1)] == codes
        codes = codes[~seen]
        known = torch.cat([known, codes]).sort().values
        new_PD = codes[:, None] // powers_D % base - base // 2
        new_P = log_at(new_PD) if len(new_PD) else log_P[:0]
        points_PD, log_P = torch.cat([points_PD, new_PD]), torch.cat([log_P, new_P])
        edge_PD = new_PD[new_P > log_P.max() - negligible]
    return points_PD, log_P
