"""Networks on the device that experiments use, and metrics of classifiers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import torchbayes as tb

METRICS = ("accuracy", "nll", "ece")


def best_device() -> str:
    """Return "cuda" if there is a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def classifier(
    network: str,
    shape: Sequence[int],
    classes: int,
    *,
    prior: tb.priors.Normal,
    hidden: Sequence[int] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> tb.Model:
    """Return a classifier on `best_device()`; `hidden` are the widths of `mlp`, which other networks ignore."""
    widths = {"hidden": tuple(hidden)} if network == "mlp" and hidden is not None else {}
    module = tb.networks.build(network, tuple(shape), classes, **widths, **(settings or {}))
    return tb.Model(module.to(best_device()), tb.likelihoods.Categorical(), prior)


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
