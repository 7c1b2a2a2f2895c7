"""Networks that a user gives, as posteriors, modules or weights, with their data and their losses on them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributions, nn

from torchbayes.checks import check_counts, check_entries, check_kind, seen
from torchbayes.metrics.scoring import hits
from torchbayes.model.likelihoods.protocol import scored
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers
from torchbayes.model.precision import LOW
from torchbayes.model.probes.functions import refuse_coupled
from torchbayes.model.sources.informed import informed_by
from torchbayes.model.sources.sources import Source, as_source
from torchbayes.posteriors.functions import Functions, check_weights
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.posterior import Posterior
from torchbayes.posteriors.start import number_of_starts, start_of
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.predict import Sampled

Weights = Posterior | nn.Module | Tensor
"""One network: a point posterior of one member, a module, or weights (D,)."""

Networks = Weights | Sequence[nn.Module]
"""A posterior, a trained module or a list of such, or weights (D,) or (M, D)."""


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


def members_of(model: Model, networks: Networks, argument: str, *, seed: int = 0) -> Point:
    """Return networks, at least one, as a point posterior of a model.

    A posterior that is not a point gives its default draws. `argument` is the name for messages. Raises a ValueError
    if the networks are not those of the model, are not finite, or have drawn dropout masks; a TypeError for other
    objects.
    """
    check_kind(Model, "a Model", model=model)
    listed = isinstance(networks, list | tuple) and len(networks) > 0
    if isinstance(networks, Posterior):
        return _of_posterior(model, networks, argument, seed)
    if isinstance(networks, nn.Module) or (listed and all(isinstance(network, nn.Module) for network in networks)):
        return Point.of(model, networks)  # type: ignore[arg-type]
    if not isinstance(networks, Tensor):
        raise TypeError(
            f"`{argument}` must be a posterior, a module, a list of modules or weights; got {seen(networks)}."
        )
    weights_MD = networks.detach().unsqueeze(0) if networks.ndim == 1 else networks.detach()
    check_entries({argument: weights_MD}, check_weights, model, "M")
    return Point(model, weights_MD.to(model.network.device, model.network.dtype))


def one_of(model: Model, network: Networks, argument: str) -> tuple[Tensor, Buffers]:
    """Return weights (D,) and buffers of a single network; a ValueError if there are several."""
    networks = networks_of(members_of(model, network, argument))
    if len(networks) != 1:
        raise ValueError(
            f"`{argument}` must be one network; got {len(networks)}. Pick a member, such as posterior.weights_MD[0]."
        )
    return networks[0]


def networks_of(point: Point) -> list[tuple[Tensor, Buffers]]:
    """Return weights (D,) and buffers of each member, without a leading axis."""
    buffers_M = point.buffers_M or point.model.network.stacked_buffers(point.members)
    return [(point.weights_MD[m], {name: b[m] for name, b in buffers_M.items()}) for m in range(point.members)]


def _of_posterior(model: Model, posterior: Posterior, argument: str, seed: int) -> Point:
    """Return the members of a point posterior, or the default draws of another."""
    differences = model.layout.differences(posterior.model.layout)
    if differences:
        raise ValueError(f"`{argument}` is a posterior of another model: {'; '.join(differences[:5])}.")
    known = posterior.statistics_known or posterior.calibration is None or not model.network.batch_norms
    if posterior.centre is posterior and known:
        weights_MD, buffers_M, known = posterior.centre.weights_MD, posterior.buffers_M, posterior.statistics_known
    else:
        functions = posterior.functions(seed=seed)
        if functions.masks_S is not None:
            raise ValueError(
                f"`{argument}` draws dropout masks, which its weights do not hold. Give its weights as a Point instead."
            )
        weights_MD, buffers_M, known = functions.weights_SD, functions.buffers_S, True
    return Point(
        model,
        weights_MD.to(model.network.device, model.network.dtype),
        buffers_M=buffers_M,
        statistics_known=known,
        calibration=posterior.calibration,
        problems=posterior.problems,
    )


class Loss(NamedTuple):
    """Mean losses of one network."""

    nll: float  # mean negative log likelihood per row, in nats, at temperature 1
    error: float  # error rate of a classification, root mean squared error of numbers; 0 for other likelihoods
    kind: str  # "error rate", "rmse" or ""


class Losses:
    """The mean losses of networks over data; batch-norm statistics are those of `calibration`, or of the data."""

    def __init__(self, model: Model, data: Any, calibration: Any, *, chunk_size: int) -> None:
        """Read and check the data; the model is checked already."""
        check_counts(chunk_size=chunk_size)
        self._model, self._chunk_size = model, chunk_size
        self._source = self._fitted = as_source(model, data, chunk_size)
        self._source.check()
        if calibration is not None:
            self._fitted = as_source(model, calibration, chunk_size)

    def network(self, weights_D: Tensor, buffers: Buffers) -> Functions:
        """Return a network as a function, with batch-norm statistics, if any, of its own."""
        network = self._model.network
        if network.batch_norms:
            buffers = network.recalibrate(self._model.split(weights_D)[0], self._fitted.inputs(), buffers)
        return Functions(self._model, weights_D[None], {n: b[None] for n, b in buffers.items()} or None)

    def of(self, functions: Functions) -> Loss:
        """Return the mean losses of one function; a ValueError if no row counts, or rows are coupled."""
        refuse_coupled(self._model)
        sums = torch.zeros(4, dtype=torch.float64)
        kind = ""
        for inputs, targets in self._source.batches():
            predictive = Sampled(functions).predictive(inputs, chunk_size=self._chunk_size)
            scoring = scored(predictive.likelihood, predictive.outputs_SBK[0], targets)
            log_prob = predictive.log_prob(targets).double()
            weights = torch.ones_like(log_prob) if scoring.row_weights is None else scoring.row_weights.double()
            counts = weights > 0
            kind, errors, places = _errors(predictive, scoring.targets, scoring.weights)
            sums += torch.stack([
                (weights * -log_prob)[counts].sum(), weights.sum(), (errors * places)[places > 0].sum(), places.sum()
            ]).cpu()  # fmt: skip
        check_counting(float(sums[1]))
        nll, error = float(sums[0] / sums[1]), float(sums[2] / sums[3].clamp_min(1e-300))
        return Loss(nll, error**0.5 if kind == "rmse" else error, kind)

    def at(self, weights_D: Tensor, buffers: Buffers) -> Loss:
        """Return the mean losses of the network with these weights; errors as of `of`."""
        return self.of(self.network(weights_D, buffers))


def _errors(predictive: Predictive, targets: Any, weights: Tensor | None) -> tuple[str, Tensor, Tensor]:
    """Return the kind of error, the error of each place of each row, and how often each counts.

    The error of a class is 1 where that of the highest score is not the target, else 0; for soft labels the others'
    share.
    """
    nothing = "", torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    if not isinstance(targets, Tensor):
        return nothing
    distribution = predictive.distribution
    if isinstance(distribution, distributions.Categorical | distributions.Bernoulli):
        scores = torch.as_tensor(distribution.logits)[0]  # of the only function; ordered as its probabilities
        rows, kind, soft = len(scores), "error rate", targets.is_floating_point()
        if isinstance(distribution, distributions.Bernoulli):
            scores = torch.stack([-scores, scores], dim=-1)
            targets = torch.stack([1 - targets, targets], dim=-1) if soft else targets
        scores = scores.flatten(0, -2)
        errors = 1 - hits(scores, targets.reshape(scores.shape) if soft else targets.flatten())
    elif not distribution.event_shape and targets.numel() == distribution.mean.numel():
        rows, kind = len(distribution.mean[0]), "rmse"
        errors = (distribution.mean.flatten() - targets.flatten()).double().square()
    else:
        return nothing
    if weights is None:
        return kind, errors, torch.ones_like(errors)
    row_weights = (
        weights.flatten() if weights.numel() == len(errors) else weights.repeat_interleave(len(errors) // rows)
    )
    return kind, errors, row_weights.to(errors)


def as_plain(result: Any, *properties: str) -> dict[str, Any]:
    """Return the fields of a result, named without their axes, and some properties, as plain numbers for JSON."""
    values = {re.sub("_[A-Z0-9]+$", "", f.name): getattr(result, f.name) for f in fields(result)}
    values |= {name: getattr(result, name) for name in properties}
    return {
        name: value.tolist() if isinstance(value, Tensor) else list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
    }
