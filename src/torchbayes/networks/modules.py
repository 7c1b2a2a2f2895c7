"""Modules around others: one head for each task, and a layer whose weights are dropped at random."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from torchbayes.checks import check_counts, check_kind, check_share, check_tensor, seen


class MultiHead(nn.Module):
    """f(x, t) = head_t(body(x)): each row has the number of its head.

    All heads are in one network, so that weights, priors and posteriors of all tasks are those of one model. Each row
    has the number of its head beside its inputs: see `for_head`. The outputs of the other heads are computed and not
    used.

    Attributes:
        body: what the tasks share.
        heads: one module for each task, all with outputs of one shape.
    """

    def __init__(self, body: nn.Module, heads: Iterable[nn.Module]) -> None:
        """Combine a body and heads, without copying them.

        Args:
            body: what the tasks share.
            heads: one for each task.

        Raises:
            TypeError: if one is not a module.
            ValueError: if there is no head.
        """
        super().__init__()
        check_kind(nn.Module, "a module", body=body)
        if isinstance(heads, str) or not isinstance(heads, Iterable):
            raise TypeError(f"`heads` must be modules, such as [nn.Linear(256, 2)]; got {seen(heads)}.")
        heads = [*heads]
        if not heads:
            raise ValueError("`heads` must be at least one module; got none.")
        for head in heads:
            check_kind(nn.Module, "modules, one for each task", heads=head)
        self.body, self.heads = body, nn.ModuleList(heads)

    def forward(self, inputs: Tensor, head: Tensor) -> Tensor:
        """Return the outputs of each row's head, (B, ...).

        Args:
            inputs: (B, ...), of the body.
            head: number of each row's head, int64 (B,).
        """
        features = self.body(inputs)
        each = torch.stack([module(features) for module in self.heads], dim=1)
        where = head.view(-1, *[1] * (each.ndim - 1)).expand(-1, 1, *each.shape[2:])
        return each.gather(1, where).squeeze(1)


def for_head(rows: Any, head: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Return rows that go through one head of a `MultiHead`.

    Args:
        rows: (inputs, targets), tensors.
        head: number of the head, from 0.

    Returns:
        ((inputs, heads), targets), with `head` for each row, int64 (B,).

    Raises:
        TypeError: if the rows are not two tensors.
        ValueError: if these have different lengths.
    """
    check_counts(least=0, head=head)
    if not isinstance(rows, tuple) or len(rows) != 2:
        raise TypeError(f"`rows` must be (inputs, targets), two tensors; got {seen(rows)}.")
    check_tensor(inputs=rows[0], targets=rows[1])
    if not rows[0].ndim or rows[0].shape[:1] != rows[1].shape[:1]:
        shapes = " and ".join(str(tuple(inputs.shape)) for inputs in rows)
        raise ValueError(f"`rows` must be inputs and targets of as many rows; got shapes {shapes}.")
    return (rows[0], torch.full((len(rows[0]),), int(head), device=rows[0].device)), rows[1]


class DropConnect(nn.Module):
    """A layer whose weights are dropped at random: f = layer with (Z/k) ∘ W, Z_ij ~ Bernoulli(k), k = 1 − rate.

    It drops single weights in the place of units. Source: Wan, Zeiler, Zhang, LeCun and Fergus (2013).

    In training all rows of a batch share a mask, which is new at every step: like a prediction, a step uses one draw
    of q(W) = M ∘ Z, M = W/k. `MCDropout` trains it and draws from it: a drawn function has one mask for all batches.
    Biases are not dropped. Under a normal prior N(0, s²) of W the ELBO that is maximised is that of the prior N(0,
    s²/k) of M, as for units.

    Attributes:
        layer: with a parameter `weight`, such as nn.Linear or nn.Conv2d.
        dropout: the rate, the probability that a weight is dropped.
    """

    def __init__(self, layer: nn.Module, dropout: float = 0.1) -> None:
        """Wrap a layer, which is used as it is.

        Args:
            layer: the layer.
            dropout: the rate, from 0 to below 1.

        Raises:
            TypeError: if the layer has no parameter of the name `weight`.
            ValueError: if the rate is not in [0, 1).
        """
        super().__init__()
        if not isinstance(layer, nn.Module) or not isinstance(getattr(layer, "weight", None), nn.Parameter):
            raise TypeError(f"`layer` must be a layer with weights, such as nn.Linear(4, 8); got {seen(layer)}.")
        check_share(dropout=dropout)
        self.layer, self.dropout = layer, float(dropout)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs of the layer, in training mode under a random mask of its weights."""
        if not self.training or not self.dropout:
            return self.layer(inputs)
        weight: Tensor = self.layer.weight  # type: ignore[assignment]
        return functional_call(self.layer, {"weight": F.dropout(weight, self.dropout)}, (inputs,))

    def extra_repr(self) -> str:
        """Return the rate."""
        return f"dropout={self.dropout}"
