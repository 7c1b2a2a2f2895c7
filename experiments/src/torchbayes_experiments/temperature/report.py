"""Verdict, tables and figure of `temperature`, with the published numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table, figures
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.temperature.recipe import FULL, METHODS, PLAIN, ROWS, VIEWS
from torchbayes_experiments.verdicts import Part, Verdict, below, mean_and_error

RHAT = 1.1  # bound on the median R-hat of test probabilities of HMC, at the worst T
MARGINS = {"nll": 0.01, "accuracy": 0.005}  # a score that is less than this behind the best is near it
LABELS = {"nll": "NLL", "accuracy": "accuracy", "ece": "ECE", "few": "NLL"}

# IMDB without augmentation in Izmailov et al. (2021), read off a figure: T -> accuracy, NLL, ECE.
PUBLISHED = {
    0.03: (0.772, 0.47, 0.012),
    0.1: (0.797, 0.425, 0.012),
    0.3: (0.83, 0.378, 0.02),
    1.0: (0.866, 0.311, 0.034),
    3.0: (0.83, 0.42, 0.101),
    10.0: (0.672, 0.66, 0.133),
}

Results = Sequence[Mapping[str, Any]]


def summarise(results: Results) -> Findings:
    """Turn the seeds' numbers into verdict, tables and figure.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    parts = [part for problem in results[0] for part in _parts(results, problem)]
    tables = (*(_scores_table(results, metric) for metric in LABELS), _chains_table(results), _published_table())
    return Findings(Verdict.of(parts), tables, (_figure(results),))


def losses(results: Results, problem: str, what: str, *, method: str, metric: str) -> np.ndarray:
    """Return scores at every T, (T, seeds), of which less is better: accuracies have their sign changed.

    Args:
        results: what `run` returned, one per seed.
        problem: its name.
        what: with or without augmentation, one of `ROWS`.
        method: the sampler.
        metric: a key of `LABELS`.
    """
    sign = -1 if metric == "accuracy" else 1
    return sign * np.array([[one[metric] for one in result[problem][what][method]] for result in results]).T


def _parts(results: Results, problem: str) -> list[Part]:
    heats = np.array(results[0][problem]["temperatures"])
    worst = [max(_middle(one) for what in ROWS for one in result[problem][what][FULL]) for result in results]
    parts = [below(f"{problem}: median R-hat of predictions of HMC, worst T", worst, RHAT, precondition=True)]
    for method in METHODS:
        for metric, margin in MARGINS.items():
            plain, more = (losses(results, problem, what, method=method, metric=metric) for what in ROWS)
            label, start = LABELS[metric], f"{problem}, {method}"
            at_one = plain[heats == 1][0]
            cold = more[heats < 1].min(0) - more[heats >= 1].min(0)
            parts += [
                below(
                    f"{start}, {PLAIN}: {label} at T = 1 less than {margin} behind the best",
                    at_one - plain.min(0),
                    margin,
                ),
                below(f"{start}, {VIEWS}: best {label} below T = 1 more than {margin} ahead", cold, -margin),
                below(
                    f"{start}: lead of the best {label} below T = 1, larger with augmentation",
                    _cold(more, heats) - _cold(plain, heats),
                ),
            ]
    return parts


def _cold(scores: np.ndarray, heats: np.ndarray) -> np.ndarray:
    """Return the best loss below T = 1 less that at T = 1, one value per seed."""
    return scores[heats < 1].min(0) - scores[heats == 1][0]


def _middle(scores: Mapping[str, Any]) -> float:
    """Return the median R-hat of the predictions; one that is none counts as large."""
    return float(np.nan_to_num(scores["functions"]["median"], nan=1e6, posinf=1e6))


def _scores_table(results: Results, metric: str) -> Table:
    rows = []
    for problem in results[0]:
        for what in ROWS:
            for method in METHODS:
                scores = np.abs(losses(results, problem, what, method=method, metric=metric))
                rows.append([problem, what, method, *(mean_and_error(values) for values in scores)])
    columns = _columns(results)
    return Table(
        ["data", "rows", "method", *columns],
        rows,
        f"Test {LABELS[metric]} of the average over {'few' if metric == 'few' else 'all'} draws by temperature, mean "
        "over seeds ± standard error.",
        formats=dict.fromkeys(columns, ".4f"),
    )


def _columns(results: Results) -> list[str]:
    return [f"T = {heat:g}" for heat in results[0][next(iter(results[0]))]["temperatures"]]


def _chains_table(results: Results) -> Table:
    rows = []
    for problem in results[0]:
        for what in ROWS:
            for method in METHODS:
                found = [[_middle(one) for one in result[problem][what][method]] for result in results]
                rows.append([problem, what, method, *np.mean(found, axis=0)])
    return Table(
        ["data", "rows", "method", *_columns(results)],
        rows,
        "Health of the chains: median R-hat of the probabilities at 200 test rows, mean over seeds.",
    )


def _published_table() -> Table:
    return Table(
        ["T, as published", "accuracy", "NLL", "ECE"],
        [[f"{heat:g}", *row] for heat, row in PUBLISHED.items()],
        "For comparison: HMC on IMDB without augmentation in Izmailov et al. (2021), read off a figure.",
    )


def _figure(results: Results) -> Picture:
    heats = results[0][next(iter(results[0]))]["temperatures"]
    panels = {
        f"test {LABELS[metric]}, {problem}": {
            f"{method}, {what}": np.abs(losses(results, problem, what, method=method, metric=metric))
            for what in ROWS
            for method in METHODS
        }
        for metric in MARGINS
        for problem in results[0]
    }
    names = [f"{heat:g}" for heat in heats]
    figure = figures.measure_curves(panels, names, label="temperature T", mark=("T = 1", "1"))
    return Picture(
        "Test scores by temperature",
        figure,
        "Test NLL and accuracy of the average over all draws at temperature T, with and without four shifted views of "
        "every training image. T = 1 is the Bayes posterior.",
    )
