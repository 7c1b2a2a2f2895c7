"""Learned likelihood parameters for a network trained without them: the most probable ones at its weights.

Your own training loop minimises a loss of the outputs alone, so it leaves no noise scale φ of a likelihood. With
weights w held fixed it is

    φ = argmax_φ  (N/B) Σ_b log p(y_b | f_w(x_b), φ) + log p(w, φ)

which for Gaussian noise is the root mean square of the training residuals, apart from its prior. Its variance is that
of the second derivative there, as in Laplace's approximation, 1/2N for the log scale of Gaussian noise. A network that
interpolates its rows has smaller residuals than on new ones, here as in `fit`. A fit that starts from a trained
network begins with this estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchbayes.health.constant import highest, num_targets
from torchbayes.model.batches.batch import Batch
from torchbayes.model.model import PREFIX, Model, having_learned
from torchbayes.model.network import Buffers
from torchbayes.model.sources.sources import Source
from torchbayes.native.process import differentiable
from torchbayes.posteriors.functions import Functions
from torchbayes.posteriors.point import Point

_ROWS = 10_000  # rows used; they determine a scale to 1/√(2 · 10,000) = 0.7 %


def learned_at(point: Point, source: Source) -> tuple[Tensor, Tensor]:
    """Return the most probable learned likelihood parameters for the training data, and their variances, both (M, P).

    They are in the order of the layout, at whose end they stand. About 10,000 rows are used. The point has training
    inputs for recalibration if the network needs them. Raises ValueError if there is no maximum.
    """
    return _estimates(point, source.some(_ROWS), source.num_data)


def most_probable(point: Point, batches: Sequence[Batch], num_data: int) -> Tensor | None:
    """Return the most probable learned parameters of the first member for some rows, (P,).

    None if there are no such parameters, the likelihood says where they start, or there is no maximum. `num_data` is
    the number of rows.
    """
    if not is_open(point.model):
        return None
    try:
        return _estimates(point, batches, num_data)[0][0]
    except ValueError:
        return None


def likeliest(points: Sequence[Point], rows: Sequence[Sequence[Batch]]) -> float:
    """Return the mean log likelihood of rows under the learned parameters that make it highest, in nats per target.

    Each point predicts rows of its own, with the weights of its first member; all share the parameters.
    """
    model = points[0].model
    drawn = [point.functions(point.members).some(slice(1)) for point in points]
    seen = [
        (network(b.inputs, chunk_size=b.size)[0].double(), b.targets)
        for network, batches in zip(drawn, rows, strict=True)
        for b in batches
    ]
    count = sum(num_targets(model, batches) for batches in rows)
    learned = {n: p[0].to(torch.float64, copy=True).requires_grad_() for n, p in drawn[0].parameters.items()}

    def mean() -> Tensor:
        return torch.stack([model.likelihood.log_prob(f, targets, learned).sum() for f, targets in seen]).sum() / count

    return highest(mean, [*learned.values()])


def at_least(weights_MD: Tensor, least: Sequence[float] | None) -> Tensor:
    """Return weights whose learned parameters are at least these, (P,); the same weights for None."""
    if least is None:
        return weights_MD
    weights_MD = weights_MD.clone()
    learned_MP = weights_MD[:, -len(least) :]
    learned_MP.clamp_(min=learned_MP.new_tensor(least))
    return weights_MD


def estimated(model: Model, begin: tuple[Tensor, Buffers], source: Source) -> tuple[Tensor, Buffers]:
    """Return weights (M, D) of trained networks, all the same, with the most probable learned parameters; and buffers.

    The weights are unchanged where the likelihood says where its parameters start, or there is no maximum.
    """
    weights_MD, buffers = begin
    if not is_open(model):
        return begin
    first = Point(
        model, weights_MD[:1], buffers_M={n: b[:1] for n, b in buffers.items()} or None, statistics_known=True
    )
    try:
        value_P = learned_at(first, source)[0][0]
    except ValueError:  # no maximum: under a flat prior, for a network that interpolates
        return begin
    return having_learned(weights_MD, value_P), buffers


def is_open(model: Model) -> bool:
    """Return whether a likelihood has learned parameters, and leaves open where they start."""
    learned = model.likelihood.parameters().values()
    return bool(learned) and all(each.estimate for each in learned)


def _estimates(point: Point, batches: Sequence[Batch], num_data: int) -> tuple[Tensor, Tensor]:
    """Return what `learned_at` does, from batches."""
    drawn = point.functions(point.members)
    each = [_member(drawn, m, batches, num_data) for m in range(drawn.draws)]
    return torch.stack([value for value, _ in each]), torch.stack([variance for _, variance in each])


def _member(drawn: Functions, m: int, batches: Sequence[Batch], num_data: int) -> tuple[Tensor, Tensor]:
    """Return the parameters of a member and their variances, (P,); ValueError if there is no maximum."""
    model, weights_D = drawn.model, drawn.weights_SD[m]
    network = drawn.some(slice(m, m + 1))
    # a batch is not split, because the network may couple its rows
    outputs = [network(b.inputs, chunk_size=b.size)[0].double() for b in batches]
    views = model.layout.split(weights_D)
    learned = {
        n: views[PREFIX + n].to(torch.float64, copy=True).requires_grad_() for n in model.likelihood.parameters()
    }
    scales = model.scales(num_data, sum(b.size for b in batches))

    def log_joint() -> Tensor:
        fits = [model.likelihood.log_prob(f, b.targets, learned).sum() for f, b in zip(outputs, batches, strict=True)]
        joined_D = model.layout.join({**views, **{PREFIX + n: t for n, t in learned.items()}})
        return scales.likelihood * torch.stack(fits).sum() + scales.prior * model.log_prior(joined_D)

    parameters = [*learned.values()]
    best = highest(lambda: log_joint() / num_data, parameters, fine=1e-6)
    curvature = -_second(log_joint, parameters)
    if best == -math.inf or not (curvature > 0).all():
        raise ValueError(
            f"{', '.join(f'`{n}`' for n in learned)} of the likelihood could not be estimated on the training data: "
            f"their likelihood has no maximum. Fix them, or give them with the collected weights, as in "
            f"`{{**net.state_dict(), '{PREFIX}{next(iter(learned))}': value}}`."
        )
    return torch.cat([t.detach().flatten() for t in parameters]).to(weights_D), (1 / curvature).to(weights_D)


def _second(value: Callable[[], Tensor], free: Sequence[Tensor]) -> Tensor:
    """Return the second derivative by each element of the tensors, one after the other."""
    with differentiable():
        slopes = torch.autograd.grad(value(), free, create_graph=True)
        return torch.stack([
            torch.autograd.grad(slope, tensor, retain_graph=True)[0].flatten()[i]
            for tensor, each in zip(free, slopes, strict=True)
            for i, slope in enumerate(each.flatten())
        ])
