"""Verdict, tables and figures of `evidence_support`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table, figures
from torchbayes_experiments.evidence_support.recipe import NOISY, RANDOM, STRUCTURED
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.verdicts import Part, Verdict, below, mean_and_error

SLACK = 0.005  # nats per row above equal probabilities; the sizes of MNIST's classes, which shuffles keep, give 0.002


def summarise(results: Sequence[Mapping[str, Any]]) -> Findings:
    """Turn the seeds' numbers into verdict, tables and figures.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    names = list(results[0][STRUCTURED])
    evidence = {name: {s: _column(results, s, name, "evidence") for s in (STRUCTURED, NOISY, RANDOM)} for name in names}
    away = [sum(not r[s][n]["at_mode"] for s in (STRUCTURED, NOISY, RANDOM) for n in names) for r in results]
    parts = [below("networks that are not at a mode: none", away, 0.5, precondition=True)]
    for low, high in pairwise(names):
        values = evidence[low][STRUCTURED] - evidence[high][STRUCTURED]
        parts.append(below(f"structured: evidence of {low} below that of {high}", values))
    for name in names:
        parts += _between(name, evidence[name])
    for name in names:
        values = evidence[name][RANDOM] - np.array([result["uniform"] for result in results])
        parts.append(below(f"random labels: {name} not above equal probabilities", values, SLACK))
    return Findings(Verdict.of(parts), (_table(results, names),), _figures(results, names, evidence))


def _between(name: str, evidence: Mapping[str, np.ndarray]) -> list[Part]:
    return [
        below(f"{name}: evidence of noisy below structured labels", evidence[NOISY] - evidence[STRUCTURED]),
        below(f"{name}: evidence of random below noisy labels", evidence[RANDOM] - evidence[NOISY]),
    ]


def _column(results: Sequence[Mapping[str, Any]], name: str, network: str, key: str) -> np.ndarray:
    return np.array([result[name][network][key] for result in results], dtype=np.float64)


def _table(results: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Table:
    columns = {
        "evidence": "log evidence / row",
        "log_likelihood": "log likelihood / row",
        "effective": "effective weights",
        "train_accuracy": "training accuracy",
        "test_nll": "test NLL",
        "test_accuracy": "test accuracy",
    }
    rows = []
    for label in (STRUCTURED, NOISY, RANDOM):
        for name in names:
            found = [mean_and_error(_column(results, label, name, key)) for key in columns]
            rows.append([label, name, int(results[0][label][name]["weights"]), *found])
    return Table(
        ["labels", "network", "weights", *columns.values()],
        rows,
        "Mean over seeds ± standard error. Evidence by Laplace with Kronecker factors, at the mode under a prior that "
        "the evidence chose, in nats; equal probabilities have "
        f"{results[0]['uniform']:.3f} a row. Test scores: linearised predictive, on true labels.".replace("-", "−"),
        formats={"effective weights": ".0f", "weights": ",d"},
    )


def _figures(
    results: Sequence[Mapping[str, Any]], names: Sequence[str], evidence: Mapping[str, Mapping[str, np.ndarray]]
) -> tuple[Picture, ...]:
    sets = (STRUCTURED, NOISY, RANDOM)
    measure, uniform = "log evidence per row (nats), higher is better", results[0]["uniform"]
    drawn = {name: np.stack([evidence[name][label] for label in sets]) for name in names}
    scores = {name: np.stack([_column(results, label, name, "test_nll") for label in sets]) for name in names}
    scored = "test NLL (nats), lower is better"
    levels = {measure: ("equal probabilities", uniform), scored: ("equal probabilities", -uniform)}
    caption = (
        "Left: the evidence of each network in images with their labels, with a share of them shuffled, and with all "
        "of them shuffled. Right: what its predictions are worth on test images with true labels."
    )
    figure = figures.measure_curves({measure: drawn, scored: scores}, sets, levels=levels)
    return (Picture("Evidence of three networks", figure, caption),)
