"""Verdict, tables and figures of `prior_functions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table, figures
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.prior_functions.recipe import PIXELS
from torchbayes_experiments.verdicts import Part, Verdict, below, mean_and_error

FLAT = 0.1  # share of the whole fall of the NLL by which it may change over the broad range


def summarise(results: Sequence[Mapping[str, Any]]) -> Findings:
    """Turn the seeds' numbers into verdict, tables and figures.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    parts = [*_alike(results), *_broad(results)]
    pictures = (_maps(results[0]), _curves(results), _scores(results))
    return Findings(Verdict.of(parts), (_drawn_table(results), _fitted_table(results)), pictures)


def _alike(results: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Return what is claimed of correlations: of every scale, and that they fall with it."""
    parts, priors = [], [one for one in results[0]["drawn"] if one["network"] != PIXELS]
    for place, one in enumerate(priors):
        found = {key: _column(results, "drawn", place, key) for key in ("within", "between", "nearest")}
        name = f"α = {one['scale']:g}"
        parts.append(
            below(f"{name}: correlation between classes below that within", found["between"] - found["within"])
        )
        parts.append(below(f"{name}: of every class, largest with another below that within", -found["nearest"]))
    low, high = (_column(results, "drawn", place, "between") for place in (0, len(priors) - 1))
    parts.append(below("correlation between classes of the largest α below that of the smallest", high - low))
    return parts


def _broad(results: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Return what is claimed of the NLL by scale."""
    scales = [one["scale"] for one in results[0]["fitted"]]
    low, high = results[0]["broad"]
    nll = np.array([[one["nll"] for one in result["fitted"]] for result in results])  # seeds, scales
    inside = np.array([low <= scale <= high for scale in scales])
    fall = nll[:, 0] - nll.min(1)
    change = nll[:, inside].max(1) - nll[:, inside].min(1)
    lowest = nll[:, inside].min(1) - nll[:, ~inside].min(1)
    return [
        below(f"NLL at α = {low:g} below that at the smallest α", nll[:, scales.index(low)] - nll[:, 0]),
        below(
            f"change of the NLL over α from {low:g} to {high:g}, share of its fall from the smallest α",
            change / fall,
            FLAT,
        ),
        below("lowest NLL in that range below the lowest outside", lowest),
    ]


def _column(results: Sequence[Mapping[str, Any]], part: str, place: int, key: str) -> np.ndarray:
    return np.array([result[part][place][key] for result in results], dtype=np.float64)


def _drawn_table(results: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for place, one in enumerate(results[0]["drawn"]):
        keys = ("within", "between", "nearest", "confidence")
        found = {key: _column(results, "drawn", place, key) for key in keys}
        ratio = (1 - found["within"]) / (1 - found["between"])
        numbers = [found["within"], found["between"], found["nearest"], ratio, found["confidence"]]
        rows.append([one["network"], one["scale"], *map(mean_and_error, numbers)])
    return Table(
        ["network", "α", "within a class", "between classes", "least lead of a class", "ratio of 1 − ρ", "confidence"],
        rows,
        "Mean correlation ρ of outputs over functions drawn from the prior; mean over seeds ± standard error. Least "
        "lead: the correlation within a class less its largest with another, of the class where this is least. Ratio: "
        "1 − ρ within, over 1 − ρ between. Confidence: mean probability of the likeliest class, of a single function. "
        "The linear model has the cosines of the pixels.",
        formats={"α": "g"},
    )


def _fitted_table(results: Sequence[Mapping[str, Any]]) -> Table:
    keys = {"nll": "test NLL", "accuracy": "test accuracy", "ece": "ECE", "train_nll": "training NLL"}
    rows = [
        [one["scale"], *(mean_and_error(_column(results, "fitted", place, key)) for key in keys)]
        for place, one in enumerate(results[0]["fitted"])
    ]
    return Table(
        ["α", *keys.values()],
        rows,
        "SWAG under N(0, α² I): mean over seeds ± standard error, NLL in nats.",
        better={"test NLL": "low", "test accuracy": "high", "ECE": "low"},
        formats={"α": "g"},
    )


def _maps(result: Mapping[str, Any]) -> Picture:
    priors = {_title(one): one["map"] for one in result["drawn"]}
    return Picture(
        "Which images a prior takes to be alike",
        figures.correlation_maps(priors, result["drawn"][0]["labels"], label="correlation of logits over functions"),
        "Correlation of the logits at two images over functions drawn from the prior, images ordered by class; first "
        "seed. Lighter squares on the diagonal: images of one class are alike, before any label was seen.",
    )


def _title(one: Mapping[str, Any]) -> str:
    label = "LeNet" if one["network"] == "lenet" else one["network"]
    return "linear model (pixels)" if one["network"] == PIXELS else f"{label}, α = {one['scale']:g}"


def _curves(results: Sequence[Mapping[str, Any]]) -> Picture:
    names = [f"α = {one['scale']:g}" for one in results[0]["drawn"] if one["network"] != PIXELS]
    drawn = {
        label: np.stack([_column(results, "drawn", place, key) for place in range(len(names))])
        for label, key in (("within a class", "within"), ("between classes", "between"))
    }
    return Picture(
        "Correlations within and between classes",
        figures.measure_curves({"correlation of logits": drawn}, names),
        "Mean correlation of two images of one class, and of two classes, under each prior.",
    )


def _scores(results: Sequence[Mapping[str, Any]]) -> Picture:
    scales = [f"{one['scale']:g}" for one in results[0]["fitted"]]

    def over(key: str) -> np.ndarray:
        return np.stack([_column(results, "fitted", place, key) for place in range(len(scales))])

    panels = {
        "test NLL (nats), lower is better": {"SWAG": over("nll")},
        "test accuracy, higher is better": {"SWAG": over("accuracy")},
    }
    return Picture(
        "Predictions by the scale of the prior",
        figures.measure_curves(panels, scales, label="α, standard deviation of the prior of each weight"),
        "Test scores of SWAG under N(0, α² I).",
    )
