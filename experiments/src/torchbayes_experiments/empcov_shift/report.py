"""Verdict, tables and figures of `empcov_shift`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table, figures
from torchbayes_experiments.empcov_shift.recipe import DEAD, EMPCOV, METHODS, MODE, NOISE, NORMAL
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.verdicts import Part, Verdict, below, mean_and_error

FAR = 0.1  # accuracy by which HMC is below MAP at the largest shift
MOST = 0.5  # share of that loss that is left
RIGHT = 0.05  # relative difference of the weights along no data from their prior

Results = Sequence[Mapping[str, Any]]


def summarise(results: Results) -> Findings:
    """Turn the seeds' numbers into verdict, tables and figures.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    tables = tuple(_table(results, problem) for problem in (NOISE, DEAD))
    return Findings(Verdict.of(parts(results)), (*tables, _weights(results)), (_figure(results),))


def parts(results: Results) -> list[Part]:
    """Return the parts of the claim.

    Args:
        results: what `run` returned, one per seed.
    """
    found = []
    for problem in (NOISE, DEAD):
        clean, last = (
            {m: np.array([r[problem][m]["accuracy"][at] for r in results]) for m in METHODS} for at in (0, -1)
        )
        lost = last[MODE] - last[NORMAL]
        found += [
            below(f"{problem}: clean accuracy of HMC at most 0.02 below MAP", clean[MODE] - clean[NORMAL], 0.02),
            below(f"{problem}: HMC is more than {FAR} less accurate than MAP at the largest shift", -lost, -FAR),
            below(
                f"{problem}: with EmpCov it is less than half as far below MAP",
                (last[MODE] - last[EMPCOV]) - MOST * lost,
            ),
        ]
        for method in (NORMAL, EMPCOV):
            off = [abs(r[problem][method]["weights"] / r[problem][method]["prior"] - 1) for r in results]
            found.append(below(f"{problem}: {method}: weights along no data have the prior's size", off, RIGHT))
    return found


def _columns(results: Results, problem: str, method: str, metric: str) -> np.ndarray:
    """Return the values of a metric, (levels, R)."""
    return np.array([r[problem][method][metric] for r in results]).T


def _table(results: Results, problem: str) -> Table:
    rows = []
    for metric, name in (("accuracy", "accuracy"), ("nll", "NLL")):
        for method in METHODS:
            values = _columns(results, problem, method, metric)
            rows.append([name, method, *(mean_and_error(level) for level in values)])
    levels = [f"{level:g}" for level in results[0][problem]["noise"]]
    return Table(
        ["score", "method", *(f"noise {level}" for level in levels)],
        rows,
        f"{problem.capitalize()}: test scores by the standard deviation of the noise, mean over seeds ± standard "
        f"error.",
    )


def _weights(results: Results) -> Table:
    rows = []
    for problem in (NOISE, DEAD):
        for method in METHODS:
            found = [r[problem][method] for r in results]
            prior = found[0]["prior"] if method != MODE else None
            sizes = mean_and_error([one["weights"] for one in found])
            rows.append([problem, method, mean_and_error([one["directions"] for one in found]), sizes, prior])
    return Table(
        ["shift", "method", "directions", "size of the weights", "size under the prior"],
        rows,
        "First-layer weights along the directions in which no training input varies: how many directions, root mean "
        "square of the weights, and their standard deviation under the prior.",
        formats={"directions": ".0f", "size of the weights": ".4f", "size under the prior": ".4f"},
    )


def _figure(results: Results) -> Picture:
    panels = {
        f"{score}\n{problem}": {m: _columns(results, problem, m, metric) for m in METHODS}
        for metric, score in (("accuracy", "test accuracy"), ("nll", "test NLL (nats)"))
        for problem in (NOISE, DEAD)
    }
    noise = results[0][NOISE]["noise"]
    figure = figures.measure_curves(
        panels,
        noise,
        label="standard deviation of the noise",
        percent=[name for name in panels if "accuracy" in name],
    )
    return Picture(
        "Model averages under a shift of the inputs",
        figure,
        "Test accuracy and NLL against the size of the noise. Left: Gaussian noise in all pixels of MNIST. Right: "
        "digits with 40 further pixels that are 0 in training, and noise in these alone.",
    )
