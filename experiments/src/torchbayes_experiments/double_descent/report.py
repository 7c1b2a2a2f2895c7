"""Verdict, tables and figures of `double_descent`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table, figures
from torchbayes.report.words import capital
from torchbayes_experiments.double_descent.recipe import ENSEMBLE, MEASURES, METHODS, MULTISWAG, ONE, ONE_SWAG
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.verdicts import Part, Verdict, below, mean_and_error

FITTED, NOT_FITTED = 0.01, 0.05  # training errors: at most the first above the threshold, at least the second below it
# a bump that is not worth the name
MARGINS = {"error": 0.01, "nll": 0.03}
SAID = {"error": "one percentage point", "nll": "0.03 nats"}
LABELS = {"error": "test error", "nll": "test NLL"}


def bump(curve: Sequence[float] | np.ndarray) -> float:
    """Return how far a curve rises and falls again: 0 for one that only falls, only rises, or falls before it rises.

        max over inner places w of  curve(w) − max(min over places before w, min over places after w),  at least 0.

    Args:
        curve: values at three places or more, in order.

    Returns:
        The height of the highest bump over the higher of its two sides.
    """
    values = np.asarray(curve, dtype=np.float64)
    before, after = np.minimum.accumulate(values), np.minimum.accumulate(values[::-1])[::-1]
    return max(0.0, float(np.max(values[1:-1] - np.maximum(before[:-2], after[2:]))))


def summarise(results: Sequence[Mapping[str, Any]]) -> Findings:
    """Turn the seeds' scores into verdict, tables and figures.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    curves = {measure: _curves(results, "test", measure) for measure in MEASURES}
    train = _curves(results, "train", "error")
    parts = _preconditions(results[0], train[ONE])
    for measure in MEASURES:
        parts += _parts(results[0], curves[measure], measure)
    scored = [_score_table(results, curves[measure], measure) for measure in MEASURES]
    tables = (*scored, _train_table(results, train), _bump_table(curves))
    return Findings(Verdict.of(parts), tables, (_width_figure(results, curves, train), _member_figure(results)))


def _curves(results: Sequence[Mapping[str, Any]], rows: str, measure: str) -> dict[str, np.ndarray]:
    """Return method -> values (widths, seeds)."""
    return {
        name: np.array([result["scores"][name][rows][measure] for result in results], dtype=np.float64).T
        for name in METHODS
    }


def _bumps(values: np.ndarray) -> np.ndarray:
    """Return the bump of each column of values (widths, repeats)."""
    return np.array([bump(curve) for curve in values.T])


def _preconditions(first: Mapping[str, Any], train: np.ndarray) -> list[Part]:
    """Return whether the widths are on both sides of the interpolation threshold."""
    good, largest = first["good"], first["widths"][-1]
    return [
        below(
            f"training error of SGD at width {largest} below {100 * FITTED:g} %", train[-1], FITTED, precondition=True
        ),
        below(
            f"training error of SGD at width {good} above {100 * NOT_FITTED:g} %",
            NOT_FITTED - train[first["widths"].index(good)],
            precondition=True,
        ),
    ]


def _parts(first: Mapping[str, Any], curves: Mapping[str, np.ndarray], measure: str) -> list[Part]:
    """Return the parts of the claim for one measure."""
    label, widths = LABELS[measure], first["widths"]
    good, peak = (widths.index(first[key]) for key in ("good", "peak"))
    sgd = curves[ONE]
    parts = [
        below(f"{label} of SGD at width {first['good']} below that at {first['peak']}", sgd[good] - sgd[peak]),
        below(f"{label} of SGD at width {widths[-1]} below that at {first['peak']}", sgd[-1] - sgd[peak]),
        below(f"bump in the {label} of SWAG below that of SGD", _bumps(curves[ONE_SWAG]) - _bumps(sgd)),
    ]
    for name in (ENSEMBLE, MULTISWAG):
        said = f"bump in the {label} of {name} below {SAID[measure]}"
        parts.append(below(said, _bumps(curves[name]), MARGINS[measure]))
    multiswag = curves[MULTISWAG]
    said = f"{label} of MultiSWAG at width {widths[-1]} below that at {first['good']}"
    parts.append(below(said, multiswag[-1] - multiswag[good]))
    return parts


def _threshold(results: Sequence[Mapping[str, Any]], train: np.ndarray) -> int | None:
    """Return the narrowest width at which SGD fits the training labels, in the mean over seeds; None if none does."""
    fitted = np.flatnonzero(train.mean(1) < FITTED)
    return results[0]["widths"][fitted[0]] if len(fitted) else None


def _score_table(results: Sequence[Mapping[str, Any]], curves: Mapping[str, np.ndarray], measure: str) -> Table:
    first = results[0]
    rows = [
        [str(width), first["weights"][at], *(mean_and_error(curves[name][at]) for name in METHODS)]
        for at, width in enumerate(first["widths"])
    ]
    caption = (
        f"{capital(LABELS[measure])} by width, by the true labels: mean over seeds ± standard error. SGD and SWAG are "
        "means over the members of ensemble and MultiSWAG, each taken alone."
    )
    return Table(["width", "weights", *METHODS], rows, caption, formats=dict.fromkeys(METHODS, ".4f"))


def _train_table(results: Sequence[Mapping[str, Any]], train: Mapping[str, np.ndarray]) -> Table:
    wrong = 100 * float(np.mean([result["wrong"] for result in results]))
    rows = [
        [str(width), *(mean_and_error(train[name][at]) for name in METHODS)]
        for at, width in enumerate(results[0]["widths"])
    ]
    caption = f"Training error by width, by the labels trained on, {wrong:.1f} % of which are wrong: mean over seeds."
    return Table(["width", *METHODS], rows, caption, formats=dict.fromkeys(METHODS, ".4f"))


def _bump_table(curves: Mapping[str, Mapping[str, np.ndarray]]) -> Table:
    columns = [f"bump in the {LABELS[measure]}" for measure in MEASURES]
    rows = [[name, *(mean_and_error(_bumps(curves[measure][name])) for measure in MEASURES)] for name in METHODS]
    caption = (
        "Height of the highest bump: by how much the value at a width exceeds the lowest at narrower ones and the "
        "lowest at wider ones, whichever is higher; mean over seeds ± standard error."
    )
    return Table(
        ["method", *columns], rows, caption, better=dict.fromkeys(columns, "low"), formats=dict.fromkeys(columns, ".4f")
    )


def _member_bumps(results: Sequence[Mapping[str, Any]], name: str, measure: str) -> np.ndarray:
    """Return the bumps (M, seeds) of averages over the first 1 to M members."""
    each = [np.asarray(result["averaged"][name][measure], dtype=np.float64) for result in results]  # (widths, M)
    return np.array([_bumps(values) for values in each]).T


def _width_figure(
    results: Sequence[Mapping[str, Any]],
    curves: Mapping[str, Mapping[str, np.ndarray]],
    train: Mapping[str, np.ndarray],
) -> Picture:
    shares = [LABELS["error"], "training error"]
    threshold = _threshold(results, train[ONE])
    drawn = figures.measure_curves(
        {**{LABELS[measure]: values for measure, values in curves.items()}, "training error": train},
        [str(width) for width in results[0]["widths"]],
        label="width of the network",
        percent=shares,
        mark=None if threshold is None else ("interpolation threshold of SGD", str(threshold)),
    )
    where = "no width fits them" if threshold is None else f"width {threshold} is the first"
    return Picture(
        "Error against width, with wrong training labels",
        drawn,
        "Test error and test NLL by the true labels, and training error by the labels trained on, against the width. "
        f"The interpolation threshold is where SGD makes less than {100 * FITTED:g} % mistakes on its training labels: "
        f"{where}.",
    )


def _member_figure(results: Sequence[Mapping[str, Any]]) -> Picture:
    panels = {
        f"bump in the {LABELS[measure]}": {
            name: _member_bumps(results, name, measure) for name in (ENSEMBLE, MULTISWAG)
        }
        for measure in MEASURES
    }
    members = len(results[0]["averaged"][ENSEMBLE]["error"][0])
    places = [str(count) for count in range(1, members + 1)]
    drawn = figures.measure_curves(panels, places, label="members averaged", percent=[f"bump in the {LABELS['error']}"])
    return Picture(
        "Bump against the number of members",
        drawn,
        "Height of the highest bump in the curve over widths, of averages over the first members: one member of the "
        "ensemble is one SGD solution, one of MultiSWAG is SWAG.",
    )


def so_far(found: Sequence[Mapping[str, Any]], widths: Sequence[int]) -> str:
    """Return what is known of a seed when only some widths are finished, as Markdown.

    Args:
        found: the scores of the finished widths, in order.
        widths: all widths of the recipe.

    Returns:
        The text.
    """
    left = ", ".join(str(width) for width in widths[len(found) :])
    columns = [f"{name}, {label}" for label in LABELS.values() for name in METHODS]
    rows = [
        [
            str(one["width"]),
            one["scores"][ONE]["train"]["error"],
            *(one["scores"][name]["test"][measure] for measure in MEASURES for name in METHODS),
        ]
        for one in found
    ]
    heads = ["width", f"{ONE}, training error", *columns]
    said = f"Not finished: widths {left}; there is no verdict." if left else "All widths are finished."
    table = Table(heads, rows, f"{len(found)} of {len(widths)} widths are finished. {said}")
    return table.markdown() + "\n"
