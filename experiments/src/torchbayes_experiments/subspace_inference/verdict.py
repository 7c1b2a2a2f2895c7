"""The verdict of `subspace_inference`: its parts, with bounds that were set before any whole run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchbayes_experiments.shared.uci_splits import Values, mean_over_seeds
from torchbayes_experiments.subspace_inference.published import LOG_LIKELIHOOD
from torchbayes_experiments.subspace_inference.recipe import (
    CURVE,
    DATA,
    ESS,
    GAPS,
    IMAGES,
    METHODS,
    METRICS,
    OUTSIDE,
    PCA,
    RANDOM,
    REGRESSIONS,
    SGD_POINT,
    SPACES,
    SWA_POINT,
    TOY,
    VARIATIONAL,
)
from torchbayes_experiments.verdicts import Part, Verdict, below

Results = Sequence[Mapping[str, Any]]

MARGIN = 0.05  # nats: log likelihoods this close count as equally good
OPEN = 1.25  # by which a band must be wider between the clusters, and outside of them, than at the data
FAIR = 0.2  # share of the test images that the average of weights may take for something else


def verdict(results: Results) -> Verdict:
    """Return the verdict of the seeds that have each part."""
    tables = [result[REGRESSIONS] for result in results if REGRESSIONS in result]
    parts = _on_tables(mean_over_seeds(tables, METHODS, METRICS)) if tables else []
    if TOY in results[0]:
        parts += _on_bands(results)
    if IMAGES in results[0]:
        parts += _on_images(results)
    return Verdict.of(parts)


def nll(values: Values, name: str, method: str) -> np.ndarray:
    """Return the NLL of a method on a set, one for each split."""
    return values[name][method]["nll_gaussian"]


def less_likely(values: Values, method: str) -> np.ndarray:
    """Return by how much a method's log likelihood is below that of SGD, mean over the sets, one for each split."""
    return np.mean([nll(values, name, method) - nll(values, name, SGD_POINT) for name in values], axis=0)


def _on_tables(values: Values) -> list[Part]:
    parts = []
    for name in values:
        for method in (ESS, VARIATIONAL):
            less = nll(values, name, method) - nll(values, name, SGD_POINT)
            parts.append(below(f"{name}: log likelihood of {method} at most {MARGIN} below that of SGD", less, MARGIN))
    for method in (ESS, VARIATIONAL):
        parts.append(below(f"mean of the sets: log likelihood of {method} above that of SGD",
                           less_likely(values, method)))  # fmt: skip
    for name in values:
        for method in (ESS, VARIATIONAL):
            mean, spread = LOG_LIKELIHOOD[name][method]
            what = f"{name}: NLL of {method} at most the published {-mean:g} + {spread:g}"
            parts.append(below(what, nll(values, name, method), spread - mean))
    return parts


def band(results: Results, space: str, where: str) -> np.ndarray:
    """Return the mean standard deviation of the functions in a region, one for each seed."""
    return np.array([result[TOY]["spaces"][space][where] for result in results])


def _on_bands(results: Results) -> list[Part]:
    at_data = {space: band(results, space, DATA) for space in SPACES}
    parts = []
    for space in (PCA, CURVE):
        for where, said in ((GAPS, "in the gaps"), (OUTSIDE, "outside")):
            what = f"bands: spread at the data over that {said}, {space}"
            parts.append(below(what, at_data[space] / band(results, space, where), 1 / OPEN))
    opened = {space: band(results, space, GAPS) / at_data[space] for space in SPACES}
    for space in (PCA, CURVE):
        what = f"bands: spread in the gaps over that at the data, random over {space}"
        parts.append(below(what, opened[RANDOM] / opened[space], 1.0))
    return parts


def image_scores(results: Results, name: str, metric: str) -> np.ndarray:
    """Return a score on the images, one for each seed."""
    return np.array([result[IMAGES][name][metric] for result in results])


def _on_images(results: Results) -> list[Part]:
    scores = {name: image_scores(results, name, "nll") for name in (SWA_POINT, *SPACES)}

    def lower(first: str, second: str) -> Part:
        return below(f"images: NLL of {first} below that of {second}", scores[first] - scores[second])

    wrong = 1 - image_scores(results, SWA_POINT, "accuracy")
    pairs = [(PCA, RANDOM), (CURVE, PCA), *((space, SWA_POINT) for space in SPACES)]
    return [below("images: error of SWA", wrong, FAIR, precondition=True), *(lower(*pair) for pair in pairs)]
