"""What is judged: a posterior, its rows, a way to fit again, and what predictions and draws of it look like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from torchbayes.certificate.budget import Budget
from torchbayes.certificate.results import Results
from torchbayes.curvature.products import tangent_outputs
from torchbayes.metrics.fidelity import total_variation, wasserstein1_rows
from torchbayes.model.batches.batch import Batch, rows_of
from torchbayes.model.batches.loaders import evenly_spaced
from torchbayes.model.likelihoods.protocol import Parameters
from torchbayes.model.model import Model
from torchbayes.posteriors.draws import thinned
from torchbayes.posteriors.posterior import Posterior
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.classes import class_probs
from torchbayes.predictive.linearised import by_outputs
from torchbayes.predictive.predict import Sampled, Source, predict
from torchbayes.selection import fit

Fit = Callable[[Model, tuple[Any, Any], int], Posterior]
"""Fits a model to (inputs, targets) with a seed."""

_SAMPLES = 2000  # of each predictive distribution of numbers
_QUANTILES = 64  # that are kept of them
_DRAWS = 100  # functions whose spread is compared
_AVERAGED = 400  # of a posterior that can be drawn from without end


@dataclass(frozen=True)
class Case:
    """What is judged, and how."""

    posterior: Posterior
    model: Model  # as it was given to the fit, with what its likelihood takes from the training targets
    rows: Batch
    inputs: Any  # where predictions are compared
    fit: Fit | None
    budget: Budget
    results: Results
    seed: int

    @property
    def few(self) -> Batch:
        """At most as many rows as the budget has, evenly spaced."""
        return some(self.rows, evenly_spaced(self.budget.rows, self.rows.size))

    def check_fits(self) -> None:
        """Raise a ValueError if it is not known how to fit again."""
        if self.fit is None:
            raise ValueError("it fits again, and how is not known. Give `method=`, by which the posterior was fitted.")
        if self.model is self.posterior.model and (self.posterior.prior_chosen or self.posterior.noise_chosen):
            raise ValueError(
                "it fits again, and the fit chose prior or noise of the model itself. Give `model=`, as it was before."
            )

    def fitted(self, rows: Batch, seed: int) -> Posterior:
        """Return a fit of other rows by the method of the posterior; a ValueError if that is not known."""
        self.check_fits()
        assert self.fit is not None
        return self.fit(self.model, (rows.inputs, rows.targets), seed)


def fitting(method: Any) -> Fit:
    """Return how a method fits: by `tb.fit`, or by itself if it is a function."""
    if callable(method):
        return cast("Fit", method)
    return lambda model, data, seed: fit(model, data, method, seed=seed, callbacks=())


def some(rows: Batch, numbers: list[int]) -> Batch:
    """Return the rows of these numbers."""
    where = torch.tensor(numbers)
    return rows.map(lambda t: t.index_select(0, where.to(t.device)))


class Drawn(NamedTuple):
    """Functions drawn from a posterior, at B inputs."""

    outputs_SBK: Tensor
    weights_SD: Tensor
    parameters: Parameters  # learned ones of the likelihood, each (S, ...)


def drawn(posterior: Posterior, inputs: Any, count: int, *, seed: int) -> Drawn:
    """Return about `count` functions at inputs: of chains evenly spaced draws, in order, and at most all.

    Those of a Laplace posterior are linear, f + J (w − w*), as in its predictions.
    """
    draws = -(-count // posterior.members) * posterior.members
    posterior = thinned(posterior, draws)
    functions = posterior.functions(draws if posterior.chain_length is None else None, seed=seed)
    weights_SD = functions.weights_SD
    if not posterior.of_linearised:
        return Drawn(functions(inputs), weights_SD, functions.parameters)
    return Drawn(_linear(posterior, posterior.model.place(inputs), weights_SD), weights_SD, functions.parameters)


def _linear(posterior: Any, inputs: Any, weights_SD: Tensor) -> Tensor:
    """Return f + J (w − w*) of each member's draws, (S, B, ...); draw s is from member s mod M."""
    model, mean_MD = posterior.model, posterior.gaussian.mean_MD
    moves_SMD = weights_SD.unflatten(0, (-1, len(mean_MD))) - mean_MD
    outputs = []
    for m, mean_D in enumerate(mean_MD):
        views, _ = model.split(mean_D)
        buffers = {n: b[m] for n, b in (posterior.buffers_M or {}).items()} or None
        vectors_RD = moves_SMD[:, m, : model.network.layout.size]
        outputs.append(tangent_outputs(model, views, inputs, vectors_RD=vectors_RD, buffers=buffers))
    return torch.stack(outputs, dim=1).flatten(0, 1).detach()


def spread(posterior: Posterior, inputs: Any, *, seed: int) -> Tensor:
    """Return the standard deviation over draws of the outputs at each input, (B, K), of classes less their mean."""
    outputs_SBK = drawn(posterior, inputs, _DRAWS, seed=seed).outputs_SBK.double().flatten(2)
    if outputs_SBK.shape[-1] > 1:
        outputs_SBK = outputs_SBK - outputs_SBK.mean(-1, keepdim=True)
    return outputs_SBK.std(0, correction=0).cpu()


def summary(posterior: Posterior | Source, inputs: Any, *, seed: int) -> dict[str, list[Any]]:
    """Return the predictive distributions at inputs in numbers that JSON holds: `probs` (B, K) or `quantiles` (Q, B).

    A TypeError if targets are neither classes nor numbers.
    """
    predictive = predict(_many(posterior, seed), inputs)
    try:
        probs = class_probs(predictive.distribution)
    except TypeError:
        return {"quantiles": _quantiles(predictive, seed).tolist()}
    return {"probs": probs.double().flatten(0, -2).cpu().tolist()}


def _many(posterior: Any, seed: int) -> Any:
    """Return what a posterior predicts with, of enough draws that two runs differ by their posteriors alone."""
    if not hasattr(posterior, "default_draws") or by_outputs(posterior) is not None:
        return posterior
    known = posterior.chain_length is not None or posterior.centre is posterior
    draws = posterior.default_draws if known else -(-_AVERAGED // posterior.members) * posterior.members
    return posterior.functions(draws, seed=seed)


def _quantiles(predictive: Predictive, seed: int) -> Tensor:
    samples = predictive.sample(_SAMPLES, seed=seed).flatten(1).double().cpu().sort(0).values
    return samples[torch.tensor(evenly_spaced(_QUANTILES, _SAMPLES)) + _SAMPLES // (2 * _QUANTILES)]


def distance(first: Mapping[str, Any], second: Mapping[str, Any]) -> float:
    """Return how far two summaries are apart, the second the standard.

    Of classes the total variation; of numbers the 1-Wasserstein distance in standard deviations of the second.
    """
    if "probs" in first:
        return float(total_variation(*(torch.tensor(s["probs"], dtype=torch.float64) for s in (first, second))))
    values_QB, standard_QB = (torch.tensor(s["quantiles"], dtype=torch.float64) for s in (first, second))
    scale_B = standard_QB.std(0).clamp_min(torch.finfo(torch.float64).tiny)
    return float((wasserstein1_rows(values_QB, standard_QB) / scale_B).mean())


def measure(numbers: Mapping[str, Any]) -> str:
    """Return the name of the distance of summaries."""
    return "TV" if "probs" in numbers else "W1 / sd"


def sampled(functions: Any) -> Source:
    """Return drawn functions as a source of predictions."""
    return Sampled(functions)


def first_rows(inputs: Any, count: int, total: int) -> Any:
    """Return at most `count` of `total` inputs, evenly spaced."""
    return rows_of(inputs, torch.tensor(evenly_spaced(count, total)))
