"""Verdict, tables and figures of `mode_connectivity`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchbayes.report import Table
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.mode_connectivity import pictures
from torchbayes_experiments.mode_connectivity.recipe import (
    ALIGNMENT,
    BEFORE,
    CURVES,
    IMAGES,
    MATCHED,
    RESIDUAL,
    SEGMENT,
)
from torchbayes_experiments.verdicts import Part, Verdict, below, mean_and_error

Results = Sequence[Mapping[str, Any]]

LABELS = {IMAGES: "Fashion-MNIST, LeNet", RESIDUAL: "CIFAR-10, PreResNet-20", ALIGNMENT: "MNIST, perceptrons"}
FAIR = {IMAGES: 0.15, RESIDUAL: 0.65, ALIGNMENT: 0.04}  # test errors of the ends from which a path says nothing
HIGH_LOSS, HIGH_ERROR = 0.5, 0.1  # nats and share by which the straight line rises above the worse end, at least
LOSS_FACTOR = 1.2  # loss on a curve over that of the worse end; published: 1 for Bezier curves, at most 1.18 for chains
ERROR_MARGIN = 0.01  # of test error; published on CIFAR-10: 0.1 to 1.1 points
SHARE = 0.5  # of what two ends differ by, and gain together, that the middle of a curve must reach
BARRIER, BARRIER_BEFORE = 0.05, 0.2  # nats: barriers of aligned networks at most, of others at least
HALFWAY = 0.01  # test error halfway between aligned networks, above the mean of the ends


def summarise(results: Results) -> Findings:
    """Turn the seeds' scores into verdict, tables and figures.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    tables: list[Table] = []
    drawn = []
    for task in (IMAGES, RESIDUAL):
        if task in results[0]:
            own = [result[task] for result in results]
            tables += [_paths_table(LABELS[task], own), _averages_table(LABELS[task], own)]
            drawn += [pictures.losses(LABELS[task], own), *pictures.planes(LABELS[task], own)]
            drawn.append(pictures.diversity(LABELS[task], own))
    if ALIGNMENT in results[0]:
        own = [result[ALIGNMENT] for result in results]
        tables.append(_alignment_table(own))
        drawn.append(pictures.aligned(LABELS[ALIGNMENT], own))
    return Findings(verdict(results), tuple(tables), tuple(drawn))


def verdict(results: Results) -> Verdict:
    """Return the verdict of the seeds.

    Args:
        results: the seeds' scores.

    Returns:
        The verdict.
    """
    parts: list[Part] = []
    for task in (IMAGES, RESIDUAL):
        if task in results[0]:
            own = [result[task] for result in results]
            parts += [*_straight_parts(task, own), *_curve_parts(LABELS[task], own)]
            if task == IMAGES:  # where the ends are trained long enough for a curve to be no better than they are
                parts += _diversity_parts(LABELS[task], own)
    if ALIGNMENT in results[0]:
        parts += _alignment_parts([result[ALIGNMENT] for result in results])
    return Verdict.of(parts)


def at(results: Results, path: str, key: str) -> np.ndarray:
    """Return a score of the networks along a path, (R, T).

    Args:
        results: what the run has of paths, of each seed.
        path: its name.
        key: a score.
    """
    return np.array([result["paths"][path][key] for result in results], dtype=np.float64)


def over_ends(results: Results, path: str, key: str) -> np.ndarray:
    """Return the largest score on a path minus the larger one of the two ends, (R,): zero where no network is worse."""
    found = at(results, path, key)
    return found.max(1) - found[:, [0, -1]].max(1)


def averaged(results: Results, path: str, count: int, *, key: str) -> np.ndarray:
    """Return `error` or `nll` of the average of K networks on a path, (R,)."""
    return np.array([result["paths"][path]["averages"][str(count)][key] for result in results])


def _straight_parts(task: str, results: Results) -> list[Part]:
    label, worse = LABELS[task], at(results, SEGMENT, "error")[:, [0, -1]].max(1)
    return [
        below(f"{label}: test error of the worse end", worse, FAIR[task], precondition=True),
        below(
            f"{label}: on the straight line the training loss rises by more than {HIGH_LOSS} nats above the worse end",
            HIGH_LOSS - over_ends(results, SEGMENT, "loss"),
        ),
        below(
            f"{label}: and the test error by more than {100 * HIGH_ERROR:g} points",
            HIGH_ERROR - over_ends(results, SEGMENT, "error"),
        ),
    ]


def _curve_parts(label: str, results: Results) -> list[Part]:
    parts = []
    for name in CURVES:
        found = at(results, name, "loss")
        ratio = found.max(1) / found[:, [0, -1]].max(1)
        parts += [
            below(f"{label}, {name}: largest training loss over that of the worse end", ratio, LOSS_FACTOR),
            below(
                f"{label}, {name}: largest test error above that of the worse end",
                over_ends(results, name, "error"),
                ERROR_MARGIN,
            ),
        ]
    return parts


def _diversity_parts(label: str, results: Results) -> list[Part]:
    middle, most = len(results[0]["positions"]) // 2, len(results[0]["positions"])
    parts = []
    for name in CURVES:
        differs, pair = at(results, name, "differs"), at(results, name, "pair_nll")
        gain = pair[:, [0]] - pair  # in NLL, over the first end alone
        nll, error = (averaged(results, name, most, key=key) for key in ("nll", "error"))
        ends = averaged(results, name, 2, key="nll")
        single = at(results, name, "error")[:, [0, -1]].mean(1)
        parts += [
            below(
                f"{label}, {name}: share of test images that differ between 0 and ½, over that between the ends, is "
                f"above {SHARE:g}",
                SHARE - differs[:, middle] / differs[:, -1],
            ),
            below(
                f"{label}, {name}: gain in NLL of averaging the networks at 0 and ½, over that of the ends, is above "
                f"{SHARE:g}",
                SHARE - gain[:, middle] / gain[:, -1],
            ),
            below(
                f"{label}, {name}: NLL of the average of {most} networks below that of the best of them",
                nll - at(results, name, "test_nll").min(1),
            ),
            below(f"{label}, {name}: error of the average of {most} networks below that of one end", error - single),
            below(f"{label}, {name}: NLL of the average of {most} networks below that of the two ends", nll - ends),
        ]
    return parts


def line(results: Results, name: str, key: str) -> np.ndarray:
    """Return a score of the straight lines between perceptrons: (R, T), or (R,) for `height` and `excess`.

    Args:
        results: what the run has of the alignment, of each seed.
        name: how units were matched.
        key: a score.
    """
    return np.array([result["lines"][name][key] for result in results], dtype=np.float64)


def halfway(results: Results, name: str) -> np.ndarray:
    """Return the test error halfway between two perceptrons minus the mean of both, (R,)."""
    error = line(results, name, "error")
    return error[:, error.shape[1] // 2] - error[:, [0, -1]].mean(1)


def _alignment_parts(results: Results) -> list[Part]:
    label = LABELS[ALIGNMENT]
    worse = line(results, BEFORE, "error")[:, [0, -1]].max(1)
    parts = [
        below(f"{label}: test error of the worse end", worse, FAIR[ALIGNMENT], precondition=True),
        below(
            f"{label}: barrier as trained above {BARRIER_BEFORE} nats",
            BARRIER_BEFORE - line(results, BEFORE, "height"),
        ),
    ]
    for name in MATCHED:
        parts += [
            below(f"{label}, {name}: barrier in nats", line(results, name, "height"), BARRIER),
            below(f"{label}, {name}: test error halfway above that of the ends", halfway(results, name), HALFWAY),
        ]
    return parts


# --- tables


def _paths_table(label: str, results: Results) -> Table:
    def row(name: str) -> list[Any]:
        loss, error = at(results, name, "loss"), 100 * at(results, name, "error")
        found = (loss.min(1), loss.max(1), error.min(1), error.max(1))
        return [name, *map(mean_and_error, found), mean_and_error(at(results, name, "nll").max(1))]

    ends = [{"paths": {"ends": _ends(result["paths"][SEGMENT])}} for result in results]
    loss, error = at(ends, "ends", "loss"), 100 * at(ends, "ends", "error")
    own = [loss.min(1), loss.max(1), error.min(1), error.max(1), at(ends, "ends", "nll").max(1)]
    columns = ["least loss", "largest loss", "least error, %", "largest error, %", "largest NLL"]
    return Table(
        [label, *columns],
        [["ends", *map(mean_and_error, own)], *(row(name) for name in results[0]["paths"])],
        "Networks along each path, both ends among them: training loss (NLL with the weight decay, nats), test error, "
        "and NLL of the training rows in nats; mean over seeds ± standard error.",
        formats={"least loss": ".4f", "largest loss": ".4f", "largest NLL": ".4f"} | dict.fromkeys(columns[2:4], ".2f"),
    )


def _ends(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores of both ends of a path alone."""
    return {key: [scores[key][0], scores[key][-1]] for key in ("loss", "error", "nll")}


def _averages_table(label: str, results: Results) -> Table:
    counts = [int(k) for k in results[0]["paths"][SEGMENT]["averages"]]
    rows = []
    for name in CURVES:
        for key, text, scale, digits in (("nll", "NLL", 1, "test_nll"), ("error", "error, %", 100, "error")):
            alone = scale * at(results, name, digits)
            cells = [scale * averaged(results, name, k, key=key) for k in counts]
            rows.append([name, text, *map(mean_and_error, (alone[:, [0, -1]].mean(1), alone.min(1), *cells))])
    columns = ["one end", "best one", "two ends", *(f"{k} networks" for k in counts[1:])]
    return Table(
        [label, "of test images", *columns],
        rows,
        "Averages of networks that are evenly spaced on a curve, both ends among them; one end is the mean of the two, "
        "the best one that of all networks alone, chosen on the test images. Mean over seeds ± standard error.",
        formats=dict.fromkeys(columns, ".4f"),
    )


def _alignment_table(results: Results) -> Table:
    def row(name: str) -> list[Any]:
        error = 100 * line(results, name, "error")
        middle = error[:, error.shape[1] // 2]
        found = (line(results, name, "height"), line(results, name, "excess"), error[:, [0, -1]].mean(1), middle)
        return [name, *map(mean_and_error, found)]

    columns = ["barrier, nats", "excess, nats", "error of the ends, %", "error halfway, %"]
    return Table(
        [LABELS[ALIGNMENT], *columns],
        [row(name) for name in results[0]["lines"]],
        "The straight line between two networks: barrier of the training NLL above the mean of its ends (Ainsworth et "
        "al. 2022), and its largest excess over the line between them (Entezari et al. 2022); test errors. Mean over "
        "seeds ± standard error.",
        better={"barrier, nats": "low", "excess, nats": "low", "error halfway, %": "low"},
        formats=dict.fromkeys(columns[:2], ".4f") | dict.fromkeys(columns[2:], ".2f"),
    )
