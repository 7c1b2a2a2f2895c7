"""Products of the curvature with vectors, without any matrix: two backward passes through one graph.

The gradients Jᵀu are a linear function of u, so that one more derivative gives J v; JᵀΛJ v follows by one plain
backward pass (Pearlmutter 1994, Schraudolph 2002). Memory is that of one backward pass, whatever the number of outputs.
Networks are run here, because the density's backends differentiate once and keep no graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers
from torchbayes.native.process import differentiable, plain_attention


@contextmanager
def _graph(model: Model, views: Mapping[str, Tensor], inputs: Any, buffers: Buffers | None) -> Iterator[Any]:
    """Yield leaves by name and outputs, with attention in the form that can be differentiated twice."""
    with differentiable():
        leaves = {name: view.detach().requires_grad_() for name, view in views.items()}
        with plain_attention():  # of the network alone: the mode would see each operation of each product as well
            outputs = model.network(leaves, model.network.arrange(inputs), buffers)
        yield leaves, outputs


def tangent_outputs(
    model: Model, views: Mapping[str, Tensor], inputs: Any, *, vectors_RD: Tensor, buffers: Buffers | None
) -> Tensor:
    """Return the outputs of the linearised network, f + J v, for several vectors v over its weights, (R, B, ...)."""
    with _graph(model, views, inputs, buffers) as (leaves, outputs):
        pushed = [*_pushed(model, outputs, leaves, vectors_RD=vectors_RD)]
    return outputs.detach() + torch.stack(pushed)


def _pushed(model: Model, outputs: Tensor, leaves: Mapping[str, Tensor], *, vectors_RD: Tensor) -> Iterator[Tensor]:
    """Yield J v for each vector."""
    dummy = torch.zeros_like(outputs, requires_grad=True)
    pulled = torch.autograd.grad(outputs, [*leaves.values()], dummy, create_graph=True, materialize_grads=True)
    for parts in zip(*model.network.layout.split(vectors_RD).values(), strict=True):
        yield torch.autograd.grad(pulled, dummy, parts, retain_graph=True)[0]


def curvature_products(
    model: Model, views: Mapping[str, Tensor], inputs: Any, *, root: Any, vectors_RD: Tensor, buffers: Buffers | None
) -> Tensor:
    """Return H v for several vectors v over the network's weights, H = Σ_b JᵀΛJ over some rows.

    `root` turns outputs (B, ...) into columns (R, B, ...) with Σ r rᵀ = Λ.
    """
    layout = model.network.layout
    with _graph(model, views, inputs, buffers) as (leaves, outputs):
        tensors, columns = list(leaves.values()), root(outputs)
        products = []
        for pushed in _pushed(model, outputs, leaves, vectors_RD=vectors_RD):
            shares = (columns * pushed).flatten(2).sum(-1)  # rᵀ J v of every column and row
            weighted = (columns * shares.view(*shares.shape, *[1] * (columns.ndim - 2))).sum(0)
            back = torch.autograd.grad(outputs, tensors, weighted, retain_graph=True, materialize_grads=True)
            products.append(back)
    return layout.join({name: torch.stack(parts) for name, *parts in zip(leaves, *products, strict=True)})


def hessian_rows(
    model: Model,
    views: Mapping[str, Tensor],
    batch: Batch,
    *,
    parameters: Mapping[str, Tensor],
    buffers: Buffers | None,
) -> Tensor:
    """Return −∇² Σ_b log p(y_b|f_b) in the network's weights, (D, D), symmetric up to rounding.

    It takes D backward passes, and so is for small networks.
    """
    layout = model.network.layout
    with _graph(model, views, batch.inputs, buffers) as (leaves, outputs):
        loss = -model.likelihood.log_prob(outputs, batch.targets, parameters).sum()
        tensors, rows = list(leaves.values()), []
        for slopes in torch.autograd.grad(loss, tensors, create_graph=True, materialize_grads=True):
            if not slopes.requires_grad:
                rows.append(slopes.new_zeros(slopes.numel(), layout.size))
                continue
            for entry in range(slopes.numel()):
                unit = torch.zeros(slopes.numel(), dtype=slopes.dtype, device=slopes.device)
                unit[entry] = 1
                row = torch.autograd.grad(
                    slopes, tensors, unit.view(slopes.shape), retain_graph=True, materialize_grads=True
                )
                rows.append(layout.join(dict(zip(leaves, row, strict=True))).unsqueeze(0))
    return torch.cat(rows)
