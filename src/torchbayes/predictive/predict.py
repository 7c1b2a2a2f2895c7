"""Predictions at inputs, by functions drawn from a posterior or by its closed form: `predict` and `stream`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from torchbayes.calls import explained
from torchbayes.checks import as_seed, check_counts, check_object
from torchbayes.model.batches.batch import check_alike
from torchbayes.model.batches.loaders import in_order
from torchbayes.model.layout import broadcasting
from torchbayes.model.model import Batch, Model, check_finite, place_inputs, unpack_inputs
from torchbayes.model.probes.functions import random_at, watched
from torchbayes.native.process import undisturbed
from torchbayes.posteriors.functions import Functions
from torchbayes.posteriors.posterior import Posterior
from torchbayes.posteriors.problems import warn_of
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.linearised import by_outputs


class Source(Protocol):
    """A source of predictives: functions drawn from a posterior, or a closed form."""

    @property
    def model(self) -> Model:
        """The model."""
        ...

    def predictive(self, inputs: Any, *, chunk_size: int = 1024) -> Predictive:
        """Return the predictive at inputs."""
        ...


@dataclass(frozen=True)
class Sampled:
    """The average of drawn functions."""

    functions: Functions

    @property
    def model(self) -> Model:
        """The model."""
        return self.functions.model

    def predictive(self, inputs: Any, *, chunk_size: int = 1024) -> Predictive:
        """Return the predictive at inputs, (B, ...)."""
        outputs_SBK = self.functions(inputs, chunk_size=chunk_size)
        return Predictive(outputs_SBK, self.model.likelihood, broadcasting(self.functions.parameters, outputs_SBK))


@undisturbed
@explained()
def predict(
    posterior: Posterior | Functions | Source,
    inputs: Any,
    *,
    draws: int | None = None,
    seed: int = 0,
    chunk_size: int = 1024,
) -> Predictive:
    """Average the predictions of functions drawn from a posterior.

    Args:
        posterior: a posterior, functions already drawn from one, or a `Linearised` one.
        inputs: tensor (B, ...), a tuple or mapping of such, or a DataLoader; its targets, if any, are ignored.
            Every row of a loader is read once in the order of its data set, shuffled or not. Its outputs are kept,
            S · N · K numbers; use `stream` when that is too much.
        draws: S, a multiple of the members; the posterior's default if None. For a Laplace posterior, or one of a
            last layer, the default is the form of `Linearised`, which draws no weights. Not for functions.
        seed: seed of the draws.
        chunk_size: rows that go through a network at once.

    Returns:
        The predictive, with outputs (S, B, K).

    Raises:
        ValueError: if `draws` does not fit, inputs are empty or not finite, or outputs differ in shape between
            batches.
    """
    source = as_source(posterior, draws, seed)
    check_counts(chunk_size=chunk_size)
    if not isinstance(inputs, DataLoader):
        check_finite(placed := place_inputs(source.model, inputs))
        return _watched(source, placed, chunk_size)
    predictives: list[Predictive] = []
    for predictive, _ in stream(source, inputs, chunk_size=chunk_size):
        predictives.append(predictive)
        check_alike(predictives[0].outputs_SBK[0], predictive.outputs_SBK[0], "outputs")
    if not predictives:
        raise ValueError("the loader yields no rows; there is nothing to predict.")
    joined = torch.cat([p.outputs_SBK for p in predictives], dim=1)
    spreads = [p.function_variance for p in predictives if p.function_variance is not None]
    return replace(predictives[0], outputs_SBK=joined, function_variance=torch.cat(spreads, dim=1) if spreads else None)


@explained()
def stream(
    posterior: Posterior | Functions | Source,
    batches: Iterable[Any],
    *,
    draws: int | None = None,
    seed: int = 0,
    chunk_size: int = 1024,
) -> Iterator[tuple[Predictive, Any]]:
    """Yield (predictive, targets) batch by batch, with the same functions throughout and in bounded memory.

    Args:
        posterior: a posterior, functions already drawn from one, or a `Linearised` one.
        batches: a DataLoader, of which every row is read once in the order of its data set, or any iterable of
            batches that the model's hook can read; without a hook they need no targets.
        draws: S, a multiple of the members; the posterior's default if None. For a Laplace posterior, or one of a
            last layer, the default is the form of `Linearised`, which draws no weights. Not for functions.
        seed: seed of the draws.
        chunk_size: rows that go through a network at once.

    Returns:
        An iterator over the predictive of each batch and the batch's targets, None where it has none.

    Raises:
        TypeError: if the batches cannot be iterated.
    """
    source = as_source(posterior, draws, seed)
    check_counts(chunk_size=chunk_size)
    check_object(("__iter__",), "a DataLoader or a list of batches", batches=batches)
    return _stream(source, batches, chunk_size)


def _stream(source: Source, batches: Iterable[Any], chunk_size: int) -> Iterator[tuple[Predictive, Tensor]]:
    for number, item in enumerate(in_order(batches)):
        if number and source.model.coupled:
            raise ValueError(
                "the rows of this model are coupled (`Model(coupled=True)`), so that a batch is no part of a larger "
                "one. Give all rows at once, as tensors or as one batch."
            )
        batch = item if isinstance(item, Batch) else unpack_inputs(source.model, item)
        check_finite(batch.inputs)
        yield _watched(source, batch.inputs, chunk_size), batch.targets


def _watched(source: Source, inputs: Any, chunk_size: int) -> Predictive:
    """Return the predictive at inputs; warn if the network draws random numbers for it, as functions must not."""
    network = source.model.network
    with watched(network.device) as drawn:
        predictive = source.predictive(inputs, chunk_size=chunk_size)
    if problem := random_at(network, inputs, drew=drawn.moved):
        warn_of([problem], "this prediction")
    return predictive


def as_source(posterior: Posterior | Functions | Source, draws: int | None, seed: int) -> Source:
    """Return a source of predictives: functions drawn from a posterior, those given, or a closed form.

    For Laplace posteriors and last layers it is linearised unless draws are asked for: see `by_outputs`. A
    ValueError if `draws` is given where nothing is drawn, or a number is out of range.
    """
    seed = as_seed(seed)
    if draws is None and (linearised := by_outputs(posterior, seed=seed)) is not None:
        return linearised
    if isinstance(posterior, Posterior):
        return Sampled(posterior.functions(draws, seed=seed))
    if isinstance(posterior, Functions):
        if draws not in {None, posterior.draws}:
            raise ValueError(f"these are {posterior.draws} functions already drawn; got draws={draws}. Leave it out.")
        return Sampled(posterior)
    check_object(("model", "predictive"), "what `fit` returns", posterior=posterior)
    if draws is not None:
        raise ValueError(f"a closed form draws nothing; got draws={draws}. Leave it out.")
    return posterior
