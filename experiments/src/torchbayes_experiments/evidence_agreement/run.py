"""What `evidence_agreement` computes for one seed: every estimate of the log evidence of every problem."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchbayes.evidence import (
    Evidence,
    ModelTarget,
    annealed_importance_sampling,
    prior_monte_carlo,
    reverse_annealing,
    thermodynamic_integration,
)
from torchbayes.posteriors import Draws
from torchbayes.selection import fit
from torchbayes_experiments.evidence_agreement.recipe import AgreementRecipe, Problem
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.shared.modes import Pair, climb, laplace, log_symmetries, rearranged
from torchbayes_experiments.streams import Purpose, mix


def run(recipe: AgreementRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Estimate the log evidence of every problem at every number of rows.

    Args:
        recipe: the settings.
        seed: of the data and of every estimator.
        directory: of this seed; every problem at every number of rows leaves a file, which is read if it is there.

    Returns:
        problem -> {`hidden`, `regular`, `rows`, `cases`: what `estimates` returns for each number of rows}.
    """
    results: dict[str, Any] = {}
    for number, problem in enumerate(recipe.problems):
        inputs, targets = problem.data(mix(Purpose.AGREEMENT_PROBLEM, seed, number))
        cases = []
        for rows in problem.rows:
            path = directory / f"problem_{number}" / f"rows_{rows}.json"
            case = mix(Purpose.AGREEMENT_CASE, seed, number, rows)
            compute = partial(estimates, recipe, problem, (inputs[:rows], targets[:rows]), seed=case)
            cases.append(load_or_compute(path, compute))
        about = {"hidden": problem.hidden, "regular": problem.regular, "rows": list(problem.rows)}
        results[problem.label] = about | {"cases": cases}
    return results


def estimates(recipe: AgreementRecipe, problem: Problem, data: Pair, *, seed: int) -> dict[str, Any]:
    """Return every estimate of one log evidence.

    Args:
        recipe: the settings.
        problem: the network.
        data: inputs and targets.
        seed: of everything random.

    Returns:
        `AIS`, `reverse`, `TI` and, where feasible, `prior`: each {`value`, `error`}; `AIS` and `reverse` also have
        `single`, the bound by the mean of the log weights, with `single_error`; `laplace` and `laplace_hessian`, of one
        mode; `symmetries`; `is_mode`; `log_joints` of all ends of the climb; `warnings` of the samplers.
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


def _sampled(recipe: AgreementRecipe, problem: Problem, mode_D: Tensor, data: Pair, *, seed: int) -> dict[str, Any]:
    """Return the estimates by sampling, in float32, in which the library's own kernel is several times faster."""
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
    """Return the bound that a single particle gives on average: a lower one forward, an upper one in reverse."""
    log_weights_P = found.details["log_weights"]
    error = float(log_weights_P.std()) / len(log_weights_P) ** 0.5
    return {"single": sign * float(log_weights_P.mean()), "single_error": error, "ess": found.details["ess"]}
