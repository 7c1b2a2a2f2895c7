"""The loss along the straight line between two networks, and how high it rises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributions

from torchbayes.checks import check_counts, check_kind
from torchbayes.geometry.members import Networks, buffers_at, one_of
from torchbayes.metrics.scoring import hits
from torchbayes.model.likelihoods.protocol import scored
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers
from torchbayes.model.rows.batch import Batch
from torchbayes.model.rows.sources import Source, as_source
from torchbayes.posteriors.functions import Functions
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.classes import class_probs
from torchbayes.predictive.predict import stream


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
        if model.network.batch_norms:
            views, _ = model.split(weights_D)
            buffers = model.network.recalibrate(views, fitted.inputs(), buffers)
        functions = Functions(model, weights_D[None], {n: b[None] for n, b in buffers.items()} or None)
        judged = _judged(functions, source, chunk_size)
        nll.append(judged.nll)
        error.append(judged.error)
        kind = judged.kind
    return Barrier(tuple(positions), tuple(nll), tuple(error) if kind else None, kind)


class _Judged(NamedTuple):
    """Mean losses of one network."""

    nll: float
    error: float
    kind: str


def _between(one: Buffers, other: Buffers, position: float) -> Buffers:
    """Return buffers on the way; counts and flags are those of the nearer end."""
    near = one if position < 0.5 else other
    return {n: torch.lerp(b, other[n], position) if b.is_floating_point() else near[n] for n, b in one.items()}


def _judged(functions: Functions, source: Source, chunk_size: int) -> _Judged:
    """Return the mean losses of one function over data.

    Raises:
        ValueError: if no row counts.
    """
    sums = torch.zeros(4, dtype=torch.float64)
    kind = ""
    for predictive, targets in stream(functions, _rows(source), chunk_size=chunk_size):
        judged = scored(predictive.likelihood, predictive.outputs_SBK[0], targets)
        log_prob = predictive.log_prob(targets).double()
        weights = torch.ones_like(log_prob) if judged.row_weights is None else judged.row_weights.double()
        counts = weights > 0
        kind, errors, places = _errors(predictive, judged.targets, judged.weights)
        sums += torch.stack([
            (weights * -log_prob)[counts].sum(), weights.sum(), (errors * places)[places > 0].sum(), places.sum()
        ]).cpu()  # fmt: skip
    if not sums[1] > 0:
        raise ValueError("no row of `data` counts: all are ignored, or have weight 0. Check their targets.")
    nll, error = float(sums[0] / sums[1]), float(sums[2] / sums[3].clamp_min(1e-300))
    return _Judged(nll, error**0.5 if kind == "rmse" else error, kind)


def _rows(source: Source) -> Iterator[Batch]:
    """Yield the batches of one pass."""
    for batch in source.epoch([0], 0):
        yield batch.map(lambda t: t[0])


def _errors(predictive: Predictive, targets: Any, weights: Tensor | None) -> tuple[str, Tensor, Tensor]:
    """Return the kind of error, the error of each place of each row, and how often each counts."""
    nothing = "", torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    if not isinstance(targets, Tensor):
        return nothing
    if isinstance(predictive.distribution, distributions.Categorical | distributions.Bernoulli):
        probs = class_probs(predictive.distribution)
        binary = isinstance(predictive.distribution, distributions.Bernoulli)
        rows, kind = len(probs), "error rate"
        probs = probs.flatten(0, -2)
        found = _wrong(probs, targets, binary)
    elif not predictive.distribution.event_shape and targets.numel() == predictive.mean.numel():
        rows, kind = len(predictive.mean), "rmse"
        found = (predictive.mean.flatten() - targets.flatten()).double().square()
    else:
        return nothing
    if weights is None:
        return kind, found, torch.ones_like(found)
    each = weights.flatten() if weights.numel() == len(found) else weights.repeat_interleave(len(found) // rows)
    return kind, found, each.to(found)


def _wrong(probs: Tensor, targets: Tensor, binary: bool) -> Tensor:
    """Return 1 where the most probable class is not the target, else 0; for soft labels the share of the others."""
    if binary and targets.is_floating_point():
        targets = torch.stack([1 - targets.flatten(), targets.flatten()], dim=-1)
    if targets.is_floating_point():
        return 1 - hits(probs, targets.reshape(probs.shape))
    return 1 - hits(probs, targets.flatten())


def _excess(positions: tuple[float, ...], losses: tuple[float, ...]) -> float:
    """Return how far a curve rises above the line between its ends."""
    first, last = losses[0], losses[-1]
    return max(loss - ((1 - at) * first + at * last) for at, loss in zip(positions, losses, strict=True))
