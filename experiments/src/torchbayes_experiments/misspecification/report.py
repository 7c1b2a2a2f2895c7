"""Verdict, tables and figures of `misspecification`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table, figures
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.misspecification.recipe import BAYES, OUTLIERS, STUDENT, TEMPERED
from torchbayes_experiments.verdicts import Part, Verdict, below, mean_and_error

NOMINAL = 0.95
CLOSE = 0.025  # coverage that far from what is expected counts as equal
NARROW = 0.92  # coverage that bands stay below where the model is wrong
FALL = 0.5  # of the distance from the nearest function, between the smallest and the largest N
NEAR = 0.9  # of the distance of the nearest function from the mean of the law, below which no posterior comes

Results = Sequence[Mapping[str, Any]]


def summarise(results: Results) -> Findings:
    """Turn the seeds' numbers into verdict, tables and figures.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    parts = [part for law in results[0] for part in _parts(results, law)]
    tables = (_coverage_table(results), _distance_table(results))
    return Findings(Verdict.of(parts), tables, (_by_input(results), _by_size(results), _distances(results)))


def column(results: Results, law: str, posterior: str, *, metric: str, place: int = -1) -> np.ndarray:
    """Return a number of a posterior, one value per seed; of coverages, their mean over the points.

    Args:
        results: the seeds' numbers.
        law: its name.
        posterior: its name, or "" for what is known of a law.
        metric: a key.
        place: which N, the largest by default.
    """
    found = [result[law][place] for result in results]
    return np.array([np.mean(one[posterior][metric] if posterior else one[metric]) for one in found], dtype=np.float64)


def is_wrong(results: Results, law: str) -> bool:
    """Return whether the model cannot be right: the sandwich is not the covariance of the model, or the mean is not."""
    known = results[0][law][-1]
    return bool(np.abs(np.array(known["exact"]) - NOMINAL).max() > 1e-3 or known["true"] > 1e-3)


def _gap(results: Results, law: str, posterior: str) -> np.ndarray:
    """Return how far the coverage at the points is from 95 %, the root mean square over them, one value per seed."""
    found = [np.array(result[law][-1][posterior]["coverage"]) for result in results]
    return np.array([np.sqrt(np.mean((one - NOMINAL) ** 2)) for one in found])


def _parts(results: Results, law: str) -> list[Part]:
    """Return what is claimed of one law, at the largest N."""
    bayes = column(results, law, BAYES, metric="coverage")
    known = column(results, law, "", metric="exact")
    if not is_wrong(results, law):
        return [below(f"{law}: coverage of Bayes, distance from 95 %", np.abs(bayes - NOMINAL), CLOSE)]
    near, far = (column(results, law, BAYES, metric="distance", place=place) for place in (-1, 0))
    parts = [
        below(
            f"{law}: distance from the nearest function at the largest N, share of that at the smallest",
            near / far,
            FALL,
        ),
        below(f"{law}: coverage of Bayes", bayes, NARROW),
        below(f"{law}: coverage of Bayes, distance from what the sandwich tells", np.abs(bayes - known), CLOSE),
        below(
            f"{law}: tempered, coverage closer to 95 % than that of Bayes",
            _gap(results, law, TEMPERED) - _gap(results, law, BAYES),
        ),
    ]
    apart = column(results, law, "", metric="true")
    if apart.max() > 1e-3:
        beside = column(results, law, BAYES, metric="distance_true")
        parts.append(below(f"{law}: {NEAR:g} of the nearest function's distance below Bayes's", NEAR * apart - beside))
    return parts + (_outliers(results, law) if law == OUTLIERS.name else [])


def _outliers(results: Results, law: str) -> list[Part]:
    width, wider = (column(results, law, name, metric="width") for name in (STUDENT, TEMPERED))
    gap = np.abs(column(results, law, STUDENT, metric="coverage") - NOMINAL)
    return [
        below(f"{law}: coverage of Student t noise, distance from 95 %", gap, CLOSE),
        below(f"{law}: bands of Student t noise narrower than tempered ones", width - wider),
    ]


def _posteriors(results: Results, law: str) -> list[str]:
    return [name for name in (BAYES, TEMPERED, STUDENT) if name in results[0][law][-1]]


def _coverage_table(results: Results) -> Table:
    rows = []
    for law in results[0]:
        for place, one in enumerate(results[0][law]):
            for name in _posteriors(results, law):
                keys = ("coverage", "coverage_true", "width", "temperature")
                found = [mean_and_error(column(results, law, name, metric=key, place=place)) for key in keys]
                known = float(np.mean(one["exact"])) if name == BAYES else None
                rows.append([law, one["size"], name, found[0], known, *found[1:]])
    return Table(
        ["law", "N", "posterior", "coverage", "by the sandwich", "coverage of the mean", "width", "T"],
        rows,
        "Bands of 95 %: how often they cover the nearest function, which share the sandwich tells of many rows, how "
        "often they cover the mean of the law, and their width; means over inputs and data sets, and over seeds ± "
        "standard error. T: the temperature that a data set gives itself.",
        formats={"T": ".2f"},
    )


def _distance_table(results: Results) -> Table:
    rows = []
    for law in results[0]:
        for place, one in enumerate(results[0][law]):
            keys = ("distance", "distance_true")
            found = [mean_and_error(column(results, law, BAYES, metric=key, place=place)) for key in keys]
            rows.append([law, one["size"], *found, one["true"]])
    return Table(
        ["law", "N", "from the nearest function", "from the mean of the law", "nearest function from that mean"],
        rows,
        "Root mean square distance of the posterior mean, over inputs and data sets; mean over seeds ± standard error.",
        formats={name: ".4f" for name in ("from the nearest function", "nearest function from that mean")},
    )


def _by_input(results: Results) -> Picture:
    points = results[0][next(iter(results[0]))][-1]["points"]
    panels = {}
    for law in results[0]:
        lines = {
            name: np.stack([result[law][-1][name]["coverage"] for result in results], axis=1)
            for name in _posteriors(results, law)
        }
        lines["sandwich"] = np.stack([result[law][-1]["exact"] for result in results], axis=1)
        panels[f"coverage, {law}"] = lines
    levels = {panel: ("95 %", NOMINAL) for panel in panels}
    return Picture(
        "Coverage of the nearest function",
        figures.measure_curves(panels, points, label="input x", levels=levels),
        "Share of data sets whose 95 % band covers the nearest function at an input, at the largest N. Sandwich: what "
        "it tells of the posterior without tempering.",
    )


def _by_size(results: Results) -> Picture:
    laws = [law for law in results[0] if is_wrong(results, law)]
    sizes = [str(one["size"]) for one in results[0][laws[0] if laws else next(iter(results[0]))]]
    panels = {}
    for law in laws or list(results[0]):
        panels[f"coverage, {law}"] = {
            name: np.stack([column(results, law, name, metric="coverage", place=place) for place in range(len(sizes))])
            for name in _posteriors(results, law)
        }
    levels = {panel: ("95 %", NOMINAL) for panel in panels}
    return Picture(
        "More rows do not help",
        figures.measure_curves(panels, sizes, label="N, rows", levels=levels),
        "Mean coverage of the nearest function over inputs, where the model is wrong.",
    )


def _distances(results: Results) -> Picture:
    sizes = [str(one["size"]) for one in results[0][next(iter(results[0]))]]

    def over(metric: str) -> dict[str, np.ndarray]:
        places = range(len(sizes))
        return {
            law: np.stack([column(results, law, BAYES, metric=metric, place=place) for place in places])
            for law in results[0]
        }

    panels = {
        "distance from the nearest function": over("distance"),
        "distance from the mean of the law": over("distance_true"),
    }
    return Picture(
        "Where the posterior goes",
        figures.measure_curves(panels, sizes, label="N, rows"),
        "Root mean square distance of the posterior mean. It approaches the nearest line in every law, and the mean of "
        "the law only where that is a line.",
    )
