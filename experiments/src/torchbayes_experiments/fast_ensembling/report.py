"""Verdict, tables and figures of `fast_ensembling`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table, figures
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.fast_ensembling.pictures import path_figure
from torchbayes_experiments.fast_ensembling.recipe import FAST, INDEPENDENT, KINDS, SNAPSHOTS
from torchbayes_experiments.shared.classifiers import METRICS
from torchbayes_experiments.verdicts import Part, Verdict, below, mean_and_error

PUBLISHED = {  # Garipov et al. 2018, CIFAR-100: accuracy in per cent at 1, 2 and 3 units
    "VGG-16": {INDEPENDENT: (72.5, 74.8, 75.6), FAST: (74.6, 76.1, 76.6)},
    "PreResNet-164": {INDEPENDENT: (78.4, 80.5, 81.6), FAST: (80.3, 81.3, 81.7)},
    "WRN-28-10": {INDEPENDENT: (80.8, 82.4, 83.0), FAST: (82.3, 82.9, 83.2)},
}
_SHOWN = {"accuracy": "accuracy (%)", "nll": "NLL", "ece": "ECE"}

Results = Sequence[Mapping[str, Any]]


def summarise(results: Results) -> Findings:
    """Turn the seeds' scores into verdict, tables and figures.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    scores = {metric: {kind: _budgets(results, kind, metric) for kind in KINDS} for metric in METRICS}
    tables = (_budget_table(results, scores), _difference_table(scores), _run_table(results), _published_table())
    return Findings(_verdict(results, scores), tables, _figures(results, scores))


def _budgets(results: Results, kind: str, metric: str) -> np.ndarray:
    """Return a metric of a kind, (budgets, seeds); accuracy in per cent."""
    found = np.array([[one[metric] for one in result["kinds"][kind]["budgets"]] for result in results]).T
    return 100 * found if metric == "accuracy" else found


def _alone(results: Results, kind: str, what: str, metric: str) -> np.ndarray:
    """Return a metric of the single networks of a kind, (seeds,); accuracy in per cent."""
    found = np.array([result["kinds"][kind][what][metric] for result in results])
    return 100 * found if metric == "accuracy" else found


def _verdict(results: Results, scores: Mapping[str, Mapping[str, np.ndarray]]) -> Verdict:
    gains = {  # of FGE over independent networks, (budgets, seeds)
        "accuracy": scores["accuracy"][FAST] - scores["accuracy"][INDEPENDENT],
        "NLL": scores["nll"][INDEPENDENT] - scores["nll"][FAST],
    }
    error, most = 100 - scores["accuracy"][INDEPENDENT][0], 100 * results[0]["largest_error"]
    parts = [below(f"the error of an independent network is at most {most:g} %", error, most, precondition=True)]
    for metric, said in (("accuracy", "a higher accuracy (points)"), ("NLL", "a lower NLL")):
        for budget, gain in enumerate(gains[metric], 1):
            parts.append(below(f"budget {budget}: FGE has {said} than independent networks", -gain))
    for metric, gain in gains.items():
        parts.append(
            below(f"the advantage of FGE in {metric} is smaller at budget {len(gain)} than at 1", gain[-1] - gain[0])
        )
    return Verdict.of([*parts, *_over_last(results, scores)])


def _over_last(results: Results, scores: Mapping[str, Mapping[str, np.ndarray]]) -> list[Part]:
    """Return whether the average of a run of FGE is better than its last network."""
    accuracy = _alone(results, FAST, "last", "accuracy") - scores["accuracy"][FAST][0]
    nll = scores["nll"][FAST][0] - _alone(results, FAST, "last", "nll")
    return [
        below("a run of FGE has a higher accuracy (points) than its last network", accuracy),
        below("a run of FGE has a lower NLL than its last network", nll),
    ]


def _budget_table(results: Results, scores: Mapping[str, Mapping[str, np.ndarray]]) -> Table:
    rows = [
        [
            kind,
            budget,
            budget * results[0]["kinds"][kind]["networks"],
            *(mean_and_error(scores[metric][kind][budget - 1]) for metric in METRICS),
        ]
        for budget in range(1, len(scores["nll"][INDEPENDENT]) + 1)
        for kind in KINDS
    ]
    return Table(
        ["kind", "budget", "networks", *_SHOWN.values()],
        rows,
        "Averages of all networks that a budget gives, on the test images: mean over seeds ± standard error. At a "
        "budget of fewer runs than were made the score is the mean over all choices of so many.",
        formats={"accuracy (%)": ".2f", "NLL": ".4f", "ECE": ".4f"},
        title="Equal budgets",
    )


def _difference_table(scores: Mapping[str, Mapping[str, np.ndarray]]) -> Table:
    pairs = ((FAST, INDEPENDENT), (FAST, SNAPSHOTS), (SNAPSHOTS, INDEPENDENT))
    rows = [
        [
            f"{first} − {second}",
            budget,
            *(mean_and_error(scores[m][first][budget - 1] - scores[m][second][budget - 1]) for m in METRICS),
        ]
        for first, second in pairs
        for budget in range(1, len(scores["nll"][first]) + 1)
    ]
    return Table(
        ["difference", "budget", "accuracy, points", "NLL", "ECE"],
        rows,
        "Paired differences at equal budgets: mean over seeds ± standard error. The first of the two is better where "
        "the accuracy is above zero, and NLL and ECE are below.",
        formats={"accuracy, points": ".2f", "NLL": ".4f", "ECE": ".4f"},
        title="Differences",
    )


def _run_table(results: Results) -> Table:
    def disagreement(kind: str, where: str) -> Any:
        found = [result["kinds"][kind][where] for result in results]
        return None if None in found else mean_and_error(100 * np.array(found))

    rows = [
        [
            kind,
            *(mean_and_error(_alone(results, kind, w, m)) for m in ("accuracy", "nll") for w in ("last", "each")),
            *(disagreement(kind, where) for where in ("within", "between")),
        ]
        for kind in KINDS
    ]
    numbers = ("accuracy of the last, %", "accuracy of each, %", "NLL of the last", "NLL of each")
    pairs = ("disagreement within a run, %", "disagreement between runs, %")
    return Table(
        ["kind", *numbers, *pairs],
        rows,
        "Networks by themselves: the last that a run keeps, and the mean over all. Two networks disagree on the test "
        "images for which they name different classes: mean over pairs of one run, and of two runs. Mean over seeds ± "
        "standard error.",
        formats={
            **dict.fromkeys(numbers[:2], ".2f"),
            **dict.fromkeys(numbers[2:], ".4f"),
            **dict.fromkeys(pairs, ".2f"),
        },
        title="Single networks",
    )


def _published_table() -> Table:
    return Table(
        ["network", "kind", "1 unit", "2 units", "3 units"],
        [[network, kind, *values] for network, kinds in PUBLISHED.items() for kind, values in kinds.items()],
        "Published accuracies on CIFAR-100, in per cent (Garipov et al. 2018), for comparison.",
        formats=dict.fromkeys(("1 unit", "2 units", "3 units"), ".1f"),
        title="Published",
    )


def _figures(results: Results, scores: Mapping[str, Mapping[str, np.ndarray]]) -> tuple[Picture, ...]:
    panels = {label: scores[metric] for metric, label in (("accuracy", "accuracy (%)"), ("nll", "NLL (nats)"))}
    budgets = [str(budget + 1) for budget in range(len(scores["nll"][INDEPENDENT]))]
    return (
        Picture(
            "Equal budgets",
            figures.measure_curves(panels, budgets, label="budget (units: the epochs of one network)"),
            "Accuracy and NLL on the test images of the average of all networks that a budget gives.",
        ),
        Picture(
            "The path of a run",
            path_figure(results[0]["path"]),
            "The first run of FGE of the first seed: its learning rate, and the test error of the network that moves, "
            "at the ends of epochs and where a network is kept (circles), and of the average of all kept until then; "
            "and the error of an independent network that began at the same weights. The first epochs may lie above "
            "the axis.",
        ),
    )
