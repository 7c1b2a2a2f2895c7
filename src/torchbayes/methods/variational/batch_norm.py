"""MCBatchNorm: batch norms with the statistics of random training minibatches (Teye, Azizpour and Smith 2018).

    f_s(x) = f(x; w, μ_s, σ_s²),    μ_s, σ_s² of every batch norm on one minibatch of B training rows

in training mode: each layer is normalised by the statistics of what the layers before it make of the same minibatch.
The running statistics of the network are not changed. With B = N all draws are one function. The paper reads training
with batch norm as variational inference. Its correspondence of B and weight decay with a prior has no closed form, and
B sets the spread of the draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm  # no public base class covers every batch norm

from torchbayes.density.density import LogDensity
from torchbayes.methods.choices import Choice, Epochs
from torchbayes.methods.defaults import Defaults, Report
from torchbayes.methods.finite import clone
from torchbayes.methods.keepers import Kept
from torchbayes.methods.optimise.seeker import seeker
from torchbayes.methods.protocol import Needs, Shelf, Visit
from torchbayes.model.batches.batch import batch_size, rows_of
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers, Network
from torchbayes.posteriors.layers.batch_norm import BatchNormPosterior


@dataclass(frozen=True)
class State:
    """The trained weights and buffers, and the statistics so far."""

    weights_MD: Tensor
    buffers: Buffers
    statistics: dict[str, Tensor]  # name of the buffer -> (M, K, channels); the first `collected` of the K are known
    collected: int  # minibatches so far
    rows: int  # of the largest minibatch so far
    step: int  # minibatches read


@dataclass(frozen=True)
class Info(Report):
    """Rows of the minibatch, for the log."""

    rows_M: Tensor


@dataclass(frozen=True)
class MCBatchNorm(Kept, Defaults):
    """Monte Carlo batch norm around trained networks: `fit(model, data, MCBatchNorm(), start=net)`.

    Without a start, `fit` first trains M networks by `MAP(batch_size=B)`. The statistics of the minibatches are kept,
    so a saved posterior needs no training data. Dropout is off.

    Attributes:
        batch_size: B, rows of a minibatch, where the data are not batched already: as in training, at least 2. A
            smaller one spreads the functions more.
        draws: K, minibatches for each network; more draws than these repeat them.
        members: M, networks to train where no start is given; with a start, `fit` sets it to the number of networks
            there.
    """

    batch_size: int = field(default=128, metadata={"least": 2})
    draws: int = 50
    members: int = field(default=1, kw_only=True)

    plan = "loop"

    @property
    def needs(self) -> Needs:
        """Trained networks, and minibatches of the training rows."""
        return Needs(batch_size=self.batch_size, start=seeker(batch_size=self.batch_size))

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (Epochs(self.needs.start, settings=(), mode=True),)

    def check(self, model: Model) -> None:
        super().check(model)
        normed(model.network)

    def length(self, steps_per_epoch: int) -> int:
        """Return the most minibatches that are read: the last of an epoch is left out if it has fewer rows."""
        return self.draws if steps_per_epoch == 1 else self.draws + -(-self.draws // (steps_per_epoch - 1))

    def begin(
        self, density: LogDensity, weights_MD: Tensor, buffers: Buffers, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> State:
        names = [f"{n}.running_{kind}" for n in normed(density.model.network) for kind in ("mean", "var")]
        shape = len(weights_MD), self.draws
        statistics = {name: buffers[name].new_zeros(*shape, *buffers[name].shape[1:]) for name in names}
        return State(weights_MD.clone(), clone(buffers), statistics, 0, 0, 0)

    def visit(self, state: State) -> Visit | None:
        """Return the next minibatch; None when there are enough."""
        return Visit("minibatch", state.step) if state.collected < self.draws else None

    def move(self, density: LogDensity, state: State, batch: Batch, *, donate: bool = False) -> tuple[State, Info]:
        members, rows = len(state.weights_MD), batch_size(batch.inputs, 1)
        if rows < 2:
            raise ValueError(f"`batch_size` must give minibatches of 2 rows at least; got {rows}. One has no variance.")
        now, info = replace(state, step=state.step + 1), Info(torch.full((members,), float(rows)))
        if rows < state.rows - 1:  # the short rest of an epoch; others differ by one row at most
            return now, info
        statistics = state.statistics if donate else clone(state.statistics)
        for m in range(members):
            member_buffers = {name: buffer[m] for name, buffer in state.buffers.items()}
            views, _ = density.model.split(state.weights_MD[m])
            inputs = rows_of(batch.inputs, m)
            values = batch_statistics(density.model.network, views, inputs, buffers=member_buffers)
            for name, value in values.items():
                statistics[name][m, state.collected] = value
        rows = max(rows, state.rows)
        return replace(now, statistics=statistics, collected=state.collected + 1, rows=rows), info

    def posterior(self, density: LogDensity, state: State, shelf: Shelf | None = None) -> BatchNormPosterior:
        """Return the networks under the statistics that are known.

        Raises:
            ValueError: if there are none yet.
        """
        if not state.collected:
            raise ValueError("no minibatch has been passed: the run stopped before its first step. Let it go on.")
        statistics = {name: values[:, : state.collected].clone() for name, values in state.statistics.items()}
        weights_MD, buffers_M = state.weights_MD.clone(), state.buffers or None
        return BatchNormPosterior(density.model, weights_MD, statistics, buffers_M=buffers_M, statistics_known=True)


def normed(network: Network) -> tuple[str, ...]:
    """Return the names of the batch norms whose statistics are drawn; ValueError if there are none."""
    names = tuple(n for n in network.batch_norms if isinstance(network.module.get_submodule(n), _BatchNorm))
    if not names:
        raise ValueError(
            "the network has no batch norm with running statistics in a part with random weights, so all its draws "
            "would be one function. Use a network with nn.BatchNorm1d or the like, or another method."
        )
    return names


@torch.no_grad()
def batch_statistics(
    network: Network, weights: Mapping[str, Tensor], inputs: Any, *, buffers: Buffers
) -> dict[str, Tensor]:
    """Return the means and variances (channels,) by which batch norms in training mode normalise these rows.

    They have the names of the buffers. Only the batch norms run in training mode, and the buffers of the network are
    not changed. `weights` are named views of its random weights.
    """
    copies, statistics = clone(buffers), dict[str, Tensor]()
    inputs = network.arrange(inputs)
    network.ask(weights, inputs, copies)
    with _noting(network, normed(network), statistics):
        network(weights, inputs, copies)
    return statistics


@contextmanager
def _noting(network: Network, names: Sequence[str], seen: dict[str, Tensor]) -> Iterator[None]:
    """Run batch norms in training mode inside the `with`, and note what they normalise by."""
    layers: dict[str, Any] = {name: network.module.get_submodule(name) for name in names}

    def note(name: str, layer: Any, args: tuple[Tensor, ...]) -> None:
        axes = [axis for axis in range(args[0].ndim) if axis != 1]
        variance, mean = torch.var_mean(args[0], axes, correction=0)
        seen.update({f"{name}.running_mean": mean, f"{name}.running_var": variance})

    handles = [layer.register_forward_pre_hook(partial(note, name)) for name, layer in layers.items()]
    try:
        for layer in layers.values():
            layer.training = True
        yield
    finally:
        for layer, handle in zip(layers.values(), handles, strict=True):
            layer.training = False
            handle.remove()
