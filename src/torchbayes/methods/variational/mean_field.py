"""A step with independent weights on a CPU: the objective of objective.py, in two passes over all parameters.

The first pass draws weights and sums the terms of the divergence. The network gives the gradient by the weights. The
second pass forms the gradient by means and scales and takes a step of Adam at once (`passes.py`). The noise is bit for
bit that of objective.py, and results are equal to rounding.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.methods.optimise.descent import Trajectory
from torchbayes.methods.optimise.optimizers import SGD, AdamW, Optimizer
from torchbayes.methods.variational import passes
from torchbayes.methods.variational.families import DiagonalFamily
from torchbayes.methods.variational.objective import Drawing, Terms, ask, ask_layers, noise_stream
from torchbayes.methods.variational.passes import AdamRule, Descent, Penalty
from torchbayes.methods.variational.target import Target, target_of
from torchbayes.model.model import Batch
from torchbayes.model.priors.bound import Segment
from torchbayes.model.priors.expected import add_expected_, is_closed


class Slope(NamedTuple):
    """What an update needs from the objective."""

    descent: Descent  # slopes for the second pass
    penalty: Penalty  # the normal part of the prior
    health_MX: Tensor  # finite where the gradient is


def takes(drawing: Drawing, density: LogDensity, now: Trajectory) -> bool:
    """Return whether these two passes apply: independent weights on a CPU, and a prior that they support."""
    closed = drawing.estimator == "weights" or all(is_closed(segment) for segment in density.model.prior.segments)
    return drawing.family == DiagonalFamily() and closed and passes.runs(now.weights_MD)


def evaluate(
    density: LogDensity, now: Trajectory, batch: Batch, *, drawing: Drawing, kl_weight: float
) -> tuple[Terms, Slope]:
    """Return the objective of a step, and what its update needs; buffers are brought up to date.

    `now` holds parameters (M, 2D), and its memory for a gradient is used as scratch space.
    """
    members, size = len(now.seeds), density.model.layout.size
    target = target_of(density, now.weights_MD[:, :size])
    entropy_scale = -kl_weight * density.model.temperature / density.num_data
    nll_M, sums_M2, slopes, health_MX = (_by_weights if drawing.estimator == "weights" else _by_layers)(
        density, now, batch, drawing, target
    )
    scale, by_MD = entropy_scale * target.scale, slopes.by_MD
    expected_M = sums_M2[:, 1] * (-0.5 * target.ess / target.scale) - target.log_norm
    for segment in target.others:
        if is_closed(segment):
            by_MD = by_MD or tuple(now.weights_MD.new_zeros(2, members, size).unbind())
            expected_M = expected_M + _expected(segment, now.weights_MD, scale, by_MD)
        else:
            expected_M = expected_M + segment.add_(slopes.gradient_MSD, slopes.weights_MSD, scale).mean(1)
    slopes = slopes._replace(by_MD=by_MD, strength=kl_weight, entropy=entropy_scale)
    entropy_M = sums_M2[:, 0] + 0.5 * math.log(2 * math.pi * math.e) * size
    loss_M = nll_M + scale * expected_M + entropy_scale * entropy_M
    return Terms(loss_M, nll_M, -expected_M - entropy_M), Slope(slopes, target.penalty, health_MX)


def update(optimizer: Optimizer, now: Trajectory, slope: Slope, *, lr: float) -> None:
    """Change parameters and slots in place."""
    if isinstance(optimizer, SGD):
        gradient_MP = torch.empty_like(now.weights_MD)
        passes.descend(now.weights_MD, slope.penalty, slope.descent, out=gradient_MP)
        optimizer.update(now.weights_MD, gradient_MP, now.slots, lr=lr)
        return
    step = now.slots["count"].add_(1).item()
    decay = optimizer.weight_decay if isinstance(optimizer, AdamW) else 0.0
    rule = AdamRule(*optimizer.betas, optimizer.eps, lr, decay, step)
    slots = now.slots["first_MD"], now.slots["second_MD"]
    passes.descend(now.weights_MD, slope.penalty, slope.descent, rule=rule, slots=slots)


_Seen = tuple[Tensor, Tensor, Descent, Tensor]


def _by_weights(density: LogDensity, now: Trajectory, batch: Batch, drawing: Drawing, target: Target) -> _Seen:
    """Return the loss, sums of the divergence, slopes at draws of the weights, and a tensor finite where these are."""
    members, draws, size = len(now.seeds), drawing.draws, density.model.layout.size
    shape = (2, members, draws, size)
    workspace = now.gradient_MD.view(shape) if draws == 1 else now.weights_MD.new_empty(shape)
    # both share memory, by which autograd counts changes: with `data`, writing the gradient does not change the weights
    weights_MSD, gradient_MSD = workspace[0].data, workspace[1].data
    sums_M2 = passes.scatter(
        now.weights_MD,
        target.penalty,
        weights_MSD,
        seeds=now.seeds,
        stream=noise_stream(now),
        antithetic=drawing.antithetic,
    )
    nll_M = ask(density, now, batch, weights_MSD=weights_MSD, out=gradient_MSD, alpha=drawing.alpha)
    return nll_M, sums_M2, Descent(gradient_MSD, weights_MSD, None, 0.0, 0.0), gradient_MSD.flatten(1)


def _by_layers(density: LogDensity, now: Trajectory, batch: Batch, drawing: Drawing, target: Target) -> _Seen:
    """Return the same as `_by_weights` from layers that take their weights as distributions."""
    members, size = len(now.seeds), density.model.layout.size
    scale_MD = now.gradient_MD.view(2, members, size)[0]
    sums_M2 = passes.scatter(now.weights_MD, target.penalty, scale_MD.unsqueeze(1), seeds=now.seeds, stream=None)
    gradients = ask_layers(density, now, batch, drawing=drawing, scale_MD=scale_MD)
    none, by_MD = scale_MD.new_empty(members, 0, size), (gradients.mean_MD, gradients.scale_MD)
    return gradients.nll_M, sums_M2, Descent(none, none, by_MD, 0.0, 0.0), gradients.health_M.unsqueeze(1)


def _expected(segment: Segment, parameters_MP: Tensor, scale: float, by_MD: tuple[Tensor, ...]) -> Tensor:
    """Return E log p(w) of a segment with a closed form that is not normal; add `scale` times its slopes to `by_MD`."""
    mean_MD, log_scale_MD = (part_MD[:, segment.where] for part_MD in parameters_MP.chunk(2, dim=1))
    scale_MD, slopes = log_scale_MD.exp(), torch.zeros(2, *mean_MD.shape).to(mean_MD)
    alone = replace(segment, where=slice(None))
    expected_M = add_expected_(alone, mean_MD, scale_MD.square(), scale=scale, into=(slopes[0], slopes[1]))
    by_mean_MD, by_scale_MD = (part_MD[:, segment.where] for part_MD in by_MD)
    by_mean_MD.add_(slopes[0])
    by_scale_MD.addcmul_(slopes[1], scale_MD, value=2.0)
    return expected_M
