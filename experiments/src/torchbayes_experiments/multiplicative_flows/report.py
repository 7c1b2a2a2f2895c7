"""Verdict, tables and figures of `multiplicative_flows`, with the published numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.multiplicative_flows import pictures
from torchbayes_experiments.multiplicative_flows.recipe import ENSEMBLE, FFG, FFLU, FLOWS, L2
from torchbayes_experiments.multiplicative_flows.run import DIGITS, PHOTOGRAPHS
from torchbayes_experiments.verdicts import Part, Verdict, below, interval, mean_and_error

MARGIN = 0.01  # of the error: one within it counts as no worse
FAIR = {PHOTOGRAPHS: 0.35, DIGITS: 0.05}  # errors of L2 from which a comparison says nothing

# Test errors in % on five classes of CIFAR-10 (Louizos and Welling 2017, table of test errors).
PUBLISHED = {"L2": 24, "MC dropout": 16, "deep ensemble": 21, "FFG": 22, "FFLU": 23, "MNF": 16}

Results = Sequence[Mapping[str, Any]]


def summarise(results: Results) -> Findings:
    """Turn the seeds' scores into verdict, tables and figures.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    tables: list[Table] = []
    drawn: list[Picture] = []
    if PHOTOGRAPHS in results[0]:
        tables += [_seen_table(results), _difference_table(results)]
        drawn.append(pictures.entropies([result[PHOTOGRAPHS] for result in results]))
    if DIGITS in results[0]:
        tables.append(_digits_table(results))
        drawn += pictures.turned([result[DIGITS] for result in results])
    return Findings(verdict(results), tuple(tables), tuple(drawn))


def seen(results: Results, method: str, *, metric: str) -> np.ndarray:
    """Return a metric of a method on test images of the classes that were seen, (R,)."""
    return np.array([result[PHOTOGRAPHS][method]["seen"][metric] for result in results])


def unseen(results: Results, method: str, *, metric: str) -> np.ndarray:
    """Return a metric of a method on images of the classes that were not, (R,)."""
    return np.array([result[PHOTOGRAPHS][method]["unseen"][metric] for result in results])


def error(results: Results, method: str) -> np.ndarray:
    """Return the share of test images of the seen classes that a method takes for another, (R,)."""
    return 1 - seen(results, method, metric="accuracy")


def on_digits(results: Results, method: str, metric: str) -> np.ndarray:
    """Return `entropy_wrong` or `entropy_same` of a method on turned digits, (R,): NaN where none is wrong."""
    found = [result[DIGITS]["methods"][method][metric] for result in results]
    return np.array([np.nan if value is None else value for value in found])


def verdict(results: Results) -> Verdict:
    """Return the verdict of the seeds; parts and margins were set before any whole run.

    Args:
        results: the seeds' scores.

    Returns:
        The verdict.
    """
    parts: list[Part] = []
    if PHOTOGRAPHS in results[0]:
        parts += _on_photographs(results)
    if DIGITS in results[0]:
        parts += _on_digits(results)
    return Verdict.of(parts)


def _on_photographs(results: Results) -> list[Part]:
    own = error(results, FLOWS)
    surer = unseen(results, L2, metric="entropy") - unseen(results, FLOWS, metric="entropy")
    fair = below("photographs: error of L2", error(results, L2), FAIR[PHOTOGRAPHS], precondition=True)
    than = [below(f"photographs: error of MNF below that of {n}", own - error(results, n)) for n in (L2, FFG, FFLU)]
    return [
        fair,
        *than,
        below(
            f"photographs: error of MNF at most {MARGIN} above the ensemble's", own - error(results, ENSEMBLE), MARGIN
        ),
        below("unseen classes: mean entropy of MNF above that of L2", surer),
    ]


def _on_digits(results: Results) -> list[Part]:
    tests = [1 - result[DIGITS]["methods"][L2]["test"]["accuracy"] for result in results]
    parts = [below("digits: error of L2", tests, FAIR[DIGITS], precondition=True)]
    said = {
        "entropy_wrong": "where each is wrong",
        "entropy_same": "where L2 is wrong",
    }
    for metric, where in said.items():
        less = on_digits(results, L2, metric) - on_digits(results, FLOWS, metric)
        statement = f"turned digits, {where}: mean entropy of MNF above that of L2"
        if np.isfinite(less).all():
            parts.append(below(statement, less))
        else:
            parts.append(Part(statement, "inconclusive", "no turned digit is taken for another in some seed"))
    return parts


def _seen_table(results: Results) -> Table:
    def row(name: str) -> list[Any]:
        found = [seen(results, name, metric=metric) for metric in ("nll", "ece", "entropy")]
        found += [unseen(results, name, metric=metric) for metric in ("entropy", "auroc")]
        errors = mean_and_error(100 * error(results, name))
        return [name, errors, PUBLISHED.get(name), *map(mean_and_error, found)]

    columns = ["error, %", "paper: error, %", "NLL", "ECE", "entropy, seen", "entropy, unseen", "AUROC of the entropy"]
    return Table(
        ["five classes of CIFAR-10", *columns],
        [row(name) for name in results[0][PHOTOGRAPHS]],
        f"Test images of the five classes that were seen, and of the five that were not: mean over seeds ± standard "
        f"error. Entropies are those of the average prediction, in nats; at most log 5 = {np.log(5):.2f}.",
        better={
            "error, %": "low",
            "NLL": "low",
            "ECE": "low",
            "entropy, unseen": "high",
            "AUROC of the entropy": "high",
        },
        formats={"error, %": ".1f", "paper: error, %": ".0f"} | dict.fromkeys(columns[2:], ".3f"),
    )


def _difference_table(results: Results) -> Table:
    rows: list[list[Any]] = []
    for name in results[0][PHOTOGRAPHS]:
        if name == FLOWS:
            continue
        pairs = {
            "error, %": (100 * error(results, FLOWS), 100 * error(results, name)),
            "entropy, unseen": tuple(unseen(results, n, metric="entropy") for n in (FLOWS, name)),
            "AUROC of the entropy": tuple(unseen(results, n, metric="auroc") for n in (FLOWS, name)),
        }
        for metric, (own, other) in pairs.items():
            mean, low, high = interval(own - other)
            ends = [low, high] if len(results) > 1 else [None, None]
            rows.append([name, metric, mean, *ends])
    columns = ["MNF − method", "from", "to"]
    return Table(
        ["method", "metric", *columns],
        rows,
        "Paired differences of MNF and each method over seeds, with their 95 % interval.",
        formats=dict.fromkeys(columns, ".3f"),
    )


def _digits_table(results: Results) -> Table:
    methods = results[0][DIGITS]["methods"]

    def known(values: np.ndarray) -> Any:
        return mean_and_error(values) if np.isfinite(values).all() else None

    def row(name: str) -> list[Any]:
        each = [result[DIGITS]["methods"][name] for result in results]
        errors = [100 * (1 - one["test"]["accuracy"]) for one in each]
        wrong = [100 * np.mean(one["wrong"]) for one in each]
        cells = [on_digits(results, name, metric) for metric in ("entropy_wrong", "entropy_same")]
        return [name, mean_and_error(errors), mean_and_error(wrong), *map(known, cells)]

    columns = ["test error, %", "turned: wrong, %", "entropy where wrong", "entropy where L2 is wrong"]
    return Table(
        ["turned digits", *columns],
        [row(name) for name in methods],
        f"Digits of one class, turned by {results[0][DIGITS]['angles'][0]} to {results[0][DIGITS]['angles'][-1]} "
        f"degrees: mean over seeds ± standard error. Entropies in nats, at most log 10 = {np.log(10):.2f}. The last "
        f"column is over the same images for every method.",
        better={"test error, %": "low", "entropy where wrong": "high", "entropy where L2 is wrong": "high"},
        formats={"test error, %": ".2f", "turned: wrong, %": ".1f"} | dict.fromkeys(columns[2:], ".3f"),
    )
