"""Verdict, tables and figures of `variational_fidelity`, with the published numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table, figures
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.variational_fidelity.recipe import (
    CYCLICAL,
    DROPOUT,
    ENSEMBLE,
    IVON_NAME,
    MEAN_FIELD,
    MULTISWAG,
)
from torchbayes_experiments.variational_fidelity.run import HMC_NAME
from torchbayes_experiments.verdicts import Part, Verdict, below, mean_and_error

# what members of a method are called when each is alone, and together
LABELS = {
    HMC_NAME: ("HMC, one chain", "HMC, all chains"),
    ENSEMBLE: ("single network", ENSEMBLE),
    MEAN_FIELD: ("mean field", "mixture of mean fields"),
    IVON_NAME: ("IVON", "mixture of IVONs"),
    DROPOUT: ("MC dropout", "mixture of MC dropouts"),
    MULTISWAG: ("SWAG", MULTISWAG),
    CYCLICAL: ("cSGHMC, one chain", "cSGHMC, all chains"),
}
SHOWN = {
    "accuracy": "accuracy",
    "nll": "NLL",
    "agreement": "agreement with HMC",
    "total_variation": "TV from HMC",
    "wasserstein": "W₁ from HMC",
    "spread": "standard deviation of functions",
}
# agreement in % and total variation on CIFAR-10 (Izmailov et al. 2021, table of fidelity), mean and standard deviation
# of three runs; agreement in the competition of NeurIPS 2021, on a ResNet-20
PUBLISHED: dict[str, tuple[Any, Any]] = {
    "HMC, one chain": ((94.01, 0.25), (0.074, 0.003)),
    "SGD": ((85.48, 1.00), (0.190, 0.005)),
    "deep ensemble (50)": ((91.52, 0.06), (0.115, 0.000)),
    "mean field": ((88.75, 0.24), (0.136, 0.000)),
    "cSGHMC": ((92.67, 0.52), (0.099, 0.006)),
    "competition: SGD": (91.0, None),
    "competition: IVON": (93.2, None),
    "competition: eight IVONs": (95.0, None),
}

Results = Sequence[Mapping[str, Any]]


def summarise(results: Results) -> Findings:
    """Turn the seeds' scores into verdict, tables and figures.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    problems = list(results[0])
    parts = [part for problem in problems for part in _parts(problem, results)]
    tables = [_table(problem, results) for problem in problems]
    return Findings(Verdict.of(parts), (*tables, _published()), _figures(problems, results))


def distance_of(problem: str, results: Results) -> str:
    """Return the metric by which a problem measures distance: of regressions `wasserstein`, else total variation."""
    one = results[0][problem]["methods"][ENSEMBLE]["all"]
    return "wasserstein" if "wasserstein" in one else "total_variation"


def values(results: Results, problem: str, method: str, *, which: str, metric: str) -> np.ndarray:
    """Return a metric of a method, one value per seed.

    Args:
        results: the seeds' scores.
        problem: its name.
        method: its name.
        which: "one" or "all".
        metric: a key of the scores.

    Returns:
        Array (R,).
    """
    return np.array([result[problem]["methods"][method][which][metric] for result in results])


def _parts(problem: str, results: Results) -> list[Part]:
    """Return the parts of the claim on one problem."""
    metric = distance_of(problem, results)

    def of(method: str, which: str) -> np.ndarray:
        return values(results, problem, method, which=which, metric=metric)

    def closer(first: tuple[str, str], second: tuple[str, str], *, precondition: bool = False) -> Part:
        names = [LABELS[method][which == "all"] for method, which in (first, second)]
        return below(
            f"{problem}: {names[0]} closer to HMC than {names[1]}", of(*first) - of(*second), precondition=precondition
        )

    ensemble, single = (ENSEMBLE, "all"), (MEAN_FIELD, "one")
    apart = np.array([1 - result[problem]["share"] for result in results])
    return [
        below(f"{problem}: share of test predictions with R-hat of 1.1 or more", apart, 0.05, precondition=True),
        closer((HMC_NAME, "one"), single, precondition=True),
        closer(ensemble, single),
        closer(ensemble, (IVON_NAME, "one")),
        closer((MULTISWAG, "all"), single),
        closer((MEAN_FIELD, "all"), single),
        closer((IVON_NAME, "all"), (IVON_NAME, "one")),
    ]


def _table(problem: str, results: Results) -> Table:
    methods = results[0][problem]["methods"]
    shown = {key: label for key, label in SHOWN.items() if key in methods[ENSEMBLE]["all"]}
    rows = []
    for method, by_which in methods.items():
        for which, label in zip(("one", "all"), LABELS[method], strict=True):
            cells = [
                mean_and_error(values(results, problem, method, which=which, metric=key))
                if key in by_which[which]
                else None
                for key in shown
            ]
            rows.append([label, *cells])
    return Table(
        [problem, *shown.values()],
        rows,
        f"{problem}, test rows: mean over seeds ± standard error. One chain of HMC is compared with the others, the "
        f"rest with all of HMC. Of a method with several members the first line is the mean over each of them alone.",
        formats=dict.fromkeys(shown.values(), ".4f"),
    )


def _published() -> Table:
    return Table(
        ["as published", "agreement with HMC, %", "TV from HMC"],
        [[name, *row] for name, row in PUBLISHED.items()],
        "For comparison: ResNet-20 on CIFAR-10, mean ± standard deviation of three runs (Izmailov et al. 2021), and "
        "numbers of the competition's winners.",
        formats={"agreement with HMC, %": ".2f"},
    )


def _figures(problems: Sequence[str], results: Results) -> tuple[Picture, ...]:
    def drawn(metric: str) -> dict[str, np.ndarray]:
        return {
            label: values(results, problem, method, which=which, metric=metric)
            for method in results[0][problem]["methods"]
            for which, label in zip(("one", "all"), LABELS[method], strict=True)
            if (method, which) != (HMC_NAME, "all")
        }

    pictures = []
    for problem in problems:
        metric = distance_of(problem, results)
        pictures.append(
            Picture(
                f"Distance from HMC: {problem}",
                figures.metric_dots({problem: drawn(metric)}, SHOWN[metric], over="seeds", better="low"),
                f"{SHOWN[metric]} on the test rows: mean over seeds with two standard errors. Every second line is a "
                f"mixture of the members above it.",
            )
        )
    return tuple(pictures)
