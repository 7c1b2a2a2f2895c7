"""Verdict, tables and figures of `multiswag_corruption`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table, figures
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.multiswag_corruption.recipe import METHODS
from torchbayes_experiments.shared.classifiers import METRICS
from torchbayes_experiments.verdicts import Verdict, below, mean_and_error

STRONG = (4, 5)  # severities


def summarise(results: Sequence[dict[str, Any]]) -> Findings:
    """Turn the seeds' scores into verdict, tables and figures.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    curves = {metric: _curves(results, metric) for metric in METRICS}
    nll, strong = curves["nll"], {name: curves["nll"][name][list(STRONG)].mean(0) for name in METHODS}
    at = "at severities 4 and 5"
    verdict = Verdict.of([
        below(
            "the single network's error on clean images is at most 10 %",
            1 - curves["accuracy"]["single"][0],
            0.1,
            precondition=True,
        ),
        below("clean NLL: ensemble / single network below 0.9", nll["ensemble"][0] / nll["single"][0], 0.9),
        below(f"NLL {at}: ensemble below single network", strong["ensemble"] - strong["single"]),
        below(f"NLL {at}: MultiSWAG below ensemble", strong["MultiSWAG"] - strong["ensemble"]),
    ])
    tables = (_clean_table(curves, results), _severity_table(nll), _difference_table(nll), _kind_table(results))
    return Findings(verdict, tables, _figures(curves))


def _curves(results: Sequence[dict[str, Any]], metric: str) -> dict[str, np.ndarray]:
    """Return method -> values (6, R): clean and the mean over corruptions at severities 1 to 5, for each seed."""

    def column(result: dict[str, Any], name: str) -> list[float]:
        corrupted = [[scores[name][metric] for scores in kind] for kind in result["corrupted"].values()]
        return [result["clean"][name][metric], *np.mean(corrupted, axis=0)]

    return {name: np.transpose([column(result, name) for result in results]) for name in METHODS}


def _clean_table(curves: Mapping[str, Mapping[str, np.ndarray]], results: Sequence[dict[str, Any]]) -> Table:
    def spread(name: str) -> float | None:
        found = [result["clean"][name].get("nll_std") for result in results]
        return None if None in found else float(np.mean(found))

    columns = ["accuracy", "NLL", "ECE", "spread of NLL"]
    return Table(
        ["method", *columns],
        [[name, *(mean_and_error(curves[metric][name][0]) for metric in METRICS), spread(name)] for name in METHODS],
        "Clean test images: mean over seeds ± standard error. A single network is the mean over the ensemble's members "
        "taken alone, SWAG the mean over MultiSWAG's, and the spread their standard deviation; MultiSWA averages the "
        "means of MultiSWAG's Gaussians.",
        better={"accuracy": "high", "NLL": "low", "ECE": "low"},
        formats=dict.fromkeys(columns, ".4f"),
    )


def _severity_table(nll: Mapping[str, np.ndarray]) -> Table:
    severities = [f"severity {severity}" for severity in range(1, 6)]
    return Table(
        ["method", *severities],
        [[name, *(mean_and_error(row) for row in nll[name][1:])] for name in METHODS],
        "NLL under corruption, mean over corruptions; mean over seeds ± standard error.",
        better=dict.fromkeys(severities, "low"),
    )


def _difference_table(nll: Mapping[str, np.ndarray]) -> Table:
    pairs = (("ensemble", "single"), ("MultiSWAG", "ensemble"), ("MultiSWAG", "MultiSWA"))
    columns = [f"{a} − {b}" for a, b in pairs]
    severities = ("clean", *(f"severity {severity}" for severity in range(1, 6)))
    return Table(
        ["images", *columns],
        [[text, *(mean_and_error(nll[a][s] - nll[b][s]) for a, b in pairs)] for s, text in enumerate(severities)],
        "Paired differences of NLL, mean over corruptions; mean over seeds ± standard error. Below zero the first of "
        "the two is better.",
        formats=dict.fromkeys(columns, ".4f"),
    )


def _kind_table(results: Sequence[dict[str, Any]]) -> Table:
    """Return the NLL of each corruption at high severity, to show which corruptions order the means."""

    def strong(kind: str, name: str) -> float:
        return float(np.mean([[r["corrupted"][kind][s - 1][name]["nll"] for s in STRONG] for r in results]))

    kinds = list(results[0]["corrupted"])
    return Table(
        ["corruption", *METHODS],
        [[kind.replace("_", " "), *(strong(kind, name) for name in METHODS)] for kind in kinds],
        "NLL of each corruption, mean over severities 4 and 5 and over seeds.",
    )


def _figures(curves: Mapping[str, Mapping[str, np.ndarray]]) -> tuple[Picture, ...]:
    labels = {"nll": "NLL", "accuracy": "Accuracy", "ece": "ECE"}
    return tuple(
        Picture(
            f"{label} under corruption",
            figures.severity_curves(curves[metric], label, over="seeds"),
            f"{label} on clean images and, averaged over corruptions, at severities 1 to 5.",
        )
        for metric, label in labels.items()
    )
