"""Verdict, tables and figures of `variational_uci`, with the published numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table, figures
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.shared.uci_splits import Values, mean_over_seeds
from torchbayes_experiments.variational_uci.published import DROPOUT_NLL, DROPOUT_RMSE, MEAN_FIELD_NLL
from torchbayes_experiments.variational_uci.recipe import (
    CHOSEN,
    DROPOUT,
    LAST_LAYER,
    MEAN_FIELD,
    METHODS,
    METRICS,
    SINGLE,
)
from torchbayes_experiments.verdicts import Part, Verdict, below, interval, mean_and_error

PUBLISHED: dict[str, dict[str, dict[str, float]]] = {
    name: {
        MEAN_FIELD: {"nll": MEAN_FIELD_NLL[name]},
        DROPOUT: {"nll": sum(by_split) / len(by_split), "rmse": DROPOUT_RMSE[name]},
    }
    for name, by_split in DROPOUT_NLL.items()
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
    mark, of_splits = MEAN_FIELD_NLL[name], np.array(DROPOUT_NLL[name][: len(nll[DROPOUT])])
    published = [
        below(f"{name}: NLL of {MEAN_FIELD} within {MARGIN} of the published {mark:g}", nll[MEAN_FIELD], mark + MARGIN),
        below(
            f"{name}: NLL of {DROPOUT} within {MARGIN} of the published one of the same split",
            nll[DROPOUT] - of_splits,
            MARGIN,
        ),
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
    """Return paired differences: splits differ far more than methods do."""
    rows = []
    for name, methods in values.items():
        nll = {method: methods[method]["nll"] for method in METHODS}
        for method in METHODS[1:]:
            rows.append([name, f"{method} − single", *interval(nll[method] - nll[SINGLE])])
        of_splits = np.array(DROPOUT_NLL[name][: len(nll[DROPOUT])])
        rows.append([name, f"{DROPOUT} − as published", *interval(nll[DROPOUT] - of_splits)])
    return Table(
        ["set", "difference", "NLL", "from", "to"],
        rows,
        "Paired differences over splits with their 95 % t interval; below zero the first is better.",
    )


def _chosen_table(results: Sequence[dict[str, Any]]) -> Table:
    rows = []
    for name in results[0]:
        noise, of_dropout, rates = (
            np.array([result[name][CHOSEN][what] for result in results]) for what in ("noise", "dropout_noise", "rate")
        )
        counts = ", ".join(f"{rate:g} ({n})" for rate, n in zip(*np.unique(rates, return_counts=True), strict=True))
        rows.append([name, mean_and_error(noise.mean(0)), mean_and_error(of_dropout.mean(0)), counts])
    return Table(
        ["chosen", "noise", f"noise of {DROPOUT}", "rates of dropout"],
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
