"""Verdict, tables and figures of `uci_table`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table, figures
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.shared.uci_splits import Values, mean_over_seeds
from torchbayes_experiments.uci_table.recipe import METHODS, METRICS
from torchbayes_experiments.verdicts import Verdict, below, interval, mean_and_error

# Deep ensembles in table 1 of Lakshminarayanan et al. (2017): mean and standard deviation over the splits.
PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    "boston": {"rmse": (3.28, 1.00), "nll_gaussian": (2.41, 0.25)},
    "concrete": {"rmse": (6.03, 0.58), "nll_gaussian": (3.06, 0.18)},
    "energy": {"rmse": (2.09, 0.29), "nll_gaussian": (1.38, 0.22)},
    "kin8nm": {"rmse": (0.09, 0.00), "nll_gaussian": (-1.20, 0.02)},
    "naval": {"rmse": (0.00, 0.00), "nll_gaussian": (-5.63, 0.05)},
    "power": {"rmse": (4.11, 0.17), "nll_gaussian": (2.79, 0.04)},
    "protein": {"rmse": (4.71, 0.06), "nll_gaussian": (2.83, 0.02)},
    "wine": {"rmse": (0.64, 0.04), "nll_gaussian": (0.94, 0.12)},
    "yacht": {"rmse": (1.58, 0.48), "nll_gaussian": (1.18, 0.21)},
}

ROUNDING = 0.005  # largest rounding error of a number printed to two digits


def summarise(results: Sequence[dict[str, Any]]) -> Findings:
    """Turn the seeds' scores into verdict, tables and figures.

    The verdict compares means over the standard splits, the published statistic. Its repeats are the seeds, because the
    bound already includes one standard deviation over splits. Tables and figures show the spread over splits of scores
    averaged over seeds.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    values = mean_over_seeds(results, METHODS, METRICS)
    parts = [
        below(
            f"{name}: {METRICS[metric]} of {method} no worse than {mean:g} + {bar:g}",
            [np.mean(r[name][method][metric]) for r in results],
            mean + bar + ROUNDING,
        )
        for name in values
        for metric, (mean, bar) in PUBLISHED[name].items()
        for method in METHODS[1:]
    ]
    tables = (*(_table(values, metric) for metric in METRICS), _difference_table(values))
    return Findings(Verdict.of(parts), tables, tuple(_figure(values, metric) for metric in ("nll_gaussian", "rmse")))


def _table(values: Values, metric: str) -> Table:
    rows = []
    for name, methods in values.items():
        published = PUBLISHED[name].get(metric)
        rows.append([name, *(mean_and_error(methods[m][metric]) for m in METHODS), published])
    caption = (
        "Mean over splits ± standard error. A single network is the mean over the ensemble's members. Published: deep "
        "ensemble of Lakshminarayanan et al. (2017), ± the standard deviation over splits."
    )
    return Table(
        [f"test {METRICS[metric]}", *METHODS, "published"],
        rows,
        caption,
        formats=dict.fromkeys(METHODS, ".3f") | {"published": ".2f"},
    )


def _difference_table(values: Values) -> Table:
    """Return paired differences of MultiSWAG and the ensemble: splits differ far more than methods do."""
    rows = []
    for name, methods in values.items():
        for metric, label in METRICS.items():
            mean, low, high = interval(methods["MultiSWAG"][metric] - methods["ensemble"][metric])
            rows.append([name, label, mean, low, high])
    return Table(
        ["set", "metric", "MultiSWAG − ensemble", "from", "to"],
        rows,
        "Paired differences over splits with their 95 % t interval; below zero MultiSWAG is better.",
    )


def _figure(values: Values, metric: str) -> Picture:
    drawn = {name: {m: methods[m][metric] for m in METHODS} for name, methods in values.items()}
    published = {name: {"published ensemble": PUBLISHED[name][metric]} for name in values}
    return Picture(
        f"Test {METRICS[metric]} on UCI regression",
        figures.metric_dots(drawn, METRICS[metric], published=published),
        f"{METRICS[metric]} in the target's units: mean over splits with two standard errors; hollow, the published "
        "deep ensemble with the standard deviation over splits that it was published with.",
    )
