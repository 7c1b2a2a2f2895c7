"""The loss between networks: along the straight line between two, and in the simplex of several."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchbayes.checks import as_seed, check_counts
from torchbayes.geometry.networks import Losses, Networks, as_plain, members_of, networks_of, one_of
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers
from torchbayes.native.process import undisturbed
from torchbayes.posteriors.curves.simplex import barycentric
from torchbayes.randomness.seeds import Purpose, generator


@dataclass(frozen=True)
class Barrier:
    r"""Loss and error along w(λ) = (1 − λ) w_A + λ w_B, and the barriers of the loss.

    Attributes:
        positions: λ, from 0 to 1, ends included.
        nll: L(λ), mean negative log likelihood per row in nats, at temperature 1.
        error: error rate of a classification, root mean squared error of numbers; None for other likelihoods.
        kind: what the error is, "error rate", "rmse" or "".
    """

    positions: tuple[float, ...]
    nll: tuple[float, ...]
    error: tuple[float, ...] | None
    kind: str

    @property
    def height(self) -> float:
        """max_λ L(λ) − ½ (L(0) + L(1)), in nats (Ainsworth et al. 2022); at least ½ |L(0) − L(1)|."""
        return max(self.nll) - 0.5 * (self.nll[0] + self.nll[-1])

    @property
    def excess(self) -> float:
        """max_λ [L(λ) − (1 − λ) L(0) − λ L(1)], in nats (Entezari et al. 2022); 0 for a convex loss."""
        return _excess(self.positions, self.nll)

    @property
    def error_excess(self) -> float | None:
        """The same for the error; None if there is none."""
        return None if self.error is None else _excess(self.positions, self.error)

    def to_dict(self) -> dict[str, Any]:
        """Return curves and barriers as plain numbers, for JSON and tables."""
        return as_plain(self, "height", "excess", "error_excess")

    def __repr__(self) -> str:
        middle = max(range(len(self.nll)), key=lambda k: self.nll[k])
        ends = f"nll {self.nll[0]:.4g} and {self.nll[-1]:.4g} at the ends"
        top = f"{self.nll[middle]:.4g} at λ = {self.positions[middle]:.3g}"
        return f"Barrier(height {self.height:.4g}, excess {self.excess:.4g}: {ends}, at most {top})"


@undisturbed
def barrier(
    model: Model,
    data: Any,
    first: Networks,
    *,
    second: Networks,
    points: int = 25,
    calibration: Any = None,
    chunk_size: int = 1024,
) -> Barrier:
    """Evaluate the straight line between two networks.

        w(λ) = (1 − λ) w_A + λ w_B,    L(λ) = −(1/N) Σ_n log p(y_n | f_{w(λ)}(x_n)).

    Batch-norm statistics depend on the weights, so those of `calibration` are computed anew at each point, ends
    included. Other buffers are interpolated. Memory is that of one chunk of rows. A loss L = ½ wᵀHw lies ½ λ(1 − λ)
    ΔᵀHΔ below the line between its ends, Δ = w_A − w_B, so networks in one convex basin have no `excess`. Sources:
    Ainsworth, Hayase and Srinivasa (2022), "Git re-basin"; Entezari, Sedghi, Saukh and Neyshabur (2022), "The role
    of permutation invariance in linear mode connectivity of neural networks".

    Args:
        model: the model.
        data: the rows of the loss, as for `fit`.
        first: w_A: a module, weights (D,), or a point posterior with one member.
        second: w_B, in the same forms.
        points: values of λ, evenly spaced, at least 2.
        calibration: training data for batch-norm statistics; `data` if None.
        chunk_size: rows that go through a network at once.

    Returns:
        The curves, in float64.

    Raises:
        ValueError: if a network does not belong to the model or is not finite, data do not fit or no row
            counts, or there are fewer than 2 points.
        TypeError: if an argument is of the wrong type.
    """
    check_counts(points=points, least=2)
    (first_D, first_buffers), (last_D, last_buffers) = one_of(model, first, "first"), one_of(model, second, "second")
    losses = Losses(model, data, calibration, chunk_size=chunk_size)
    positions = tuple(k / (int(points) - 1) for k in range(int(points)))
    nll, error, kinds = zip(
        *(
            losses.at(torch.lerp(first_D, last_D, position), _between(first_buffers, last_buffers, position))
            for position in positions
        ),
        strict=True,
    )
    return Barrier(positions, nll, error if kinds[0] else None, kinds[0])


def _between(first: Buffers, other: Buffers, position: float) -> Buffers:
    """Return interpolated buffers; counts and flags are those of the nearer end."""
    near = first if position < 0.5 else other
    return {n: torch.lerp(b, other[n], position) if b.is_floating_point() else near[n] for n, b in first.items()}


def _excess(positions: tuple[float, ...], losses: tuple[float, ...]) -> float:
    """Return how far a curve rises above the line between its ends."""
    first, last = losses[0], losses[-1]
    return max(loss - ((1 - at) * first + at * last) for at, loss in zip(positions, losses, strict=True))


@dataclass(frozen=True)
class Interior:
    r"""Loss and error in a simplex of networks, and at its vertices.

    Attributes:
        coordinates_PV: b, barycentric coordinates of the points, float64.
        nll_P: L(Σ_v b_v w_v), mean negative log likelihood per row at the points, in nats, at temperature 1, float64.
        vertices_V: L(w_v) at the vertices, float64.
        error_P: error rate of a classification, root mean squared error of numbers; None for other likelihoods.
        kind: what the error is, "error rate", "rmse" or "".
    """

    coordinates_PV: Tensor = field(repr=False)
    nll_P: Tensor = field(repr=False)
    vertices_V: Tensor = field(repr=False)
    error_P: Tensor | None = field(repr=False)
    kind: str

    @property
    def mean(self) -> float:
        """Mean of L over the points minus that over the vertices, in nats; at most 0 for a convex L, up to chance."""
        return float(self.nll_P.mean() - self.vertices_V.mean())

    @property
    def worst(self) -> float:
        """Largest L at a point minus the largest at a vertex, in nats; at most 0 for a convex loss."""
        return float(self.nll_P.max() - self.vertices_V.max())

    @property
    def excess(self) -> float:
        """max_b [L(Σ_v b_v w_v) − Σ_v b_v L(w_v)], in nats: at most 0 for a convex loss."""
        return float((self.nll_P - self.coordinates_PV @ self.vertices_V).max())

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain numbers, for JSON and tables."""
        return as_plain(self, "mean", "worst", "excess")

    def __repr__(self) -> str:
        ends = ", ".join(f"{float(nll):.4g}" for nll in self.vertices_V)
        inside = f"{float(self.nll_P.mean()):.4g} in the mean and {float(self.nll_P.max()):.4g} at most inside"
        return f"Interior(mean {self.mean:.4g}, worst {self.worst:.4g}: nll {ends} at the vertices, {inside})"


@undisturbed
def interior(
    model: Model,
    data: Any,
    networks: Networks,
    *,
    points: int = 25,
    calibration: Any = None,
    chunk_size: int = 1024,
    seed: int = 0,
) -> Interior:
    """Evaluate the simplex between networks at random points.

        w(b) = Σ_v b_v w_v,    b uniform over the simplex,    L(w) = −(1/N) Σ_n log p(y_n | f_w(x_n)).

    Batch-norm statistics depend on the weights, so those of `calibration` are computed anew at each point, vertices
    included. Other buffers are those of the nearest vertex. With two networks this is `barrier` at random places.
    Source: Benton, Maddox, Lotfi and Wilson (2021), "Loss surface simplexes for mode connecting volumes and fast
    ensembling".

    Args:
        model: the model.
        data: the rows of the loss, as for `fit`.
        networks: the vertices, at least two: weights (V, D) such as `posterior.vertices_MPD[0]` of a `Simplex`
            with one mode, the members of a point posterior, or a list of modules.
        points: P, at least 1.
        calibration: training data for batch-norm statistics; `data` if None.
        chunk_size: rows that go through a network at once.
        seed: seed of the points.

    Returns:
        The losses, in float64.

    Raises:
        ValueError: if networks do not belong to the model or are not finite, are fewer than two, data do not
            fit or no row counts.
        TypeError: if an argument is of the wrong type.
    """
    check_counts(points=points)
    vertices, seed = members_of(model, networks, "networks"), as_seed(seed)
    if (count := vertices.members) < 2:
        raise ValueError(f"`networks` must be at least two, which span a simplex; got {count}.")
    losses = Losses(model, data, calibration, chunk_size=chunk_size)
    drawn = generator(Purpose.INTERIOR, seed)
    inside_PV = barycentric(torch.rand(int(points), count - 1, generator=drawn, dtype=torch.float64))
    buffers = [buffers for _, buffers in networks_of(vertices)]
    shares = torch.cat([torch.eye(count, dtype=torch.float64), inside_PV])
    every = [
        losses.at(share_V.to(vertices.weights_MD) @ vertices.weights_MD, buffers[int(share_V.argmax())])
        for share_V in shares
    ]
    kind = every[0].kind
    nll, error = torch.tensor([(loss.nll, loss.error) for loss in every], dtype=torch.float64).T
    return Interior(inside_PV, nll[count:], nll[:count], error[count:] if kind else None, kind)
