"""What backends that differentiate by autograd share: modes, chunks of rows, and where gradients are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.density.backend import Backend, Evaluation
from torchbayes.density.precision import full_precision
from torchbayes.model.layout import Layout
from torchbayes.model.model import Batch


class Into(NamedTuple):
    """Where a gradient goes: it overwrites the tensor or is added to it; nowhere if there is no tensor.

    A value without its gradient comes from the same forward pass as one with it, graph included: PyTorch uses other
    kernels where nothing is differentiated, and their rounding must not enter differences of values.
    """

    gradient_MD: Tensor | None
    add: bool

    def write(self, layout: Layout, members: int | slice, *, total: Tensor, leaves: dict[str, Tensor]) -> None:
        """Differentiate `total` into the rows of `members`; a leaf's own gradient is freed as soon as it is added."""
        if self.gradient_MD is None:
            return
        views = layout.split(self.gradient_MD[members])
        left = set(views)

        def move(leaf: Tensor, name: str) -> None:
            if leaf.grad is not None:
                views[name].add_(leaf.grad) if self.add else views[name].copy_(leaf.grad)
                leaf.grad = None
                left.discard(name)

        for name, leaf in leaves.items():
            leaf.register_post_accumulate_grad_hook(partial(move, name=name))
        total.backward(inputs=tuple(leaves.values()))
        for name in left if not self.add else ():  # the total does not depend on these
            views[name].zero_()


def chunks(evaluation: Evaluation, chunk_size: int) -> Iterator[Batch]:
    """Yield all the data in chunks, or the minibatch.

    Args:
        evaluation: what is asked for.
        chunk_size: rows of a chunk.

    Yields:
        Rows.
    """
    if not evaluation.shared:
        yield evaluation.batch
        return
    for start in range(0, evaluation.batch.size, chunk_size):
        where = slice(start, start + chunk_size)
        yield evaluation.batch.map(lambda t, where=where: t[where])


def differentiated(backend: Backend, evaluation: Evaluation, run: Callable[[Batch, Into], Tensor]) -> Tensor:
    """Return the log likelihood of each member, float64 (M,), over all chunks, and write the gradient.

    Args:
        backend: the backend that evaluates.
        evaluation: what is asked for.
        run: rows, and where the gradient goes -> their log likelihood (M,).
    """
    weights_MD = evaluation.weights_MD
    mode = backend.model.network.training() if backend.training else nullcontext()
    # calls on all the data are those of Metropolis tests
    precision = full_precision(weights_MD.device) if evaluation.shared else nullcontext()
    with torch.enable_grad(), mode, precision:
        parts = chunks(evaluation, backend.chunk_size)
        values = [run(rows, Into(evaluation.gradient_MD, number > 0)) for number, rows in enumerate(parts)]
    return sum(values[1:], values[0])


def leaves_of(layout: Layout, weights: Tensor) -> dict[str, Tensor]:
    """Return named views of `weights` (..., D) to differentiate with respect to."""
    return {name: view.detach().requires_grad_() for name, view in layout.split(weights).items()}
