"""Parameters that a task does not use, such as the heads of other tasks, keep their distribution.

Under a prior of independent weights the task would leave them exactly; but an optimiser that rescales small gradients,
such as Adam, would move them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchbayes.linalg import Diagonal
from torchbayes.linalg.structure import is_diagonal
from torchbayes.model.model import PREFIX, Model
from torchbayes.model.sources.sources import Source
from torchbayes.native.process import differentiable

_ROWS = 64
_STEP = 0.1


def used_by(model: Model, source: Source) -> Tensor:
    """Return which weights belong to parameters on which the outputs for a task depend, bool (D,).

    The gradients for its first rows decide, at the weights of the network and at others, in case some are zero.
    """
    inputs = source.some(_ROWS)[0].inputs
    given_D = model.network.weights()
    shifted_D = given_D + _STEP * torch.arange(1, len(given_D) + 1).cos().to(given_D)
    used_D = torch.ones(model.layout.size, dtype=torch.bool)
    gradients = [_gradients(model, weights_D, inputs) for weights_D in (given_D, shifted_D)]
    for name, where in model.layout.slices.items():
        if not name.startswith(PREFIX):
            used_D[where] = any(each is None or bool((each[name] != 0).any()) for each in gradients)
    return used_D


def _gradients(model: Model, weights_D: Tensor, inputs: Any) -> dict[str, Tensor] | None:
    """Return the gradient of a sum over the outputs by each parameter; None if the network has none."""
    parameters = {name: t.clone().requires_grad_() for name, t in model.network.layout.split(weights_D).items()}
    buffers = {name: buffer.clone() for name, buffer in model.network.buffers.items()}
    try:
        with differentiable():
            outputs = model.network(parameters, inputs, buffers)
            # each output has another factor, because normalised outputs have a constant sum
            factors = torch.arange(1, outputs.numel() + 1, device=outputs.device).cos().view_as(outputs)
            loss = (outputs * factors).sum()
            gradients = torch.autograd.grad(loss, [*parameters.values()], materialize_grads=True)
    except RuntimeError:
        return None
    return dict(zip(parameters, gradients, strict=True))


def restored(posterior: Any, used_D: Tensor, *, before: Any) -> Any:
    """Return the posterior of a task with the parameters that it does not use as they were.

    It is a point posterior, or a Gaussian, which stays as it is if its weights are correlated. `before` is the point
    posterior before the task.
    """
    used_D = used_D.to(posterior.model.network.device)
    if bool(used_D.all()):
        return posterior
    if posterior.centre is posterior and before is not None:
        return replace(posterior, weights_MD=torch.where(used_D, posterior.weights_MD, before.weights_MD))
    if not hasattr(posterior, "covariance") or not is_diagonal(posterior.covariance):
        return posterior
    prior = posterior.model.prior
    fitted_MD = posterior.covariance.diagonal()
    wide_D = prior.stds() ** 2 if prior.joint is None else prior.joint.covariance.diagonal()[0]
    loc_D, wide_D = prior.locs().to(fitted_MD), wide_D.to(fitted_MD)
    unchanged_D = used_D | ~wide_D.isfinite()  # also for a prior without a variance
    variance_MD = torch.where(unchanged_D, fitted_MD, wide_D)
    mean_MD = torch.where(unchanged_D, posterior.mean_MD, loc_D)
    return replace(posterior, mean_MD=mean_MD, covariance=Diagonal(variance_MD))
