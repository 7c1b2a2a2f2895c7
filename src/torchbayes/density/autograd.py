"""What evaluations by autograd share: modes, chunks, mixtures of draws, and where gradients are written.

Rows that go through a network in chunks: values and gradients are sums over them, so a batch may be of any size.

One weight vector is held for all chunks. What a network draws is drawn anew for each; noise of layers that take
distributions is that of the whole batch. Each chunk begins with the buffers before the batch. Afterwards those that are
floating-point numbers have moved by the mean over the rows, and others, such as counts, as the first chunk moves them.

In float16 a gradient below 6e-8 is zero, and one above 65,504 infinite. So the density is multiplied by a power of 2
before it is differentiated, and its gradient divided by it, which changes no other number. The power is that at which
the mean over the rows is multiplied by about 4,096. If the gradient is not finite, the same rows are taken again with a
power 16 times smaller. Nothing is remembered, so a step depends on its arguments alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.density.backend import Backend, Evaluation, Mixing
from torchbayes.density.precision import full_precision
from torchbayes.model.batches.batch import batch_size, in_chunks
from torchbayes.model.layout import Layout
from torchbayes.model.likelihoods.weighted import apart
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers
from torchbayes.model.precision import lowered
from torchbayes.native.process import differentiable
from torchbayes.randomness.seeds import Purpose, mix

# of the mean over rows: gradients of it up to 16, and down to 1.5e-11, are numbers in float16
_FIRST = 4096.0
_SMALLER, _TRIES = 16.0, 7


class Into(NamedTuple):
    """Where a gradient is written: it overwrites the tensor or is added to it. Without a tensor there is no gradient.

    A value without its gradient comes from the same forward pass as one with it, graph included. PyTorch uses other
    kernels where nothing is differentiated, and their rounding must not enter differences of values.
    """

    gradient_MD: Tensor | None
    add: bool
    scale: float = 1.0  # a power of 2: factor on what is differentiated, by which the gradient is divided

    def write(self, layout: Layout, members: int | slice, *, total: Tensor, leaves: dict[str, Tensor]) -> None:
        """Differentiate `total` into the rows of `members`; a leaf's own gradient is freed as soon as it is added."""
        if self.gradient_MD is None:
            return
        views = layout.split(self.gradient_MD[members])
        missing = set(views)

        def move(leaf: Tensor, name: str) -> None:
            if leaf.grad is not None:
                if self.scale != 1:
                    leaf.grad.mul_(1 / self.scale)
                views[name].add_(leaf.grad) if self.add else views[name].copy_(leaf.grad)
                leaf.grad = None
                missing.discard(name)

        for name, leaf in leaves.items():
            leaf.register_post_accumulate_grad_hook(partial(move, name=name))
        (total * self.scale if self.scale != 1 else total).backward(inputs=tuple(leaves.values()))
        for name in missing if not self.add else ():  # the total does not depend on these
            views[name].zero_()


class Chunk(NamedTuple):
    """Rows of a batch that go through the network at once."""

    rows: Batch
    start: int  # number of the first of them in the batch
    buffers: dict[str, Tensor] | None  # changed in place
    scale: float = 1.0  # factor on what is differentiated, by which its gradient is divided

    @property
    def adds(self) -> bool:
        """Whether its gradient is added to that of the chunks before."""
        return self.start > 0

    def seeds(self, seeds: Sequence[int]) -> list[int]:
        """Return the seeds of what the network draws for these rows."""
        return [mix(Purpose.CHUNK, seed, self.start) if self.adds else seed for seed in seeds]


def by_chunks(
    batch: Batch,
    run: Callable[[Chunk], Tensor],
    *,
    size: int | None,
    axis: int = 0,
    gradient: Tensor | None,
    factor: float,
    scaled: bool,
    buffers: dict[str, Tensor] | None,
) -> Tensor:
    """Return the sum of what `run` returns for each chunk.

    `run` writes the gradient of `factor` Σ_b log p(y_b | f_b), or adds it where the chunk `adds`. `axis` is that of the
    rows in the tensors of the batch, and `size` the most rows of a chunk; None for all. `scaled` says whether gradients
    may have passed through float16. Buffers are changed in place.
    """
    rows = batch_size(batch.inputs, axis)
    powers = _powers(abs(factor) * rows) if gradient is not None and scaled else [1.0]
    whole = len(powers) == 1 and (size is None or rows <= size)
    moved, total = _Moved({}), torch.zeros(())  # there is a power, and a chunk
    for scale in powers:
        values, start, moved = [], 0, _Moved({} if whole else buffers or {})
        for rows_of_chunk in in_chunks(batch, size, axis=axis):
            begun, count = moved.begun() or buffers, batch_size(rows_of_chunk.inputs, axis)
            values.append(run(Chunk(rows_of_chunk, start, begun, scale)))
            moved.add(begun or {}, count / rows)
            start += count
        total = sum(values[1:], values[0])
        if gradient is None or scale == powers[-1] or _is_finite(gradient) or not _is_finite(total):
            break
    moved.settle()
    return total


class _Moved:
    """Buffers by which the chunks of a batch begin, and those after all of them; of no buffers, nothing."""

    def __init__(self, buffers: dict[str, Tensor]) -> None:
        self._before, self._after = buffers, dict[str, Tensor]()

    def begun(self) -> dict[str, Tensor]:
        return {name: buffer.clone() for name, buffer in self._before.items()}

    def add(self, chunk: Mapping[str, Tensor], share: float) -> None:
        """Take in what a chunk, a share of the rows, has made of its buffers."""
        for name, before in self._before.items():
            buffer = chunk[name]
            if not buffer.is_floating_point():
                self._after.setdefault(name, buffer)
                continue
            change = torch.where(buffer == before, 0.0, (buffer - before) * share)  # a mask may hold -inf
            self._after[name] = self._after.get(name, before) + change

    def settle(self) -> None:
        for name, after in self._after.items():
            self._before[name].copy_(after)


def _powers(unit: float) -> list[float]:
    """Return factors to try, largest first, for a density whose factor times its rows is `unit`."""
    if not unit:
        return [1.0]
    first = 2.0 ** round(math.log2(_FIRST / unit))
    return [first / _SMALLER**number for number in range(_TRIES)]


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def first_chunk(backend: Backend, evaluation: Evaluation) -> Evaluation:
    """Return an evaluation on the first rows that go through the network at once."""
    size, axis = _cut(backend, evaluation)
    return evaluation._replace(batch=next(in_chunks(evaluation.batch, size, axis=axis)))


def _cut(backend: Backend, evaluation: Evaluation) -> tuple[int | None, int]:
    """Return how many rows go through the network at once, None for all, and the axis of the rows."""
    return (backend.chunk_size, 0) if evaluation.shared else (backend.model.chunk_size, 1)


def differentiated(backend: Backend, evaluation: Evaluation, run: Callable[[Evaluation, Into], Tensor]) -> Tensor:
    """Return the log likelihood of each member, float64 (M,), over all chunks, and write the gradient.

    `run` maps an evaluation on rows that go through at once, and where the gradient is written, to their log likelihood
    (M,).
    """
    weights_MD, gradient_MD, mixing = evaluation.weights_MD, evaluation.gradient_MD, evaluation.mixing
    below = evaluation.below
    mode = backend.model.network.training() if backend.training else nullcontext()
    # Metropolis tests call on all the data, and need full precision.
    precision = full_precision(weights_MD.device) if evaluation.shared else nullcontext()

    def of(chunk: Chunk) -> Tensor:
        seeds = None if evaluation.seeds is None else chunk.seeds(evaluation.seeds)
        chunk_evaluation = evaluation._replace(batch=chunk.rows, buffers=chunk.buffers, seeds=seeds)
        with below(chunk.start, chunk.rows.inputs, weights_MD[0]) if below else nullcontext():
            return run(chunk_evaluation, Into(gradient_MD, chunk.adds, chunk.scale))

    size, axis = _cut(backend, evaluation)
    low, scaled = lowered() if backend.model.autocast else nullcontext(), backend.model.network.precision.is_half
    with differentiable(), mode, precision, low:
        if size is None and not scaled:
            return run(evaluation, Into(gradient_MD, False))
        return by_chunks(
            evaluation.batch,
            of,
            size=size,
            axis=axis,
            gradient=gradient_MD,
            factor=evaluation.scales.likelihood * (mixing.draws if mixing else 1),
            scaled=scaled,
            buffers=evaluation.buffers,
        )


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
