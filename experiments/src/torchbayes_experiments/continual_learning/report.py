"""Verdict, tables and figure of `continual_learning`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table, figures
from torchbayes_experiments.continual_learning.recipe import (
    CENTRES,
    DIAGONAL,
    KINDS,
    KRONECKER,
    PERMUTED,
    RANDOM,
    SPLIT,
    TUNED,
    VCL,
)
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.verdicts import Part, Verdict, below, mean_and_error

Results = Sequence[Mapping[str, Any]]

LABELS = {PERMUTED: "permuted MNIST", SPLIT: "split MNIST"}
PUBLISHED_AFTER = 5  # tasks
PUBLISHED = {
    PERMUTED: {VCL: 0.933, RANDOM: 0.963, CENTRES: 0.962},
    SPLIT: {VCL: 0.955, RANDOM: 0.969, CENTRES: 0.984},
}
MARGIN = 0.02  # of accuracy, below what is published
FORGOTTEN, LEARNED = -0.05, 0.1  # backward transfer of fine-tuning at most, and its error on the task just learned
BETTER = ((VCL, TUNED), (DIAGONAL, TUNED), (VCL, DIAGONAL), (KRONECKER, DIAGONAL), (RANDOM, VCL), (CENTRES, VCL))


def summarise(results: Results) -> Findings:
    """Turn the seeds' scores into verdict, tables and figure.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    parts = [part for scenario in LABELS for part in _parts(scenario, results)]
    tables = [table(scenario, results) for scenario, table in ((s, t) for s in LABELS for t in (_averages, _transfers))]
    return Findings(Verdict.of(parts), tuple(tables), (_figure(results),))


def accuracies(results: Results, scenario: str, kind: str) -> np.ndarray:
    """Return the accuracy on task s after task t of each seed, (R, T, T), NaN where it is not taken."""
    return np.array([result[scenario][kind]["accuracy"] for result in results], dtype=np.float64)


def means_so_far(results: Results, scenario: str, kind: str) -> np.ndarray:
    """Return the mean accuracy over the tasks so far after each task, (T, R)."""
    found = accuracies(results, scenario, kind)
    return np.array([found[:, t, : t + 1].mean(1) for t in range(found.shape[1])])


def _of(results: Results, scenario: str, kind: str, key: str) -> np.ndarray:
    return np.array([result[scenario][kind][key] for result in results], dtype=np.float64)


def _parts(scenario: str, results: Results) -> list[Part]:
    label = LABELS[scenario]
    now = accuracies(results, scenario, TUNED).diagonal(axis1=1, axis2=2).mean(1)
    parts = [
        below(f"{label}: error of fine-tuning on the task just learned", 1 - now, LEARNED, precondition=True),
        below(
            f"{label}: by the end fine-tuning has lost {-100 * FORGOTTEN:g} points on earlier tasks",
            _of(results, scenario, TUNED, "backward"),
            FORGOTTEN,
            precondition=True,
        ),
    ]
    last = {kind: means_so_far(results, scenario, kind)[-1] for kind in KINDS}
    for better, worse in BETTER:
        said = f"{label}: average accuracy after the last task of {better} above that of {worse}"
        parts.append(below(said, last[worse] - last[better]))
    for kind, level in PUBLISHED[scenario].items():
        reached = means_so_far(results, scenario, kind)
        if len(reached) >= PUBLISHED_AFTER:
            said = f"{label}: after five tasks {kind} at most {100 * MARGIN:g} points below the published {level}"
            parts.append(below(said, level - reached[PUBLISHED_AFTER - 1], MARGIN))
    return parts


def _averages(scenario: str, results: Results) -> Table:
    each = {kind: means_so_far(results, scenario, kind) for kind in KINDS}
    columns = [f"after {t}" for t in range(1, 1 + len(each[VCL]))]
    published = f"published, after {PUBLISHED_AFTER}"
    rows = [[kind, *(mean_and_error(values) for values in each[kind]), PUBLISHED[scenario].get(kind)] for kind in KINDS]
    caption = f"{LABELS[scenario]}: mean accuracy over the tasks so far, mean over seeds ± standard error."
    return Table(
        ["method", *columns, published],
        rows,
        caption[0].upper() + caption[1:],
        better=dict.fromkeys(columns, "high"),
        formats={**dict.fromkeys(columns, ".4f"), published: ".3f"},
    )


def _transfers(scenario: str, results: Results) -> Table:
    columns = ["accuracy on a task just learned", "backward transfer", "forward transfer"]
    rows = []
    for kind in KINDS:
        now = accuracies(results, scenario, kind).diagonal(axis1=1, axis2=2).mean(1)
        moved = [mean_and_error(_of(results, scenario, kind, key)) for key in ("backward", "forward")]
        rows.append([kind, mean_and_error(now), *moved, mean_and_error(_of(results, scenario, kind, "seconds"))])
    headed = " Heads are untrained before their task, so nothing can go forward." if scenario == SPLIT else ""
    caption = (
        f"{LABELS[scenario]}: how well a task is known when it has just been learned, how that has changed by the end, "
        f"and how much better than the untrained network the next task is known beforehand.{headed}"
    )
    return Table(
        ["method", *columns, "seconds"],
        rows,
        caption[0].upper() + caption[1:],
        better=dict.fromkeys(columns[:2], "high"),
        formats={**dict.fromkeys(columns, ".4f"), "seconds": ".0f"},
    )


def _figure(results: Results) -> Picture:
    panels: dict[str, dict[str, np.ndarray]] = {}
    for scenario, label in LABELS.items():
        panels[f"{label}, accuracy on all tasks so far"] = {
            kind: means_so_far(results, scenario, kind) for kind in KINDS
        }
    for scenario, label in LABELS.items():
        panels[f"{label}, accuracy on the first task"] = {
            kind: accuracies(results, scenario, kind)[:, :, 0].T for kind in KINDS
        }
    longest = max(len(values[VCL]) for values in panels.values())
    drawn = figures.measure_curves(panels, [str(t) for t in range(1, longest + 1)], label="tasks learned")
    return Picture(
        "Accuracy as tasks are added",
        drawn,
        "Mean accuracy over the tasks so far, and accuracy on the first task, after each task.",
    )
