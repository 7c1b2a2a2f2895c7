"""What the backends that use autograd share: modes, chunks, mixtures of draws, and where gradients are written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.density.backend import Backend, Evaluation, Mixing
from torchbayes.density.precision import full_precision
from torchbayes.model.layout import Layout
from torchbayes.model.likelihoods.weighted import apart
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers
from torchbayes.native.process import differentiable


class Into(NamedTuple):
    """Where a gradient is written: it overwrites the tensor or is added to it. Without a tensor there is no gradient.

    A value without its gradient comes from the same forward pass as one with it, graph included. PyTorch uses other
    kernels where nothing is differentiated, and their rounding must not enter differences of values.
    """

    gradient_MD: Tensor | None
    add: bool

    def write(self, layout: Layout, members: int | slice, *, total: Tensor, leaves: dict[str, Tensor]) -> None:
        """Differentiate `total` into the rows of `members`; a leaf's own gradient is freed as soon as it is added."""
        if self.gradient_MD is None:
            return
        views = layout.split(self.gradient_MD[members])
        missing = set(views)

        def move(leaf: Tensor, name: str) -> None:
            if leaf.grad is not None:
                views[name].add_(leaf.grad) if self.add else views[name].copy_(leaf.grad)
                leaf.grad = None
                missing.discard(name)

        for name, leaf in leaves.items():
            leaf.register_post_accumulate_grad_hook(partial(move, name=name))
        total.backward(inputs=tuple(leaves.values()))
        for name in missing if not self.add else ():  # the total does not depend on these
            views[name].zero_()


def chunks(evaluation: Evaluation, chunk_size: int) -> Iterator[Batch]:
    """Yield all the data in chunks of `chunk_size` rows, or the minibatch."""
    if not evaluation.shared:
        yield evaluation.batch
        return
    for start in range(0, evaluation.batch.size, chunk_size):
        where = slice(start, start + chunk_size)
        yield evaluation.batch.map(lambda t, where=where: t[where])


def differentiated(backend: Backend, evaluation: Evaluation, run: Callable[[Batch, Into], Tensor]) -> Tensor:
    """Return the log likelihood of each member, float64 (M,), over all chunks, and write the gradient.

    `run` maps rows, and where the gradient is written, to their log likelihood (M,).
    """
    weights_MD = evaluation.weights_MD
    mode = backend.model.network.training() if backend.training else nullcontext()
    # Metropolis tests call on all the data, and need full precision.
    precision = full_precision(weights_MD.device) if evaluation.shared else nullcontext()
    with differentiable(), mode, precision:
        values = []
        for number, rows in enumerate(chunks(evaluation, backend.chunk_size)):
            below = evaluation.below
            with below(number, rows.inputs, weights_MD[0]) if below else nullcontext():
                values.append(run(rows, Into(evaluation.gradient_MD, number > 0)))
    return sum(values[1:], values[0])


def log_prob(model: Model, weights: dict[str, Tensor], batch: Batch, *, buffers: Buffers | None = None) -> Tensor:
    """Return log p(y_b | f_w(x_b)) of each row, (B,), without its weight, for mixtures over draws."""
    views, learned = model.split(weights)
    plain, targets, _ = apart(model.likelihood, batch.targets)
    return plain.log_prob(model.network(views, batch.inputs, buffers), targets, learned)


def mixed(log_prob_MSB: Tensor, mixing: Mixing, *, counts_MB: Tensor | None) -> Tensor:
    """Return Σ_b a_b (1/α) log mean_s exp(α l_sb), float64 (M,).

    a are weights of the rows, (M, B) or (B,) for all members; ones if None.
    """
    power, draws = mixing.power, log_prob_MSB.shape[1]
    mean_MB = (torch.logsumexp(log_prob_MSB.double() * power, dim=1) - math.log(draws)) / power
    if counts_MB is not None:
        mean_MB = torch.where(counts_MB == 0, 0.0, counts_MB * mean_MB)
    return mean_MB.sum(-1)


def leaves_of(layout: Layout, weights: Tensor) -> dict[str, Tensor]:
    """Return named views of `weights` (..., D) to differentiate with respect to."""
    return {name: view.detach().requires_grad_() for name, view in layout.split(weights).items()}
