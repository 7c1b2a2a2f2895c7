"""Verdict, tables and figures of `variational_uci`, with the published numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchbayes.experiments.experiment import Findings
from torchbayes.experiments.shared.uci_splits import Values, mean_over_seeds
from torchbayes.experiments.variational_uci.recipe import (
    CHOSEN,
    DROPOUT,
    LAST_LAYER,
    MEAN_FIELD,
    METHODS,
    METRICS,
    SINGLE,
)
from torchbayes.experiments.verdicts import Part, Verdict, below, interval, mean_and_error
from torchbayes.report import Picture, Table, figures

# NLL and RMSE of MC dropout with its grid search (repository of Gal), NLL of variational inference with independent
# weights as a baseline of later work; both without standard errors in these sources
PUBLISHED: dict[str, dict[str, dict[str, float]]] = {
    "boston": {MEAN_FIELD: {"nll": 3.12}, DROPOUT: {"nll": 2.40, "rmse": 2.90}},
    "concrete": {MEAN_FIELD: {"nll": 3.22}, DROPOUT: {"nll": 2.93, "rmse": 4.82}},
    "energy": {MEAN_FIELD: {"nll": 0.93}, DROPOUT: {"nll": 1.21, "rmse": 0.54}},
    "kin8nm": {MEAN_FIELD: {"nll": -1.03}, DROPOUT: {"nll": -1.14, "rmse": 0.08}},
    "naval": {MEAN_FIELD: {"nll": -6.12}, DROPOUT: {"nll": -4.45, "rmse": 0.00}},
    "power": {MEAN_FIELD: {"nll": 2.85}, DROPOUT: {"nll": 2.80, "rmse": 4.01}},
    "protein": {MEAN_FIELD: {"nll": 2.93}, DROPOUT: {"nll": 2.87, "rmse": 4.27}},
    "wine": {MEAN_FIELD: {"nll": 1.00}, DROPOUT: {"nll": 0.93, "rmse": 0.62}},
    "yacht": {MEAN_FIELD: {"nll": 2.01}, DROPOUT: {"nll": 1.25, "rmse": 0.67}},
}
MARGIN = 0.05  # nats: NLLs this close count as equally good


def summarise(results: Sequence[dict[str, Any]]) -> Findings:
    """Turn the seeds' scores into verdict, tables and figures.

    The repeats of the verdict are the splits, of scores averaged over seeds.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    values = mean_over_seeds(results, METHODS, METRICS)
    parts = [part for name in values for part in _parts(values, name)]
    tables = (*(_table(values, metric) for metric in METRICS), _difference_table(values), _chosen_table(results))
    return Findings(Verdict.of(parts), tables, tuple(_figure(values, metric) for metric in METRICS))


def _parts(values: Values, name: str) -> list[Part]:
    """Return the parts of the claim on one set."""
    nll = {method: values[name][method]["nll"] for method in METHODS}
    published = [
        below(
            f"{name}: NLL of {method} within {MARGIN} of the published {numbers['nll']:g}",
            nll[method],
            numbers["nll"] + MARGIN,
        )
        for method, numbers in PUBLISHED[name].items()
    ]
    beside = below(
        f"{name}: NLL of {LAST_LAYER} within {MARGIN} of a single network's", nll[LAST_LAYER] - nll[SINGLE], MARGIN
    )
    return [*published, beside]


def _table(values: Values, metric: str) -> Table:
    told = {method: f"{method}, published" for method in (MEAN_FIELD, DROPOUT)}
    rows = []
    for name, methods in values.items():
        known = [PUBLISHED[name][method].get(metric) for method in told]
        rows.append([name, *(mean_and_error(methods[m][metric]) for m in METHODS), *known])
    return Table(
        [f"test {METRICS[metric]}", *METHODS, *told.values()],
        rows,
        f"Test {METRICS[metric]} in the target's units: mean over splits ± standard error.",
        formats=dict.fromkeys(METHODS, ".3f") | dict.fromkeys(told.values(), ".2f"),
    )


def _difference_table(values: Values) -> Table:
    """Return paired differences from the single network: splits differ far more than methods do."""
    rows = []
    for name, methods in values.items():
        for method in METHODS[1:]:
            rows.append([name, method, *interval(methods[method]["nll"] - methods[SINGLE]["nll"])])
    return Table(
        ["set", "method", "NLL − that of a single network", "from", "to"],
        rows,
        "Paired differences over splits with their 95 % t interval; below zero the method is better.",
    )


def _chosen_table(results: Sequence[dict[str, Any]]) -> Table:
    rows = []
    for name in results[0]:
        noise, rates = (np.array([result[name][CHOSEN][what] for result in results]) for what in ("noise", "rate"))
        counts = zip(*np.unique(rates, return_counts=True), strict=True)
        rows.append([name, mean_and_error(noise.mean(0)), ", ".join(f"{rate:g} ({count})" for rate, count in counts)])
    return Table(
        ["chosen", "noise", "rates of dropout"],
        rows,
        "What held-out training rows choose: the noise in the target's units, mean over splits ± standard error, and "
        "the rate of dropout, with the number of splits.",
    )


def _figure(values: Values, metric: str) -> Picture:
    drawn = {name: {m: methods[m][metric] for m in METHODS} for name, methods in values.items()}
    published = {
        name: {f"{m}, published": (p[metric], 0.0) for m, p in PUBLISHED[name].items() if metric in p}
        for name in values
    }
    return Picture(
        f"Test {METRICS[metric]} of variational methods on UCI regression",
        figures.metric_dots(drawn, METRICS[metric], published=published),
        f"{METRICS[metric]} in the target's units: mean over splits with two standard errors; hollow, as published.",
    )
