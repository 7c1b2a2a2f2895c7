"""Inverse problems: unknown coefficients of differential equations by HMC, variational inference and Laplace.

Yang, Meng and Karniadakis (2021) find that HMC suits Bayesian physics-informed networks better than variational
inference. The four cases are examples of NeuralUQ (Zou et al. 2024). All methods start from the same four modes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchbayes as tb
from torchbayes.diagnostics import rhat
from torchbayes.posteriors.draws import thinned
from torchbayes.report import Picture, Table
from torchbayes_experiments import (
    Experiment,
    Findings,
    Headline,
    Results,
    Rows,
    below,
    dots,
    load_or_compute,
    pivot,
    tidy,
)
from torchbayes_experiments.shared.equations import CASES, Simulated
from torchbayes_experiments.streams import Purpose, generator

LABELS = {"hmc": "HMC", "vi": "mean field", "laplace": "Laplace", "map": "MAP"}
METHODS = tuple(LABELS)
PLACES = {
    "poisson": "Poisson",
    "kraichnan_orszag": "Kraichnan–Orszag",
    "korteweg_de_vries": "Korteweg–de Vries",
    "epidemic": "epidemic",
}
_ERROR = 0.2  # of u, relative, up to which a solution counts as recovered


@dataclass(frozen=True)
class InverseRecipe:
    """Settings of all cases; none was chosen by the truth."""

    cases: tuple[str, ...] = tuple(CASES)
    hidden: tuple[int, ...] = (20, 20)
    members: int = 4  # M, modes, and chains that start there
    epochs: int = 2000  # of Adam on all rows, of MAP and of VI
    lr: float = 0.01
    steps: int = 1000  # of HMC, with burn-in
    burn_in: int = 400
    trajectory: float = 1.6  # of HMC, in units of √mass times weights; masses are adapted in burn-in
    max_leapfrogs: int = 512  # maximum number of steps of a trajectory
    plan: str = "compiled"  # of HMC, whose steps cost mostly Python otherwise
    draws: int = 200  # functions by which solutions are compared


def run(recipe: InverseRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Return case -> method -> metric -> number, or coefficient -> number."""
    return {name: load_or_compute(directory / f"{name}.json", solved, recipe, name, seed=seed) for name in recipe.cases}


def solved(recipe: InverseRecipe, name: str, *, seed: int) -> dict[str, Any]:
    """Return method -> metric -> number, or coefficient -> number, of one case."""
    torch.manual_seed(seed)
    simulated = CASES[name](recipe.hidden, generator(Purpose.EQUATION, seed))
    model, rows, count = simulated.problem.model, simulated.rows, len(simulated.rows[1])
    adam = {"epochs": recipe.epochs, "batch_size": count, "optimizer": tb.Adam(recipe.lr)}
    quiet = {"callbacks": (), "seed": seed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of chains that have not converged: R-hat is among the results
        modes = tb.fit(model, rows, tb.MAP(recipe.members, **adam), **quiet)
        length = {"trajectory": recipe.trajectory, "max_leapfrogs": recipe.max_leapfrogs}
        chain = tb.HMC(recipe.members, recipe.steps, recipe.burn_in, mass="diagonal", plan=recipe.plan, **length)
        posteriors = {
            "hmc": tb.fit(model, rows, chain, start=modes, **quiet),
            "vi": tb.fit(model, rows, tb.VI(members=recipe.members, kl_weight=1.0, **adam), start=modes, **quiet),
            "laplace": tb.fit(model, rows, tb.Laplace("dense", prior="model", check_mode=False), start=modes, **quiet),
            "map": modes,
        }
        return {method: judged(recipe, simulated, posterior) for method, posterior in posteriors.items()}


def judged(recipe: InverseRecipe, simulated: Simulated, posterior: tb.Posterior) -> dict[str, Any]:
    """Return the numbers of a posterior: of the solution at the points, and of each coefficient."""
    numbers_by_metric: dict[str, Any] = {}
    functions = thinned(posterior, recipe.draws) if posterior.chain_length else posterior
    for name, truth in simulated.truth.items():
        values_SNK = simulated.problem.values(functions, name, simulated.points).double()
        mean, sd = values_SNK.mean(0), values_SNK.std(0, correction=0)
        numbers_by_metric[f"error of {name}"] = float((mean - truth).norm() / truth.norm())
        numbers_by_metric[f"coverage of {name}"] = float(((mean - truth).abs() <= 2 * sd).double().mean())
        if posterior.chain_length:
            by_chain = values_SNK.unflatten(0, (-1, posterior.members)).transpose(0, 1)
            numbers_by_metric[f"rhat of {name}"] = float(rhat(by_chain).max())
    for name, numbers in simulated.problem.summary(posterior).items():
        away = abs(numbers["mean"] - simulated.coefficients[name])
        numbers_by_metric[f"{name} mean"], numbers_by_metric[f"{name} sd"] = numbers["mean"], numbers["sd"]
        numbers_by_metric[f"{name} away"] = away / max(numbers["sd"], 1e-12)
        if posterior.chain_length:
            numbers_by_metric[f"{name} rhat"] = numbers["rhat"]
    return numbers_by_metric


def summarise(results: Results) -> Findings:
    """The repeats are seeds: noise of the data, and initialisations."""
    rows = tidy(results, "case", "method", "metric").only(method=METHODS)
    errors, parts = rows.where(metric="error of u"), []
    for case in rows.names("case"):
        of_hmc = rows.where(case=case, method="hmc")
        label = PLACES.get(case, case)
        names = [str(metric).removesuffix(" rhat") for metric in of_hmc.names("metric") if metric.endswith(" rhat")]
        worst = np.stack([of_hmc.values(metric=f"{name} rhat") for name in names]).max(0)
        parts.append(below(f"{label}: largest R-hat of a coefficient below 1.1", worst, bound=1.1, precondition=True))
        parts.append(below(f"{label}: relative error of u below {_ERROR}", of_hmc.values(metric="error of u"), _ERROR))
        for name in names:
            away = of_hmc.values(metric=f"{name} away")
            parts.append(below(f"{label}: {name} within two standard deviations of the truth", away, bound=2.0))
        less = errors.where(case=case).less("method", "hmc", "vi")
        parts.append(below(f"{label}: error of u by HMC below that by mean field", less))
    return Findings.of(parts, _tables(rows), _pictures(errors))


def _tables(rows: Rows) -> Iterator[Table]:
    labels = LABELS | PLACES
    for start, caption in (("error of", "Relative error ‖ū − u‖/‖u‖"), ("coverage of", "Share of points within 2 sd")):
        kept = [metric for metric in rows.names("metric") if metric.startswith(start)]
        yield pivot(
            rows.where(metric=kept),
            ("case", "metric"),
            "method",
            keep=LABELS,
            labels=labels,
            better="low" if start == "error of" else None,
            caption=f"{caption}: mean over seeds ± standard error.",
        )
    numbers = [m for m in rows.names("metric") if m.split(" ")[-1] in {"mean", "sd", "away"}]
    yield pivot(
        rows.where(metric=numbers),
        ("case", "metric"),
        "method",
        keep=LABELS,
        labels=labels,
        beside={"truth": _true},
        caption="Coefficients: posterior mean, standard deviation, and distance of the mean from the truth in these: "
        "mean over seeds ± standard error.",
    )
    kept = [metric for metric in rows.names("metric") if "rhat" in metric.split(" ")]
    yield pivot(
        rows.where(metric=kept, method="hmc"),
        ("case", "metric"),
        "method",
        keep={"hmc": LABELS["hmc"]},
        labels=labels,
        caption="R-hat of the chains, of functions the largest over the points: mean over seeds ± standard error.",
    )


_TRUTH = {"k": 0.7, "a": 1.0, "b": 1.0, "k1": 1.5, "k2": 0.25, "gamma": 0.025, "nu": 0.006}


def _true(_: str, metric: str) -> float | None:
    """Return the true coefficient beside its mean."""
    name, _, moment = metric.rpartition(" ")
    return _TRUTH.get(name) if moment == "mean" else None


def _pictures(errors: Rows) -> Iterator[Picture]:
    yield dots(
        errors,
        "relative error of u",
        panels="case",
        over="seed",
        better="low",
        labels=LABELS,
        title="Relative error of the solution",
        caption="Error of the posterior mean of u against the true solution: mean over seeds with two standard errors.",
    )


EXPERIMENT = Experiment(
    name="inverse_problems",
    claim="Sensors, equations and unknown coefficients as one likelihood: HMC finds the solution and intervals that "
    "hold the coefficients, with a smaller error than mean-field variational inference.",
    source="Yang, Meng and Karniadakis 2021, B-PINNs: Bayesian physics-informed neural networks for forward and "
    "inverse PDE problems with noisy data; Zou, Meng, Psaros and Karniadakis 2024, NeuralUQ: A comprehensive library "
    "for uncertainty quantification in neural differential equations and operators",
    expected="Solutions near the truth, coefficients within two standard deviations, and HMC more accurate than mean "
    "field; the papers show their numbers in figures and tables, which are not repeated here.",
    differences="Data are simulated from the equations, with other noise for each seed; the epidemic too, and with "
    "constant rates of recovery and death, where NeuralUQ has those of Italy and functions of time. Its Darcy "
    "problem needs an operator network that is trained before. Networks have 20 units a layer in the place of 50 or "
    "100, and four chains of HMC start at four modes in the place of one.",
    recipes={
        "quick": InverseRecipe(
            hidden=(8,), members=2, epochs=60, steps=40, burn_in=20, max_leapfrogs=8, draws=20, plan="auto"
        ),
        "small": InverseRecipe(),
        "paper": InverseRecipe(
            hidden=(50, 50), epochs=20_000, steps=3000, burn_in=1000, max_leapfrogs=1000, draws=1000
        ),
    },
    cost={
        "quick": "seconds of one core for a seed",
        "small": "an hour of one core for a seed",
        "paper": "hours of one core for a seed (an estimate)",
    },
    run=run,
    summarise=summarise,
    headline=Headline(
        "relative error of u, Poisson",
        tuple(LABELS.values()),
        table="Relative error",
        where=("Poisson", "error of u"),
    ),
)
