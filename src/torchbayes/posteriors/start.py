"""The starting weights and buffers of members, from a module, a posterior or a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from torchbayes.model.layout import Layout, only
from torchbayes.model.model import Model, with_learned
from torchbayes.model.network import Buffers, Network
from torchbayes.model.subspace import Subspace
from torchbayes.model.wrappers import bare, plainly_named
from torchbayes.posteriors.gaussian import Gaussian
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.posterior import Posterior
from torchbayes.posteriors.problems import is_finite
from torchbayes.posteriors.subspace import InSubspace
from torchbayes.posteriors.trained import check_values


def number_of_starts(start: nn.Module | Posterior | Tensor) -> int:
    """Return how many sets of weights a start holds: rows of a matrix, members of a point posterior, or one."""
    if isinstance(start, nn.Module):
        return 1
    start = _points(start)
    weights = start.weights_MD if isinstance(start, Point) else start
    return len(weights) if isinstance(weights, Tensor) and weights.ndim == 2 else 1


def centred(start: Any) -> tuple[Any, Tensor | None]:
    """Return a start; for a Gaussian its means, with the standard deviations of the weights, (M, D)."""
    if not isinstance(start, Posterior) or not hasattr(type(start), "gaussian"):
        return start, None
    gaussian: Gaussian = cast(Any, start).gaussian
    point = Point(start.model, gaussian.mean_MD, buffers_M=start.buffers_M)
    return point, gaussian.covariance.diagonal().sqrt()


def start_of(
    model: Model,
    start: nn.Module | Posterior | Tensor | None,
    seeds: Sequence[int],
    *,
    space: Subspace | None = None,
) -> tuple[Tensor, Buffers]:
    """Return starting weights (M, D) and buffers (M, ...) of the members; in a subspace coordinates (M, R).

    `start` is as for `fit`; in `space` members start at the origin by default. A ValueError if it does not fit the
    model or the number of members.
    """
    if space is None:
        return _start_of(model, start, seeds)
    if start is None:
        return space.model.starting_weights(seeds)
    weights_MD, buffers = _start_of(model, start, seeds)
    return space.coordinates(weights_MD), space.lowered(buffers)


def _points(start: Posterior | Tensor) -> Posterior | Tensor:
    """Return a start; points in a subspace become points over all weights."""
    if not isinstance(start, InSubspace) or not isinstance(start.inner, Point):
        return start
    return Point(start.model, start.space.lift(start.inner.weights_MD), buffers_M=start.buffers_M)


def _start_of(
    model: Model, start: nn.Module | Posterior | Tensor | None, seeds: Sequence[int]
) -> tuple[Tensor, Buffers]:
    """Return starting weights and buffers of the members over all weights; a ValueError if `start` does not fit."""
    members = len(seeds)
    if start is None:
        return model.starting_weights(seeds)
    if isinstance(start, nn.Module):
        return _from_module(model, start, members)
    start = _points(start)
    weights = start.weights_MD if isinstance(start, Point) else start
    if isinstance(weights, Posterior):
        raise ValueError(f"`start` must be a point posterior, a module or weights; got a {type(weights).__name__}.")
    fits = weights.ndim in {1, 2} and weights.shape[-1] == model.layout.size
    if not fits or (weights.ndim == 2 and len(weights) not in {1, members}):
        raise ValueError(
            f"`start` must hold {model.layout.size} weights for 1 or {members} members; got shape "
            f"{tuple(weights.shape)}."
        )
    check_finite_start(start=weights)
    weights_MD = weights.detach().to(model.network.device, model.network.dtype).expand(members, -1).clone()
    if isinstance(start, Point) and start.buffers_M:
        return weights_MD, {n: b.expand(members, *b.shape[1:]).clone() for n, b in start.buffers_M.items()}
    return weights_MD, model.network.stacked_buffers(members)


def _from_module(model: Model, module: nn.Module, members: int) -> tuple[Tensor, Buffers]:
    """Return the weights and buffers of a trained module, once per member.

    A ValueError if its parameters do not match the model's network or are split over processes.
    """
    module = bare(module)
    parameters = plainly_named(module.named_parameters())
    original = model.network
    shapes = Layout({n: tuple(parameters[n].shape) for n in original.layout.names if n in parameters})
    differences = original.shapes.differences(shapes)
    if differences:
        raise ValueError(f"`start` does not fit the model's network: {'; '.join(differences[:5])}.")
    check_values({**only(original.layout.names, parameters), **dict(module.named_buffers())}, "`start`")
    network = Network(module, original.random if original.mask.indices else original.layout.names)
    weights_MD = with_learned(model, network.weights().to(original.device, original.dtype).expand(members, -1))
    check_finite_start(start=weights_MD[:1])
    return weights_MD if weights_MD.is_contiguous() else weights_MD.clone(), network.stacked_buffers(members)


def check_finite_start(**starts: Tensor) -> None:
    """Raise a ValueError if a weight at which chains or members begin is NaN or infinite."""
    for name, weights in starts.items():
        if not is_finite(weights):
            bad = int((~torch.isfinite(weights)).sum())
            raise ValueError(
                f"`{name}` is not finite: {bad} of {weights.numel()} weights are NaN or infinite. Start elsewhere."
            )
