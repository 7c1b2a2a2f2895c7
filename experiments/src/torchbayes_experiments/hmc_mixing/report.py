"""Verdict, tables and figures of `hmc_mixing`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table, figures
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.shared.image_hmc import SPACES
from torchbayes_experiments.verdicts import Part, Verdict, below, mean_and_error

# CIFAR-10 in Izmailov et al. (2021): range of the histograms of R-hat, read off the figure.
PUBLISHED = {"weights": "mass near 1, tail to about 54", "functions": "nearly all below 1.1, tail to about 4"}


def spread_out(counted: Mapping[str, int]) -> np.ndarray:
    """Return the rounded R-hats behind `counts`."""
    return np.repeat([float(rhat) for rhat in counted], list(counted.values()))


def summarise(results: Sequence[Mapping[str, Any]]) -> Findings:
    """Turn the seeds' diagnoses into verdict, tables and figures.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    names = list(results[0])
    verdict = Verdict.of([part for name in names for part in _parts(name, [result[name] for result in results])])
    return Findings(verdict, (_rhat_table(results), _chains_table(results)), _figures(results))


def _parts(name: str, found: Sequence[Mapping[str, Any]]) -> list[Part]:
    def of(space: str, key: str) -> np.ndarray:
        return np.array([one[space][key] for one in found])

    apart = {space: 1 - of(space, "share") for space in SPACES}
    return [
        below(
            f"{name}: share of iterations that diverge below 1 %",
            [one["divergences"] / (one["chains"] * one["iterations"]) for one in found],
            0.01,
            precondition=True,
        ),
        below(f"{name}: share of test probabilities with R-hat of 1.1 or more below 5 %", apart["functions"], 0.05),
        below(f"{name}: that share at most half of the weights'", apart["functions"] - apart["weights"] / 2),
        below(
            f"{name}: median R-hat of probabilities below the weights'",
            of("functions", "median") - of("weights", "median"),
        ),
        below(
            f"{name}: maximal R-hat of probabilities below the weights'",
            of("functions", "maximum") - of("weights", "maximum"),
        ),
    ]


def _rhat_table(results: Sequence[Mapping[str, Any]]) -> Table:
    columns = {"median": "median", "high": "95 % quantile", "maximum": "maximum", "share": "below 1.1", "ess": "ESS"}
    rows: list[list[Any]] = []
    for name in results[0]:
        for space, label in {**SPACES, "floor": "independent draws"}.items():
            found = [result[name][space] for result in results]
            rows.append([
                name,
                label,
                found[0]["quantities"],
                *(mean_and_error([one[k] for one in found]) for k in columns),
            ])
    return Table(
        ["problem", "space", "quantities", *columns.values()],
        rows,
        "R-hat (rank-normalised, split) over all quantities of a space, and their median effective sample size: mean "
        "over seeds ± standard error. Independent draws, simulated, show what chains of this length can reach at best. "
        f"On CIFAR-10 Izmailov et al. (2021) saw for weights: {PUBLISHED['weights']}; for "
        f"test probabilities: {PUBLISHED['functions']}.",
        formats={"below 1.1": ".4f", "ESS": ".0f"},
    )


def _chains_table(results: Sequence[Mapping[str, Any]]) -> Table:
    columns = {"leapfrogs": "leapfrog steps", "step_size": "step size", "acceptance": "acceptance", "ebfmi": "E-BFMI"}
    rows = []
    for name in results[0]:
        found = [result[name] for result in results]
        means = (mean_and_error([one[key] for one in found]) for key in columns)
        divergences = float(sum(one["divergences"] for one in found))
        rows.append([name, f"{found[0]['chains']} × {found[0]['draws']}", *means, divergences])
    return Table(
        ["problem", "chains × draws", *columns.values(), "divergences"],
        rows,
        "The chains after burn-in: mean over seeds ± standard error, the sum for divergences.",
        formats={
            "leapfrog steps": ".0f",
            "step size": ".5f",
            "acceptance": ".2f",
            "E-BFMI": ".2f",
            "divergences": ".0f",
        },
    )


def _figures(results: Sequence[Mapping[str, Any]]) -> tuple[Picture, ...]:
    drawn = []
    for name in results[0]:
        spaces = {
            label: np.concatenate([spread_out(result[name]["counts"][space]) for result in results])
            for space, label in SPACES.items()
        }
        caption = "Chains agree on what they predict sooner than on their weights. All seeds together."
        drawn.append(Picture(f"R-hat in both spaces: {name}", figures.rhat_histogram(spaces), caption))
    name = next(iter(results[0]))
    traces = {trace["name"]: (trace["values"], trace["at"], trace["over"]) for trace in results[0][name]["traces"]}
    caption = "The log density, the weight of the largest R-hat and the probability of the largest Monte Carlo error."
    drawn.append(Picture(f"Chains of the first seed: {name}", figures.traces_and_ranks(traces), caption))
    return tuple(drawn)
