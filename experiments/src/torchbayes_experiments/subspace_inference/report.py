"""Verdict, tables and figures of `subspace_inference`."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchbayes.report import Picture, Table
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.shared.uci_splits import Values, mean_over_seeds
from torchbayes_experiments.subspace_inference import pictures
from torchbayes_experiments.subspace_inference.published import (
    COVERAGE,
    IMAGE_ACCURACY,
    IMAGE_NLL,
    LOG_LIKELIHOOD,
    RMSE,
    Numbers,
)
from torchbayes_experiments.subspace_inference.recipe import (
    DATA,
    ESS,
    GAPS,
    IMAGES,
    METHODS,
    METRICS,
    OUTSIDE,
    REGRESSIONS,
    SGD_POINT,
    SPACES,
    SWA_POINT,
    SWAG_POSTERIOR,
    TOY,
    VARIATIONAL,
)
from torchbayes_experiments.subspace_inference.verdict import (
    Results,
    band,
    image_scores,
    less_likely,
    nll,
    verdict,
)
from torchbayes_experiments.verdicts import interval, mean_and_error

_COLUMNS = {"nll_gaussian": ("log likelihood", LOG_LIKELIHOOD, ".3f"), "rmse": ("RMSE", RMSE, ".3f"),
            "coverage": ("95 % coverage", COVERAGE, ".3f")}  # fmt: skip


def summarise(results: Results) -> Findings:
    """Turn the seeds' scores into verdict, tables and figures.

    The repeats of the parts on UCI sets are the splits, of scores averaged over the seeds that have them; those of the
    others are the seeds.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    tables: list[Table] = []
    figures: list[Picture] = []
    regressions = [result[REGRESSIONS] for result in results if REGRESSIONS in result]
    if regressions:
        values = mean_over_seeds(regressions, METHODS, METRICS)
        tables += [*(_uci_table(values, metric) for metric in METRICS), _difference_table(values)]
        figures.append(pictures.regressions(values))
    if TOY in results[0]:
        tables.append(_band_table(results))
        figures.append(pictures.bands(results[0][TOY]))
    if IMAGES in results[0]:
        tables.append(_image_table(results))
        figures.append(pictures.images(results))
    return Findings(verdict(results), tuple(tables), tuple(figures))


def _uci_table(values: Values, metric: str) -> Table:
    label, published, digits = _COLUMNS[metric]
    sign = -1 if metric == "nll_gaussian" else 1
    rows = []
    for name, methods in values.items():
        rows.append([name, "here", *(mean_and_error(sign * methods[m][metric]) for m in METHODS)])
        rows.append([name, "published", *_published_row(published[name])])
    return Table(
        [f"test {label}", "", *METHODS],
        rows,
        "Here: mean over splits ± standard error, in the target's units. Published: Izmailov et al. (2019), ± standard "
        "deviation over splits. ESS and VI in the subspace of the principal components.",
        formats=dict.fromkeys(METHODS, digits),
    )


def _published_row(numbers: Numbers) -> list[Any]:
    return [numbers.get(method) for method in METHODS]


def _difference_table(values: Values) -> Table:
    """Return paired differences: splits differ far more than methods do."""
    rows = []
    others = (SWA_POINT, ESS, VARIATIONAL, SWAG_POSTERIOR)
    for name in values:
        for method in others:
            less = nll(values, name, method) - nll(values, name, SGD_POINT)
            rows.append([name, f"{method} − SGD", *_turned(*interval(less))])
    for method in others:
        rows.append(["mean of the sets", f"{method} − SGD", *_turned(*interval(less_likely(values, method)))])
    return Table(
        ["set", "difference", "log likelihood", "from", "to"],
        rows,
        "Paired differences of the test log likelihood over splits with their 95 % t interval; above zero the first is "
        "better.",
        formats=dict.fromkeys(("log likelihood", "from", "to"), ".3f"),
    )


def _turned(mean: float, low: float, high: float) -> list[float | None]:
    """Return the interval of the negative; its ends are None where they are infinite."""
    return [-mean, *(None if np.isinf(end) else -end for end in (high, low))]


def _band_table(results: Results) -> Table:
    rows = []
    for space in SPACES:
        at = {where: band(results, space, where) for where in (DATA, GAPS, OUTSIDE)}
        rmse = [result[TOY]["spaces"][space]["rmse"] for result in results]
        ratios = [at[where] / at[DATA] for where in (GAPS, OUTSIDE)]
        rows.append([space, *map(mean_and_error, (*at.values(), *ratios, np.array(rmse)))])
    columns = ["at the data", "in the gaps", "outside", "gaps/data", "outside/data", "RMSE"]
    return Table(
        ["subspace", *columns],
        rows,
        "Standard deviation of the functions of ESS on the regression in one dimension, averaged over inputs in the "
        "clusters of data, between them, and outside; RMSE at the training rows; mean over seeds ± standard error.",
        formats=dict.fromkeys(columns, ".3f") | dict.fromkeys(columns[3:5], ".2f"),
    )


def _image_table(results: Results) -> Table:
    rows = []
    for name in (SWA_POINT, SWAG_POSTERIOR, *SPACES):
        own = {metric: image_scores(results, name, metric) for metric in ("nll", "accuracy", "ece")}
        own["accuracy"] = 100 * own["accuracy"]
        cells = [mean_and_error(found) for found in own.values()]
        rows.append([name if name not in SPACES else f"ESS, {name}", *cells, IMAGE_NLL.get(name),
                     IMAGE_ACCURACY.get(name)])  # fmt: skip
    return Table(
        ["images", "NLL", "accuracy, %", "ECE", "published NLL", "published accuracy, %"],
        rows,
        "Test images: mean over seeds ± standard error. Published: PreResNet-164 on CIFAR-100.",
        better={"NLL": "low", "accuracy, %": "high", "ECE": "low"},
        formats={"NLL": ".4f", "accuracy, %": ".2f", "ECE": ".4f", "published NLL": ".4f",
                 "published accuracy, %": ".2f"},
    )  # fmt: skip
