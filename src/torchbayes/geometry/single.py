"""One network at one place with its data, which most functions of this package look at."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchbayes.checks import check_kind
from torchbayes.model.likelihoods.protocol import scored
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers
from torchbayes.model.precision import LOW
from torchbayes.model.probes.functions import refuse_coupled
from torchbayes.model.sources.informed import informed_by
from torchbayes.model.sources.sources import Source, as_source
from torchbayes.posteriors.posterior import Posterior
from torchbayes.posteriors.start import number_of_starts, start_of

Weights = Posterior | nn.Module | Tensor


class Place(NamedTuple):
    """Weights of one network, and the data."""

    model: Model  # its likelihood knows the data where it needs to
    source: Source  # the data as they are read
    rows: Batch  # all rows, checked
    weights_D: Tensor  # all random weights, and learned parameters of the likelihood
    buffers: Buffers  # of the network at these weights; empty if it has none

    def stacked(self, number: int) -> Buffers | None:
        """Return copies of the buffers for a stack of networks, (M, ...); None if there are none."""
        return {n: b.expand(number, *b.shape).clone() for n, b in self.buffers.items()} or None


def place_of(model: Model, data: Any, weights: Weights, *, batch_size: int = 1024) -> Place:
    """Return a network at its weights, with its data, after checking both.

    Weights are a point posterior of one member, a module, or a tensor (D,). Batch-norm statistics are those of a
    module, or of a posterior that has them. For other weights than those of the model's own module they are
    computed from the data. Raises a TypeError if an argument is of another kind, or the network computes in less
    than float32; a ValueError if weights or data do not fit the model, there is more than one network, or the
    outputs of a row depend on the others.
    """
    check_kind(Model, "a Model", model=model)
    check_kind((Posterior, nn.Module, Tensor), "a posterior, a module or a tensor of weights", weights=weights)
    refuse_coupled(model)
    _refuse_low(model)
    try:
        if (count := number_of_starts(weights)) != 1:
            raise ValueError(
                f"`weights` must be those of one network; got {count} networks. Call once for each, as with "
                f"`posterior.weights_MD[0]`."
            )
        weights_MD, buffers_M = start_of(model, weights, [0])
    except ValueError as error:
        raise ValueError(str(error).replace("`start`", "`weights`")) from None
    source = as_source(model, data, batch_size)
    source.check()
    buffers = {name: buffer_M[0] for name, buffer_M in buffers_M.items()}
    known = isinstance(weights, nn.Module) or (isinstance(weights, Posterior) and weights.statistics_known)
    network = model.network
    if network.batch_norms and not known and not torch.equal(weights_MD[0, : network.layout.size], network.weights()):
        buffers = network.recalibrate(model.split(weights_MD[0])[0], source.inputs(), buffers)
    return Place(informed_by(model, source), source, source.rows(), weights_MD[0], buffers)


def num_observations(place: Place, chunk_size: int = 1024) -> float:
    """Return n, the sum of the weights of the rows, 0 for ignored ones; a ValueError if no row counts."""
    total = 0.0
    network = place.weights_D, place.buffers
    for rows, weights_B in weighted_rows(place.model, network, place.rows, chunk_size=chunk_size):
        total += rows.size if weights_B is None else float(weights_B.double().sum())
    check_counting(total)
    return total


def check_counting(total: float) -> None:
    """Raise a ValueError if the weights of the rows do not add up to more than 0."""
    if not total > 0:
        raise ValueError("no row of `data` counts: all are ignored, or have weight 0. Check their targets.")


@torch.no_grad()
def weighted_rows(
    model: Model, network: tuple[Tensor, Buffers], batch: Batch, *, chunk_size: int
) -> Iterator[tuple[Batch, Tensor | None]]:
    """Yield the rows of a batch, a few at a time, and how often each counts, (B,); None where each counts once.

    `network` are weights (D,) and buffers.
    """
    views, buffers = model.split(network[0])[0], network[1] or None
    for start in range(0, batch.size, chunk_size):
        rows = batch.map(lambda t, start=start: t[start : start + chunk_size])
        outputs = model.network(views, model.network.arrange(rows.inputs), buffers)
        yield rows, scored(model.likelihood, outputs, rows.targets).row_weights


def check_loss(loss: float) -> None:
    """Raise a ValueError if the loss at the weights is not finite."""
    if not math.isfinite(loss):
        raise ValueError(f"the loss must be finite at `weights`; got {loss:g}. Look for extreme values.")


def _refuse_low(model: Model) -> None:
    """Raise a TypeError if weights or inputs have less than 24 bits."""
    precision = model.network.precision
    if precision.casts or precision.inputs in LOW:
        dtype = next(iter(precision.casts.values()), precision.inputs)
        raise TypeError(
            f"the network computes in {dtype}, whose rounding is larger than differences of losses near a minimum. "
            f"Convert it with .float()."
        )
