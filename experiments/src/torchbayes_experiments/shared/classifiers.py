"""Networks on the device that experiments use, metrics of classifiers, and labels of which a share is shuffled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

import torchbayes as tb
from torchbayes_experiments.streams import Purpose, generator

METRICS = ("accuracy", "nll", "ece")


def best_device() -> str:
    """Return "cuda" if there is a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def classifier(
    network: str,
    shape: Sequence[int],
    classes: int,
    *,
    prior: tb.priors.Prior,
    hidden: Sequence[int] | None = None,
    settings: Mapping[str, Any] | None = None,
    temperature: float = 1.0,
    tempering: Literal["joint", "likelihood"] = "joint",
) -> tb.Model:
    """Return a classifier on `best_device()`; `hidden` are the widths of `mlp`, which other networks ignore."""
    widths = {"hidden": tuple(hidden)} if network == "mlp" and hidden is not None else {}
    module = tb.networks.build(network, tuple(shape), classes, **(widths | dict(settings or {}))).to(best_device())
    return tb.Model(module, tb.likelihoods.Categorical(), prior, temperature=temperature, tempering=tempering)


def decay_prior(decay: float, rows: int) -> tb.priors.Normal:
    """Return N(0, 1/(λN)) of every weight, which is equivalent to weight decay λ on the mean loss of N rows."""
    return tb.priors.Normal((decay * rows) ** -0.5)


def metrics_of(average: tb.Predictive, targets: Tensor, draws: Any = slice(None)) -> dict[str, float]:
    """Return the `METRICS` of a model average of B rows with classes (B,), or of some of its draws."""
    some = replace(average, outputs_SBK=average.outputs_SBK[draws])
    metrics = tb.evaluate(some, targets.to(some.outputs_SBK.device)).metrics
    return {key: metrics[key] for key in METRICS}


def mean_metrics(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return metric -> mean value of several networks or choices."""
    return {key: float(np.mean([metrics[key] for metrics in each])) for key in each[0]}


def with_dropout(
    shape: Sequence[int], outputs: int, likelihood: Any, *, hidden: Sequence[int], rate: float, prior_scale: float
) -> tb.Model:
    """Return a perceptron with dropout at rate r after each hidden layer, under N(0, σ²) in the bound of `MCDropout`.

    MAP under N(0, s²) maximises the bound under N(0, s²/(1 − r)) for weights on dropped units (see `MCDropout`): s² is
    (1 − r) σ² there, so that the prior of the bound is the one of the other methods.
    """
    network = tb.networks.mlp(tuple(shape), outputs, hidden=tuple(hidden), dropout=rate)
    whole, lower = tb.priors.Normal(prior_scale), tb.priors.Normal(prior_scale * math.sqrt(1 - rate))
    rules = {"1.*": whole, "*.bias": whole, "*": lower}  # layer 0 makes inputs flat
    return tb.Model(network.to(best_device()), likelihood, rules)


def shuffled(targets: Tensor, share: float, *, seed: int) -> Tensor:
    """Return targets with a share of the rows, chosen at random, shuffled among themselves.

    Every step of the shuffle (Fisher and Yates, inside out) adds one row and changes at most one other, so with the
    same seed the rows shuffled at a smaller share are among those shuffled at a larger one. Classes keep their sizes.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"`share` must be between 0 and 1; got {share}.")
    random = generator(Purpose.SHUFFLE, seed)
    order = torch.randperm(len(targets), generator=random).tolist()
    places = torch.rand(len(targets), generator=random, dtype=torch.float64).tolist()
    labels = targets.clone()
    for step in range(round(share * len(targets))):
        other = order[int(places[step] * (step + 1))]
        labels[order[step]], labels[other] = labels[other].clone(), labels[order[step]].clone()
    return labels
