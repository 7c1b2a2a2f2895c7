"""The loss of members that repel each other as functions, and its gradient in the weights.

With the outputs f_i of member i on the rows of a batch, which all members share, the direction of its weights is

    (∂f_i/∂x_i)ᵀ [ (N/B) Σ_b ∇_f log p(y_b | f_i) + ∇_f log p(f_i) − ∇_f log q̂(f_i) ]

This is one backward pass of Σ log p(y_b | f_i) and of the inner product of f_i with a constant: the vector-Jacobian
product of any network, in training mode, with buffers and dropout. By default the gradient of the prior of weights
replaces ∇_f log p(f_i). Otherwise ∇_f log p(f_i) is the score of networks with weights drawn from the prior, by the
spectral estimator. Learned parameters of a likelihood are not functions: they follow their own log joint density.

Outputs enter only through inner products, so processes that share the rows sum (M, M) matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from torchbayes.density.autograd import Into, leaves_of
from torchbayes.density.backend import Evaluation
from torchbayes.density.density import LogDensity, seeds_here
from torchbayes.density.dynamics import Value
from torchbayes.density.loop import drawing
from torchbayes.density.plans import bound, choose
from torchbayes.density.vmap import StackedLayers
from torchbayes.methods.particles.base import heat_of
from torchbayes.methods.particles.kernels import RBF, Pairs, gram
from torchbayes.methods.particles.scores import Score, score_elsewhere, score_matrix
from torchbayes.model.batches.batch import batch_size, on_rows, rows_of, tensors_of
from torchbayes.model.model import Batch, Model, ready
from torchbayes.model.network import Buffers
from torchbayes.native.process import differentiable
from torchbayes.randomness.seeds import Purpose, generator, mix

PLANS = ("loop", "vmap")  # the backends that have outputs with a graph
PriorOf = Literal["functions", "weights"]
_MASKED = -1e30  # logits below it are those of masked classes, the same in all functions


class Repulsion(NamedTuple):
    """How functions repel."""

    score: Score
    kernel: RBF  # of the outputs
    drive: float  # γ, the factor on the driving term
    drawn_PD: Tensor | None  # weights from the prior, for its score in functions; None for a prior of weights
    extra: int = 0  # rows beside those of the batch at which functions repel too


class _Rows(NamedTuple):
    """Rows of a step, the same for all members; the inputs may be followed by extra ones, which have no targets."""

    batch: Batch
    total: int  # B on all processes, without extra ones
    extra: int = 0  # on this process


class _Run(NamedTuple):
    """Members that went through the network: their place in the stack, and the results, graph included."""

    where: int | slice
    leaves: dict[str, Tensor]
    outputs: Tensor  # (F,) or (M, F)
    fit: Tensor  # Σ_b log p(y_b | f), () or (M,)


@dataclass
class FunctionTarget:
    """The objective of a descent of members that repel as functions."""

    density: LogDensity
    repulsion: Repulsion
    pairs: Pairs | None = None  # the kernel of all pairs, once the loss was computed

    @property
    def num_data(self) -> int:
        """N."""
        return self.density.num_data

    def loss(self, weights_MD: Tensor, batch: Batch, *, buffers: Buffers, seeds: Sequence[int], out: Tensor) -> Value:
        """Return the loss of each member, as `LogDensity.loss` does, and write the direction to `out` (M, D).

        A prior of functions has a score and no value, so the loss has that of the prior of the weights. All members
        see the rows of the first one. Buffers are changed in place.
        """
        density, model = self.density, self.density.model
        rows = _rows(density, batch, self.repulsion.extra, seed=seeds[0])
        scales, heat = model.scales(self.num_data, rows.total), heat_of(density)
        factor = -self.repulsion.drive * heat  # on the driving term
        _plan(density, Evaluation(weights_MD, batch, False, buffers, seeds, scales, out))
        with differentiable(), model.network.training() if density.training else nullcontext():
            runs = _run(density, weights_MD.detach(), rows, buffers=buffers, seeds=seeds)
            outputs_MF = torch.cat([run.outputs.detach().view(-1, run.outputs.shape[-1]) for run in runs])
            pull_MF = self._pull(outputs_MF, rows, seeds, heat=heat)
            for run in runs:
                total = run.fit.sum() * (factor * scales.likelihood)
                total = total + (run.outputs * pull_MF[run.where]).sum(dtype=torch.float64)
                Into(out, False).write(model.layout, run.where, total=total, leaves=run.leaves)
        value_M = torch.cat([run.fit.detach().view(-1) for run in runs])
        density.ranks.sum_(out, value_M)
        loss_M = -heat * (scales.likelihood * value_M + scales.prior * model.log_prior(weights_MD))
        if self.repulsion.drawn_PD is None:
            model.prior.add_gradient_(out, weights_MD, factor * scales.prior)
        elif learned_from := _learned_from(density):
            prior_MD = torch.zeros_like(out)
            model.prior.add_gradient_(prior_MD, weights_MD, factor * scales.prior)
            out[:, learned_from:].add_(prior_MD[:, learned_from:])
        return Value(loss_M, out, value_M * (self.num_data / rows.total))

    def _pull(self, outputs_MF: Tensor, rows: _Rows, seeds: Sequence[int], *, heat: float) -> Tensor:
        """Return the gradient by the outputs of what does not depend on the targets, on the scale of the loss."""
        density, (score, kernel, drive, drawn_PD, _) = self.density, self.repulsion
        count, scale = len(outputs_MF), density.model.scales(self.num_data, rows.total).prior
        every = outputs_MF if drawn_PD is None else torch.cat([outputs_MF, self._drawn(drawn_PD, rows, seeds)])
        gram_PP = gram(every, centred=True)
        density.ranks.sum_(gram_PP)
        self.pairs = kernel.pairs(gram_PP[:count, :count])
        force = torch.zeros(count, len(every), dtype=torch.float64, device=every.device)
        force[:, :count] = score_matrix(self.pairs, score) * heat
        if drawn_PD is not None:
            force[:, count:] = score_elsewhere(gram_PP, count) * (-drive * heat * scale)
        # the rows of both parts sum to zero, so differences from any function give the same
        return force.to(every.dtype) @ (every - every[:1])

    def _drawn(self, drawn_PD: Tensor, rows: _Rows, seeds: Sequence[int]) -> Tensor:
        """Return the outputs of networks with weights from the prior, (P, F); ValueError if they are not finite."""
        without = rows._replace(batch=rows.batch._replace(targets=None))
        buffers = self.density.model.network.stacked_buffers(len(drawn_PD))
        own_seeds = [mix(Purpose.PRIOR_NETWORK, seeds[0], number) for number in range(len(drawn_PD))]
        with torch.no_grad():
            runs = _run(self.density, drawn_PD, without, buffers=buffers, seeds=own_seeds)
        outputs_PF = torch.cat([run.outputs.view(-1, run.outputs.shape[-1]) for run in runs])
        if not bool(torch.isfinite(outputs_PF).all()):
            raise ValueError(
                "networks with weights drawn from the prior have outputs that are not finite, so their functions tell "
                "no score. Choose a narrower prior, or leave `prior` at 'weights'."
            )
        return outputs_PF


def _rows(density: LogDensity, batch: Batch, extra: int, *, seed: int) -> _Rows:
    """Return the rows of the first member, or this process's share of them."""
    first = ready(density.model, batch, members=True).map(lambda t: t[0])
    total, ranks = batch_size(first.inputs), density.ranks
    shared = first.map(lambda t: t[ranks.rows(total)]) if ranks.data > 1 else first
    if not extra:
        return _Rows(shared, total)
    extra_inputs = rows_of(_between(first.inputs, extra, total, seed=seed), ranks.rows(extra))
    joined = pytree.tree_map(
        lambda a, b: torch.cat([a, b]) if isinstance(a, Tensor) else a, shared.inputs, extra_inputs
    )
    return _Rows(shared._replace(inputs=joined), total, batch_size(extra_inputs))


def _between(inputs: Any, extra: int, total: int, *, seed: int) -> Any:
    """Return inputs on lines through pairs of rows: x + u (x′ − x) with u uniform on (−1, 2)."""
    source = generator(Purpose.EXTRA, seed)
    ends_2E = torch.randint(total, (2, extra), generator=source)
    share_E = 3 * torch.rand(extra, generator=source, dtype=torch.float64) - 1

    def line(rows: Tensor) -> Tensor:
        first, second = (rows[ends.to(rows.device)] for ends in ends_2E)
        share = share_E.to(rows).view(-1, *[1] * (rows.ndim - 1))
        return first + share * (second - first)

    return on_rows(line, inputs)


def check_extra(model: Model, batch: Batch) -> None:
    """Raise ValueError unless rows can be made between those of a batch, and put beside them.

    That needs inputs of real numbers, and rows that do not change the outputs of others.
    """
    norms = (*model.network.batch_norms, *model.network.by_batch)
    if norms:
        raise ValueError(f"`extra` rows would change the statistics of the batch norm `{norms[0]}`. Leave them out.")
    if not all(tensor.is_floating_point() for tensor in tensors_of(batch.inputs)):
        raise ValueError("`extra` rows lie between those of a batch, and inputs that are no real numbers have none.")


def _plan(density: LogDensity, evaluation: Evaluation) -> None:
    """Choose how members are run: one after the other or together as set, else whichever is measured to be faster."""
    if density.plan is None or density.plan.backend not in PLANS:
        every = bound(density.model, training=density.training, chunk_size=density.chunk_size)
        density.plan = choose({name: every[name] for name in PLANS}, evaluation)


def _run(density: LogDensity, weights_MD: Tensor, rows: _Rows, *, buffers: Buffers, seeds: Sequence[int]) -> list[_Run]:
    """Return outputs and log likelihoods, by running one member after the other or all together.

    The random numbers of a member depend on its seed, and on this process where others have other rows. Without
    targets the log likelihood is 0.
    """
    model, batch, seeds = density.model, rows.batch, seeds_here(density.ranks, seeds)
    assert density.plan is not None

    def values_of(views: dict[str, Tensor], buffers: Any, inputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
        named, learned = model.split(views)
        outputs = model.network(named, inputs, buffers or None)
        values = torch.where(outputs < _MASKED, 0.0, outputs).flatten()
        if targets is None:
            return values, outputs.new_zeros((), dtype=torch.float64)
        fit = model.likelihood.log_prob(outputs[: len(outputs) - rows.extra], targets, learned)
        return values, fit.sum(dtype=torch.float64)

    if density.plan.backend == "vmap":
        leaves = leaves_of(model.layout, weights_MD)
        with StackedLayers():
            outputs_MF, fit_M = vmap(partial(values_of, inputs=batch.inputs, targets=batch.targets))(leaves, buffers)
        return [_Run(slice(None), leaves, outputs_MF, fit_M)]
    runs, inputs = [], model.network.arrange(batch.inputs)
    for m, weights_D in enumerate(weights_MD):
        leaves = leaves_of(model.layout, weights_D)
        with drawing(model.network, seeds[m]):
            outputs, fit = values_of(leaves, {n: b[m] for n, b in buffers.items()}, inputs, batch.targets)
        runs.append(_Run(m, leaves, outputs, fit))
    return runs


def _learned_from(density: LogDensity) -> int:
    """Return where the learned parameters of the likelihood begin in the vector; 0 if there are none."""
    model = density.model
    size = sum(model.layout.slices[name].stop - model.layout.slices[name].start for name in model.network.layout.names)
    return size if size < model.layout.size else 0
