"""Verdict, tables and figures of `evidence_random_labels`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table, figures
from torchbayes_experiments.evidence_random_labels.recipe import NETWORK, PROCESS, TUNED
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.verdicts import Part, Verdict, below, mean_and_error

MISTAKES = 5e-4  # share of training rows that counts as none: less than one in all repeats


def summarise(results: Sequence[Mapping[str, Any]]) -> Findings:
    """Turn the seeds' numbers into verdict, tables and figures.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    away = [sum(not one for one in result[NETWORK]["at_mode"]) for result in results]
    parts = [below("networks that are not at a mode: none", away, 0.5, precondition=True)]
    for label in (PROCESS, NETWORK):
        worst = [max(result[label]["train_error"]) for result in results]
        parts.append(below(f"{label}: no mistake on the training rows, whatever the share", worst, MISTAKES))
    evidence = _evidence(results)
    for label, values in evidence.items():
        parts += _falls(label, values, results[0]["shares"])
    return Findings(Verdict.of(parts), _tables(results, evidence), (_figure(results, evidence),))


def _evidence(results: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Return model -> evidence (shares, repeats)."""
    keys = {PROCESS: (PROCESS, "evidence"), NETWORK: (NETWORK, "evidence"), TUNED: (NETWORK, "tuned")}
    return {label: _column(results, *key) for label, key in keys.items()}


def _column(results: Sequence[Mapping[str, Any]], label: str, measure: str) -> np.ndarray:
    return np.array([result[label][measure] for result in results], dtype=np.float64).T


def _falls(label: str, values: np.ndarray, shares: Sequence[float]) -> list[Part]:
    return [
        below(f"{label}: evidence at {100 * b:g} % shuffled below that at {100 * a:g} %", values[at + 1] - values[at])
        for at, (a, b) in enumerate(pairwise(shares))
    ]


def _tables(results: Sequence[Mapping[str, Any]], evidence: Mapping[str, np.ndarray]) -> tuple[Table, Table]:
    shares = [f"{100 * share:g} %" for share in results[0]["shares"]]
    columns = {
        f"{name}, {label}": _column(results, name, key)
        for name in (PROCESS, NETWORK)
        for label, key in (("training", "train_error"), ("test", "test_error"))
    }
    errors = Table(
        ["shuffled", *columns],
        [[share, *(mean_and_error(values[at]) for values in columns.values())] for at, share in enumerate(shares)],
        "Share of mistakes, on the training rows by their own (shuffled) labels and on test rows by the true ones: "
        "mean over seeds ± standard error.",
    )
    uniform = results[0]["uniform"]
    found = Table(
        ["shuffled", *evidence],
        [[share, *(mean_and_error(values[at]) for values in evidence.values())] for at, share in enumerate(shares)],
        "Log evidence per row, in nats: mean over seeds ± standard error. Equal probabilities have "
        f"{uniform[PROCESS]:.3f} for the two classes of the process and {uniform[NETWORK]:.3f} for the network's; a "
        "value below says that guessing explains these labels better. Prior tuned: under the one scale that maximises "
        "the evidence at the same weights.".replace("-", "−"),
    )
    return errors, found


def _figure(results: Sequence[Mapping[str, Any]], evidence: Mapping[str, np.ndarray]) -> Picture:
    uniform = results[0]["uniform"]
    process, network = "log evidence per row, Gaussian process", "log evidence per row, network"
    panels = {
        "training accuracy": {n: 1 - _column(results, n, "train_error") for n in (PROCESS, NETWORK)},
        "test error": {n: _column(results, n, "test_error") for n in (PROCESS, NETWORK)},
        process: {PROCESS: evidence[PROCESS]},
        network: {n: evidence[n] for n in (NETWORK, TUNED)},
    }
    levels = {process: ("equal probabilities", uniform[PROCESS]), network: ("equal probabilities", uniform[NETWORK])}
    label = "share of shuffled labels"
    drawn = figures.measure_curves(
        panels,
        results[0]["shares"],
        label=label,
        levels=levels,
        percent=("training accuracy", "test error", label),
    )
    return Picture(
        "Fitted without a mistake, and not believed",
        drawn,
        "Training accuracy, test error and log evidence, in nats per row, against the share of shuffled labels.",
    )
