"""The log evidence of small networks by estimators that share nothing: do they agree, and when does Laplace?

A network with H tanh units in one hidden layer has 2^H H! equivalent modes, which a Laplace approximation at one of
them does not see: its evidence is that of one mode, and log(2^H H!) is added for the others. That is right where modes
are apart, wrong where data are so few that they run into each other: with no data at all the posterior is the prior,
and the estimate at one mode is exact. Annealing and integration need no such thought.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from torchbayes import networks
from torchbayes.driver import fit
from torchbayes.evidence import (
    Evidence,
    ModelTarget,
    annealed_importance_sampling,
    prior_monte_carlo,
    reverse_annealing,
    thermodynamic_integration,
)
from torchbayes.experiments.evidence_agreement.report import findings
from torchbayes.experiments.experiment import Experiment, Findings, as_json
from torchbayes.experiments.shared.modes import Pair, climb, laplace, log_symmetries, rearranged
from torchbayes.methods import HMC
from torchbayes.model import Model
from torchbayes.model.likelihoods import Categorical, Gaussian
from torchbayes.model.priors.univariate import Normal
from torchbayes.native.seeds import Purpose, generator, mix
from torchbayes.posteriors import Draws
from torchbayes.posteriors.files import read_json, write_whole

# (weights before the unit, its bias, weight after it) of the two units that made the data of each task
TEACHERS: dict[str, tuple[tuple[tuple[float, ...], float, float], ...]] = {
    "regression": (((2.0,), 1.5, 1.5), ((1.5,), -1.5, -1.0)),
    "classification": (((2.5, 0.0), -1.0, 3.0), ((-1.0, 2.0), 0.5, 3.0)),
}


@dataclass(frozen=True)
class Problem:
    """A network, and data of several sizes that a network with two hidden units made.

    Attributes:
        label: its name.
        task: regression of one input, or two classes in the plane.
        hidden: H, tanh units; the data were made by two.
        rows: N, sizes of the training set in rising order; the smaller are the first rows of the largest.
        prior_scale: standard deviation of every weight's normal prior.
        noise: known standard deviation of the targets of the regression.
    """

    label: str
    task: Literal["regression", "classification"]
    hidden: int
    rows: tuple[int, ...]
    prior_scale: float
    noise: float = 0.3

    @property
    def regular(self) -> bool:
        """Whether the network is as large as the one that made the data, so that N rows fix all its weights."""
        return self.hidden == len(TEACHERS[self.task])

    def model(self, dtype: torch.dtype) -> Model:
        """Return the model with weights of a dtype."""
        inputs, regression = len(TEACHERS[self.task][0][0]), self.task == "regression"
        network = networks.mlp(inputs, 1 if regression else 2, hidden=(self.hidden,), activation="tanh")
        likelihood = Gaussian(self.noise) if regression else Categorical()
        return Model(network.to(dtype), likelihood, Normal(self.prior_scale))

    def data(self, seed: int) -> Pair:
        """Return the largest training set, inputs uniform on [−2, 2]."""
        source = generator(Purpose.AGREEMENT_DATA, seed)
        first = torch.tensor([unit[0] for unit in TEACHERS[self.task]], dtype=torch.float64)
        bias, last = (torch.tensor([u[i] for u in TEACHERS[self.task]], dtype=torch.float64) for i in (1, 2))
        inputs = 4 * torch.rand(self.rows[-1], first.shape[1], generator=source, dtype=torch.float64) - 2
        outputs = torch.tanh(inputs @ first.mT + bias) @ last.unsqueeze(1)
        if self.task == "regression":
            return inputs, outputs + self.noise * torch.randn(outputs.shape, generator=source, dtype=torch.float64)
        chances = torch.rand(len(outputs), generator=source, dtype=torch.float64)
        return inputs, (chances < outputs[:, 0].sigmoid()).long()


@dataclass(frozen=True)
class Recipe:
    """Problems, and what each estimator may cost.

    Attributes:
        regression: with as many units as made the data.
        wide: the same with more.
        classes: two classes.
        starts: draws from the prior that modes are sought from; Laplace is taken at the highest.
        climb_steps: of L-BFGS for each, at most.
        particles: of annealed importance sampling.
        chains: of thermodynamic integration, at each temperature.
        chain_steps: their length.
        draws: of the posterior for reverse annealing, a multiple of 8, by as many chains of HMC.
        thin: iterations of HMC from one draw of a chain to its next.
        burn_in: of HMC.
        prior_rows: prior Monte Carlo is feasible up to so many rows.
        prior_draws: of it.
    """

    regression: Problem
    wide: Problem
    classes: Problem
    starts: int = 20
    climb_steps: int = 3000
    particles: int = 128
    chains: int = 8
    chain_steps: int = 400
    draws: int = 128
    thin: int = 10
    burn_in: int = 200
    prior_rows: int = 5
    prior_draws: int = 1_000_000

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems."""
        return self.regression, self.wide, self.classes

    def hmc(self) -> HMC:
        """Return the chains that draw from the posterior."""
        steps = self.burn_in + self.draws // 8 * self.thin
        return HMC(8, steps, self.burn_in, self.thin, jitter=0.2, mass="diagonal", max_leapfrogs=50)


def run(recipe: Recipe, seed: int, directory: Path) -> dict[str, Any]:
    """Estimate the log evidence of every problem at every number of rows.

    Args:
        recipe: the settings.
        seed: of the data and of every estimator.
        directory: of this seed; each problem and number of rows leaves a file, and is read if that is there.

    Returns:
        problem -> {`hidden`, `regular`, `rows`, `cases`: what `estimates` returns for each number of rows}.
    """
    results: dict[str, Any] = {}
    for number, problem in enumerate(recipe.problems):
        inputs, targets = problem.data(mix(Purpose.AGREEMENT_PROBLEM, seed, number))
        cases = []
        for rows in problem.rows:
            path = directory / f"problem_{number}" / f"rows_{rows}.json"
            if not path.exists():
                case = mix(Purpose.AGREEMENT_CASE, seed, number, rows)
                found = estimates(recipe, problem, (inputs[:rows], targets[:rows]), seed=case)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, as_json(found))
            cases.append(read_json(path))
        about = {"hidden": problem.hidden, "regular": problem.regular, "rows": list(problem.rows)}
        results[problem.label] = about | {"cases": cases}
    return results


def estimates(recipe: Recipe, problem: Problem, data: Pair, *, seed: int) -> dict[str, Any]:
    """Return every estimate of one log evidence.

    Args:
        recipe: the settings.
        problem: the network.
        data: inputs and targets.
        seed: of everything random.

    Returns:
        `AIS`, `reverse`, `TI` and, where feasible, `prior`: each {`value`, `error`}; `AIS` and `reverse` have `single`,
        the bound by the mean of log weights, with `single_error`; `laplace` and `laplace_hessian`, of one mode;
        `symmetries`; `is_mode`; `log_joints` of all ends of the climb; `warnings` of the samplers.
    """
    model = problem.model(torch.float64)
    target = ModelTarget(model, data, plan="loop")
    modes = climb(target, target.draw(recipe.starts, mix(Purpose.CLIMB, seed)), steps=recipe.climb_steps)
    posterior, is_mode = laplace(model, data, modes[0])
    found: dict[str, Any] = {
        "laplace": float(posterior.log_evidence()[0]),
        "laplace_hessian": float(laplace(model, data, modes[0], curvature="hessian")[0].log_evidence()[0]),
        "symmetries": log_symmetries(problem.hidden),
        "is_mode": is_mode,
        "log_joints": [mode.log_joint for mode in modes],
    }
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", UserWarning)
        found |= _sampled(recipe, problem, modes[0].weights_D, data, seed=seed)
    return found | {"warnings": [str(each.message) for each in seen]}


def _sampled(recipe: Recipe, problem: Problem, mode_D: Tensor, data: Pair, *, seed: int) -> dict[str, Any]:
    """Return the estimates by sampling, in float32: the library's own kernel is several times faster then."""
    model = problem.model(torch.float32)
    single = tuple(part.float() if part.is_floating_point() else part for part in data)
    target = ModelTarget(model, single)
    drawn = fit(model, single, recipe.hmc(), start=mode_D.float().repeat(8, 1), seed=seed, callbacks=())
    assert isinstance(drawn, Draws)
    draws_SD = rearranged(model, drawn.weights_MSD.flatten(0, 1), seed=seed)
    forward = annealed_importance_sampling(target, particles=recipe.particles, seed=seed)
    backward = reverse_annealing(target, draws=draws_SD, seed=seed)
    integral = thermodynamic_integration(target, chains=recipe.chains, steps=recipe.chain_steps, seed=seed)
    found = {
        "AIS": _numbers(forward) | _single(forward, 1),
        "reverse": _numbers(backward) | _single(backward, -1),
        "TI": _numbers(integral),
    }
    if len(data[0]) <= recipe.prior_rows:
        found["prior"] = _numbers(prior_monte_carlo(target, draws=recipe.prior_draws, seed=seed))
    return found


def _numbers(found: Evidence) -> dict[str, float]:
    return {"value": found.log_evidence, "error": found.error}


def _single(found: Evidence, sign: int) -> dict[str, float]:
    """Return the bound that a single particle gives on average: below for the way forward, above for that back."""
    log_weights_P = found.details["log_weights"]
    error = float(log_weights_P.std()) / len(log_weights_P) ** 0.5
    return {"single": sign * float(log_weights_P.mean()), "single_error": error, "ess": found.details["ess"]}


def summarise(results: Sequence[Mapping[str, Any]]) -> Findings:
    """Turn the seeds' estimates into verdict, tables and figures.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    values = [{name: _arrays(problem) for name, problem in result.items()} for result in results]
    return findings(values)


def _arrays(problem: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a problem as arrays over its rows; NaN where an estimate was not made."""
    cases = problem["cases"]
    found = {key: problem[key] for key in ("hidden", "regular")} | {"rows": np.array(problem["rows"])}
    for name in ("laplace", "laplace_hessian", "symmetries", "is_mode"):
        found[name] = np.array([case[name] for case in cases], dtype=np.float64)
    for name in ("AIS", "reverse", "TI", "prior"):
        for key in ("value", "error", "single", "single_error"):
            found[f"{name} {key}"] = np.array([case.get(name, {}).get(key, np.nan) for case in cases])
    found["warnings"] = np.array([len(case["warnings"]) for case in cases])
    return found


SMALL = Recipe(
    Problem("regression, 2 units", "regression", 2, (5, 20, 80, 320), 1.5),
    Problem("regression, 4 units", "regression", 4, (5, 20, 80, 320), 1.5),
    Problem("classification, 2 units", "classification", 2, (10, 40, 160, 640, 2560), 2.0),
)

PAPER = Recipe(
    *(replace(p, rows=(*p.rows, 4 * p.rows[-1], 16 * p.rows[-1])) for p in SMALL.problems),
    starts=50,
    particles=512,
    chain_steps=2000,
    draws=512,
    prior_draws=100_000_000,
)

EXPERIMENT = Experiment(
    name="evidence_agreement",
    claim="Annealed importance sampling and thermodynamic integration give the same log evidence of a small network "
    "within their error bars, forward and reverse annealing enclose it, and Laplace, counted over the equivalent "
    "modes, comes within 0.5 nats of it once the data fix all weights.",
    source="MacKay 1992, A practical Bayesian framework for backpropagation networks; Neal 2001, Annealed importance "
    "sampling; Grosse, Ancha and Roy 2016, Measuring the reliability of MCMC inference with bidirectional Monte Carlo",
    expected="No published table: estimators that are right agree, and the error of Laplace falls like 1/N in a "
    "regular model (Tierney and Kadane 1986). In a network with more units than the data need it need not fall, as "
    "the posterior is then not near a Gaussian however many the rows (Watanabe 2009).",
    differences="None of the papers has these problems. Laplace is of the highest of several modes, found by L-BFGS, "
    "with log(2^H H!) for its mirror images; modes that are not its mirror images are left out.",
    recipes={"small": SMALL, "paper": PAPER},
    cost={
        "small": "about seven minutes on one core",
        "paper": "more rows and longer runs, as no paper states a size: some hours on one core (an estimate)",
    },
    run=run,
    summarise=summarise,
)
