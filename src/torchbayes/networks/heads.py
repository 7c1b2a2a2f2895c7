"""A network with one head for each task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from torchbayes.checks import check_counts, check_kind, check_tensor, seen


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
        shapes = " and ".join(str(tuple(part.shape)) for part in rows)
        raise ValueError(f"`rows` must be inputs and targets of as many rows; got shapes {shapes}.")
    return (rows[0], torch.full((len(rows[0]),), int(head), device=rows[0].device)), rows[1]
