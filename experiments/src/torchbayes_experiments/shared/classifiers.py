"""Classifiers by the name of their network, on the device that experiments use, and their metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchbayes import networks
from torchbayes.assess.evaluate import evaluate
from torchbayes.model import Model
from torchbayes.model.likelihoods import Categorical
from torchbayes.model.priors.univariate import Normal
from torchbayes.predictive.average import Predictive

METRICS = ("accuracy", "nll", "ece")


def best_device() -> str:
    """Return "cuda" if there is a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def classifier(
    network: str,
    shape: Sequence[int],
    classes: int,
    *,
    prior: Normal,
    hidden: Sequence[int] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Model:
    """Return a classifier on `best_device()`.

    Args:
        network: a network by name.
        shape: of one input.
        classes: number of classes.
        prior: of every weight.
        hidden: widths of the hidden layers of `mlp`, its default if None; other networks ignore them.
        settings: of the network, beside these.

    Returns:
        The model.
    """
    widths = {"hidden": tuple(hidden)} if network == "mlp" and hidden is not None else {}
    module = networks.build(network, tuple(shape), classes, **widths, **(settings or {}))
    return Model(module.to(best_device()), Categorical(), prior)


def metrics_of(average: Predictive, targets: Tensor) -> dict[str, float]:
    """Return the `METRICS` of a model average.

    Args:
        average: the predictive distribution, of B rows.
        targets: classes (B,).

    Returns:
        metric -> value.
    """
    found = evaluate(average, targets).metrics
    return {key: found[key] for key in METRICS}
