"""Classifiers by the name of their network, on the device that experiments use, and their metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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


def metrics_of(average: tb.Predictive, targets: Tensor) -> dict[str, float]:
    """Return the `METRICS` of a model average of B rows with classes (B,)."""
    metrics = tb.evaluate(average, targets).metrics
    return {key: metrics[key] for key in METRICS}
