"""Verdict, tables and figures of `pbp_uci`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchbayes.report import Table
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.pbp_uci.pictures import curves
from torchbayes_experiments.pbp_uci.published import PUBLISHED, ROUNDING
from torchbayes_experiments.pbp_uci.recipe import METRICS, ONE, SECONDS, STREAM, TWO
from torchbayes_experiments.shared.uci_splits import Values, mean_over_seeds
from torchbayes_experiments.verdicts import Part, Verdict, below, mean_and_error


def summarise(results: Sequence[dict[str, Any]]) -> Findings:
    """Turn the seeds' scores into verdict, tables and figures.

    The verdict compares means over the standard splits, the published statistic, and its repeats are the seeds: the
    splits are the published ones, and the bound includes a standard error over them. Tables and figures show the spread
    over splits of scores averaged over seeds.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    values = _values(results)
    verdict = Verdict.of([part for name in values for part in _parts(results, name)])
    tables = (*(_table(values, metric) for metric in METRICS), _passes_table(values), _time_table(values))
    return Findings(verdict, tables, tuple(curves(values, metric) for metric in ("nll", "rmse")))


def _values(results: Sequence[dict[str, Any]]) -> Values:
    """Return the scores averaged over the seeds; fits differ between sets."""
    found = {}
    for name, fits in results[0].items():
        own = [{name: result[name]} for result in results]
        found |= mean_over_seeds(own, fits, (*METRICS, SECONDS))
    return found


def _parts(results: Sequence[dict[str, Any]], name: str) -> list[Part]:
    parts = []
    for metric, (mean, error) in PUBLISHED[name].items():
        what = f"{name}: {METRICS[metric]} no worse than {mean:.2f} + {error:.2f}".replace("-", "−")
        means = [float(np.mean(result[name][ONE][metric])) for result in results]
        parts.append(below(what, means, mean + error + ROUNDING))
    return parts


def _table(values: Values, metric: str) -> Table:
    rows = []
    for name, fits in values.items():
        cells = [mean_and_error(fits[fit][metric]) if fit in fits else None for fit in (ONE, TWO, STREAM)]
        rows.append([name, cells[0], PUBLISHED[name][metric], *cells[1:]])
    spec = ".4f" if metric == "rmse" else ".3f"
    return Table(
        [f"test {METRICS[metric]}", ONE, "published", TWO, STREAM],
        rows,
        f"Test {METRICS[metric]} in the target's units: mean over splits ± standard error, the published one too. "
        f"{STREAM.capitalize()}: rows in ten parts, each learned once under the posterior of those before.",
        formats={ONE: spec, TWO: spec, STREAM: spec, "published": ".2f"},
    )


def _passes_table(values: Values) -> Table:
    names = [fit for fit in next(iter(values.values())) if fit not in {TWO, STREAM}]
    rows = [[name, *(mean_and_error(fits[fit]["nll"]) for fit in names)] for name, fits in values.items()]
    return Table(
        ["test NLL", *names],
        rows,
        f"After fewer passes, each from the start: mean over splits ± standard error. {ONE}: as many as published, 40.",
        formats=dict.fromkeys(names, ".3f"),
    )


def _time_table(values: Values) -> Table:
    rows = []
    for name, fits in values.items():
        splits = len(fits[ONE][SECONDS])
        each = [float(fits[fit][SECONDS].mean()) if fit in fits else None for fit in (ONE, TWO, STREAM)]
        rows.append([name, splits, *each, float(sum(fits[fit][SECONDS].sum() for fit in fits))])
    columns = [ONE, TWO, STREAM, "all fits"]
    return Table(
        ["seconds", "splits", *columns],
        rows,
        "Time of a fit, of one core, mean over splits; all fits: those of a seed on all splits, shorter ones too.",
        formats=dict.fromkeys(columns, ".2f") | {"all fits": ".1f"},
    )
