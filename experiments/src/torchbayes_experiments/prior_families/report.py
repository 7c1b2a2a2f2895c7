"""Verdict, tables and figures of `prior_families`, with the published numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table, figures
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.prior_families.recipe import FAMILIES, NARROW, PRIORS, WIDE
from torchbayes_experiments.verdicts import Part, Verdict, below, mean_and_error

RHAT = 1.1  # bound on the median R-hat of what is predicted at the test rows
# By how much the scores of the families may differ, the largest less the smallest: two or three times what was
# published, 0.013, 0.006 and 0.005. RMSE: as a share of its mean, because it has the units of the targets.
BOUNDS = {"nll": 0.03, "accuracy": 0.015, "ece": 0.015, "rmse": 0.05}
LABELS = {"nll": "NLL", "accuracy": "accuracy", "ece": "ECE", "rmse": "RMSE"}

# IMDB in Izmailov et al. (2021): accuracy, NLL and ECE under priors of variance 1/40.
PUBLISHED = {
    "normal": (0.866, 0.311, 0.029),
    "logistic": (0.869, 0.304, 0.024),
    "normal mixture": (0.863, 0.317, 0.025),
}

Results = Sequence[Mapping[str, Any]]


def summarise(results: Results) -> Findings:
    """Turn the seeds' numbers into verdict, tables and figures.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    names = list(results[0])
    parts = [part for name in names for part in _parts(results, name)]
    tables = (*(_scores_table(results, name) for name in names), _chains_table(results), _published_table())
    return Findings(Verdict.of(parts), tables, _figures(results))


def _column(results: Results, problem: str, prior: str, *, metric: str) -> np.ndarray:
    return np.array([result[problem][prior][metric] for result in results], dtype=np.float64)


def _metrics(results: Results, problem: str) -> list[str]:
    return [key for key in LABELS if key in results[0][problem][FAMILIES[0]]]


def _spread(results: Results, problem: str, priors: Sequence[str], *, metric: str) -> np.ndarray:
    """Return the largest less the smallest score of some priors, one value per seed."""
    values = np.stack([_column(results, problem, prior, metric=metric) for prior in priors])
    spread = values.max(0) - values.min(0)
    return spread / values.mean(0) if metric == "rmse" else spread


def _parts(results: Results, problem: str) -> list[Part]:
    worst = [max(_middle(result[problem][prior]) for prior in FAMILIES) for result in results]
    parts = [below(f"{problem}: median R-hat of predictions, worst family", worst, RHAT, precondition=True)]
    for metric in _metrics(results, problem):
        share = ", as a share of it" if metric == "rmse" else ""
        spread = _spread(results, problem, FAMILIES, metric=metric)
        parts.append(below(f"{problem}: range of the {LABELS[metric]} over families{share}", spread, BOUNDS[metric]))
    families, scales = (
        _spread(results, problem, priors, metric="nll") for priors in (FAMILIES, ("normal", NARROW, WIDE))
    )
    return [*parts, below(f"{problem}: range of the NLL over families below that over scales", families - scales)]


def _middle(scores: Mapping[str, Any]) -> float:
    """Return the median R-hat of the predictions; one that is none counts as large."""
    return float(np.nan_to_num(scores["chains"]["functions"]["median"], nan=1e6, posinf=1e6))


def _scores_table(results: Results, problem: str) -> Table:
    keys = _metrics(results, problem)
    rows = [
        [prior, *(mean_and_error(_column(results, problem, prior, metric=key)) for key in keys)] for prior in PRIORS
    ]
    spread = [mean_and_error(_spread(results, problem, FAMILIES, metric=key)) for key in keys if key != "rmse"]
    if "rmse" in keys:
        values = np.stack([_column(results, problem, prior, metric="rmse") for prior in FAMILIES])
        spread.append(mean_and_error(values.max(0) - values.min(0)))
    return Table(
        [problem, *(LABELS[key] for key in keys)],
        [*rows, ["range over families", *spread]],
        f"{problem}: test scores of the average over all draws, mean over seeds ± standard error. NLL in nats; of a "
        "regression in units of the file. The range is the largest less the smallest of the first four.",
        formats={LABELS[key]: ".4f" for key in keys if key != "rmse"},
    )


def _chains_table(results: Results) -> Table:
    rows = []
    for problem in results[0]:
        for prior in PRIORS:
            found = [result[problem][prior]["chains"] for result in results]
            mean = {key: float(np.mean([one[key] for one in found])) for key in ("acceptance", "leapfrogs")}
            rhat = {
                space: float(np.mean([one[space]["median"] for one in found])) for space in ("weights", "functions")
            }
            draws = float(np.mean([one["functions"]["ess"] for one in found]))
            rows.append([problem, prior, rhat["functions"], rhat["weights"], draws, *mean.values()])
    return Table(
        ["problem", "prior", "R-hat", "R-hat of weights", "effective draws", "acceptance", "leapfrog steps"],
        rows,
        "Health of the chains, means over seeds. R-hat and effective draws: medians over what is predicted at the test "
        "rows; leapfrog steps of an iteration.",
        formats={"effective draws": ".0f", "acceptance": ".2f", "leapfrog steps": ".0f"},
    )


def _published_table() -> Table:
    return Table(
        ["as published", "accuracy", "NLL", "ECE"],
        [[name, *row] for name, row in PUBLISHED.items()],
        "For comparison: a network with convolutions and an LSTM on all of IMDB in Izmailov et al. (2021).",
    )


def _figures(results: Results) -> tuple[Picture, ...]:
    pictures = []
    for metric in ("nll", "accuracy"):
        drawn = {
            problem: {prior: _column(results, problem, prior, metric=metric) for prior in PRIORS}
            for problem in results[0]
            if metric in _metrics(results, problem)
        }
        if drawn:
            figure = figures.metric_dots(drawn, LABELS[metric], over="seeds")
            caption = (
                f"Test {LABELS[metric]} of HMC under four families of one standard deviation, and two other scales."
            )
            pictures.append(Picture(f"Test {LABELS[metric]} by the family of the prior", figure, caption))
    return tuple(pictures)
