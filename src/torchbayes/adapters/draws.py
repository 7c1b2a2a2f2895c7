"""The way back: weights of a posterior in the network that they belong to."""

from __future__ import annotations

from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from torchbayes.adapters.last_token import LastToken
from torchbayes.checks import check_kind
from torchbayes.model.initialisation import copied
from torchbayes.model.model import Model
from torchbayes.posteriors.functions import check_weights

_Network = TypeVar("_Network", bound=nn.Module)


def load_draw(network: _Network, model: Model, weights: Tensor) -> _Network:
    """Return a copy of a network that holds one draw of a posterior's weights, as for `save_pretrained`.

    Everything that is not random is shared with the given network, which stays as it is. Of an output layer that
    `LastToken` has cut, the rows of the answers are written, and the others are as in the given network. Numbers are
    rounded to the dtype of the parameters that take them: in bfloat16 the copy holds a rounded draw.

    Args:
        network: the network that the model was made of, alone or in a `LastToken`, or another one of the same base.
        model: the model.
        weights: one vector (D,), such as `posterior.sample(members)[0]`, or `posterior.mean_MD[0]` for the mean of a
            Gaussian. Learned parameters of the likelihood in it are left out.

    Returns:
        The copy, of the class of the network.

    Raises:
        ValueError: if the network does not have the random parameters of the model, or the vector is of another length
            or not finite.
        TypeError: if an argument is of another kind.
    """
    check_kind(nn.Module, "an nn.Module", network=network)
    check_weights(model, weights=weights)
    views = model.network.mask.fill(model.split(weights.detach())[0])
    inside, prefix, rows = model.network.module, "", None
    if isinstance(inside, LastToken) and not isinstance(network, LastToken):
        prefix, rows = "network.", inside.answers
    named = dict(network.named_parameters())
    missing = [name for name in views if name.removeprefix(prefix) not in named]
    if missing:
        raise ValueError(
            f"`network` has no parameter `{missing[0].removeprefix(prefix)}`, nor {len(missing) - 1} others of the "
            f"model. Give the network that the model was made of."
        )
    shared = {id(parameter): parameter for parameter in named.values()}
    for name, view in views.items():
        held = named[name.removeprefix(prefix)]
        shared[id(held)] = nn.Parameter(_whole(name, view, held, rows), requires_grad=held.requires_grad)
    return cast(_Network, copied(network, shared))


def _whole(name: str, view: Tensor, held: Tensor, rows: Tensor | None) -> Tensor:
    """Return new values for a parameter: `view`, or what it holds with `view` in the rows of the answers."""
    if view.shape == held.shape:
        return view.to(held.device, held.dtype, copy=True)
    if rows is None or view.shape != (len(rows), *held.shape[1:]):
        raise ValueError(
            f"`{name}` has shape {tuple(view.shape)} in the model and {tuple(held.shape)} in `network`. Give the "
            f"network that the model was made of."
        )
    with torch.no_grad():
        return held.detach().index_copy(0, rows.to(held.device), view.to(held.device, held.dtype))
