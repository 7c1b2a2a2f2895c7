"""Networks of one model, given as the members of a posterior, as modules or as weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchbayes.checks import seen
from torchbayes.model.model import Model
from torchbayes.posteriors.functions import check_weights
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.posterior import Posterior

Networks = Posterior | nn.Module | Tensor | Sequence[nn.Module]
"""A posterior, a trained module or a list of such, or weights (D,) or (M, D)."""


def members_of(model: Model, networks: Networks, what: str, *, seed: int = 0) -> Point:
    """Return networks, at least one, as a point posterior of a model.

    A posterior that is not a point gives its default draws. Raises a ValueError if the networks are not those of
    the model, are not finite, or have drawn dropout masks; a TypeError for other objects. `what` is the name of the
    argument for messages.
    """
    if isinstance(networks, Posterior):
        point = _of_posterior(model, networks, what, seed)
    elif isinstance(networks, nn.Module) or _is_list(networks):
        point = Point.of(model, networks)  # type: ignore[arg-type]
    elif isinstance(networks, Tensor):
        weights_MD = networks.detach().unsqueeze(0) if networks.ndim == 1 else networks.detach()
        check_weights(model, "M", **{what: weights_MD})
        _check_dtype(weights_MD, what)
        point = Point(model, weights_MD.to(model.network.device, model.network.dtype))
    else:
        raise TypeError(f"`{what}` must be a posterior, a module, a list of modules or weights; got {seen(networks)}.")
    bad_M = ~point.weights_MD.isfinite().all(dim=1)
    if bad_M.any():
        raise ValueError(
            f"`{what}` is not finite: weights of member {int(bad_M.nonzero()[0])} are NaN or infinite. Leave out the "
            f"members that diverged."
        )
    return point


def one_of(model: Model, network: Networks, what: str) -> Point:
    """Return a single network as a point posterior of one member; a ValueError if there are several."""
    point = members_of(model, network, what)
    if point.members != 1:
        raise ValueError(
            f"`{what}` must be one network; got {point.members}. Pick a member, such as posterior.weights_MD[0]."
        )
    return point


def buffers_at(point: Point, member: int) -> dict[str, Tensor]:
    """Return the buffers of a member, without a leading axis."""
    buffers_M = point.buffers_M or point.model.network.stacked_buffers(point.members)
    return {name: buffer[member] for name, buffer in buffers_M.items()}


def _is_list(networks: Any) -> bool:
    listed = isinstance(networks, list | tuple) and len(networks) > 0
    return listed and all(isinstance(each, nn.Module) for each in networks)


def _check_dtype(weights_MD: Tensor, what: str) -> None:
    if not weights_MD.is_floating_point():
        raise TypeError(f"`{what}` must be floating-point weights; got {weights_MD.dtype}. Use `.float()`.")


def _of_posterior(model: Model, posterior: Posterior, what: str, seed: int) -> Point:
    """Return the members of a point posterior, or the default draws of another."""
    differences = model.layout.differences(posterior.model.layout)
    if differences:
        raise ValueError(f"`{what}` is a posterior of another model: {'; '.join(differences[:5])}.")
    known = posterior.statistics_known or posterior.calibration is None or not model.network.batch_norms
    if posterior.centre is posterior and known:
        weights_MD, buffers_M, known = posterior.centre.weights_MD, posterior.buffers_M, posterior.statistics_known
    else:
        functions = posterior.functions(seed=seed)
        if functions.masks_S is not None:
            raise ValueError(
                f"`{what}` draws dropout masks, which its weights do not hold. Give its weights as a Point instead."
            )
        weights_MD, buffers_M, known = functions.weights_SD, functions.buffers_S, True
    return Point(
        model,
        weights_MD.to(model.network.device, model.network.dtype),
        buffers_M=buffers_M,
        statistics_known=known,
        calibration=posterior.calibration,
        problems=posterior.problems,
    )


def at(point: Point, weights_MD: Tensor, buffers: Sequence[dict[str, Tensor]]) -> Point:
    """Return a posterior like `point` at other weights and with other buffers, one mapping for each member."""
    buffers_M = {name: torch.stack([own[name] for own in buffers]) for name in buffers[0]} or None
    same = {"statistics_known": point.statistics_known, "calibration": point.calibration, "problems": point.problems}
    return Point(point.model, weights_MD, buffers_M=buffers_M, **same)
