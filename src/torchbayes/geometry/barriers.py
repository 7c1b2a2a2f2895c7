"""The loss along the straight line between two networks, and how high it rises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torchbayes.checks import check_counts, check_kind
from torchbayes.geometry.losses import judged, network_at
from torchbayes.geometry.members import Networks, buffers_at, one_of
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers
from torchbayes.model.rows.sources import as_source


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
        """max_λ L(λ) − ½ (L(0) + L(1)), in nats: that of Ainsworth et al. (2022), at least ½ |L(0) − L(1)|."""
        return max(self.nll) - 0.5 * (self.nll[0] + self.nll[-1])

    @property
    def excess(self) -> float:
        """max_λ [L(λ) − (1 − λ) L(0) − λ L(1)], in nats: that of Entezari et al. (2022), 0 for a convex loss."""
        return _excess(self.positions, self.nll)

    @property
    def error_excess(self) -> float | None:
        """The same of the error, None if there is none."""
        return None if self.error is None else _excess(self.positions, self.error)

    def to_dict(self) -> dict[str, Any]:
        """Return curves and barriers as plain numbers, for JSON and tables."""
        return {
            "positions": list(self.positions),
            "nll": list(self.nll),
            "error": None if self.error is None else list(self.error),
            "kind": self.kind,
            "height": self.height,
            "excess": self.excess,
            "error_excess": self.error_excess,
        }

    def __repr__(self) -> str:
        middle = max(range(len(self.nll)), key=lambda k: self.nll[k])
        ends = f"nll {self.nll[0]:.4g} and {self.nll[-1]:.4g} at the ends"
        top = f"{self.nll[middle]:.4g} at λ = {self.positions[middle]:.3g}"
        return f"Barrier(height {self.height:.4g}, excess {self.excess:.4g}: {ends}, at most {top})"


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
    r"""Evaluate the straight line between two networks.

        w(λ) = (1 − λ) w_A + λ w_B,    L(λ) = −(1/N) Σ_n log p(y_n | f_{w(λ)}(x_n)).

    Batch-norm statistics belong to the weights, so at each point, ends included, they are those of `calibration`;
    other buffers are interpolated. Memory is that of one chunk of rows. A loss L = ½ wᵀHw lies ½ λ(1 − λ) ΔᵀHΔ below
    the line between its ends, Δ = w_A − w_B: networks in one convex basin have no `excess`.
    Sources: Ainsworth, Hayase and Srinivasa (2022), "Git re-basin"; Entezari, Sedghi, Saukh and Neyshabur (2022), "The
    role of permutation invariance in linear mode connectivity of neural networks".

    Args:
        model: the model.
        data: the rows of the loss, as for `fit`.
        first: w_A: a module, weights (D,), or a point posterior with one member.
        second: w_B, likewise.
        points: values of λ, evenly spaced, at least 2.
        calibration: training data of which batch-norm statistics are taken; `data` if None.
        chunk_size: rows that go through a network at once.

    Returns:
        The curves, in float64.

    Raises:
        ValueError: if a network does not belong to the model or is not finite, data do not fit or no row counts, or
            there are fewer than 2 points.
        TypeError: if an argument is of the wrong type.
    """
    check_kind(Model, "a Model", model=model)
    check_counts(points=points, least=2)
    check_counts(chunk_size=chunk_size)
    ends = one_of(model, first, "first"), one_of(model, second, "second")
    source = as_source(model, data, chunk_size)
    source.check()
    fitted = source if calibration is None else as_source(model, calibration, chunk_size)
    nll, error, kind = [], [], ""
    positions = [k / (int(points) - 1) for k in range(int(points))]
    for position in positions:
        weights_D = torch.lerp(ends[0].weights_MD[0], ends[1].weights_MD[0], position)
        buffers = _between(buffers_at(ends[0], 0), buffers_at(ends[1], 0), position)
        found = judged(network_at(model, weights_D, buffers, fitted=fitted), source, chunk_size)
        nll.append(found.nll)
        error.append(found.error)
        kind = found.kind
    return Barrier(tuple(positions), tuple(nll), tuple(error) if kind else None, kind)


def _between(one: Buffers, other: Buffers, position: float) -> Buffers:
    """Return buffers on the way; counts and flags are those of the nearer end."""
    near = one if position < 0.5 else other
    return {n: torch.lerp(b, other[n], position) if b.is_floating_point() else near[n] for n, b in one.items()}


def _excess(positions: tuple[float, ...], losses: tuple[float, ...]) -> float:
    """Return how far a curve rises above the line between its ends."""
    first, last = losses[0], losses[-1]
    return max(loss - ((1 - at) * first + at * last) for at, loss in zip(positions, losses, strict=True))
