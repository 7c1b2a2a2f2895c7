"""The local learning coefficient: the effective number of parameters of a singular model near one place.

With the mean loss L_n of n observations and the density p(w) ∝ exp(−nβ L_n(w) − (γ/2)|w − w*|²),

    λ̂(w*) = nβ (E_p[L_n(w)] − L_n(w*)),     β = 1/log n

(Watanabe 2013; Lau et al. 2023). The free energy is n L_n(w*) + λ log n to leading order: λ is D/2 for a regular
model and less for a singular one. On a quadratic with eigenvalues h it is ½ Σ nβh/(nβh + γ), half the effective
dimension at the precision γ/(nβ). Where two parameters are redundant together, as in x²y², λ̂ approaches its limit
only at the rate 1/log n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from torchbayes.checks import (
    SettingError,
    as_seed,
    check_counts,
    check_kind,
    check_not_negative,
    check_positive,
    check_tensor,
    is_whole,
    optional,
    seen,
)
from torchbayes.diagnostics import ess, mcse_mean, rhat
from torchbayes.driver.chains import Chains
from torchbayes.driver.sample import run_chains
from torchbayes.geometry.lanczos import lanczos
from torchbayes.geometry.localised import Localised, rise_of_function, rise_on_all, rise_on_batches
from torchbayes.geometry.networks import Place, Weights, check_loss, num_observations, place_of
from torchbayes.geometry.operators import Products
from torchbayes.methods.mcmc.adaptation import LEAST_BURN_IN
from torchbayes.methods.mcmc.hmc import HMC
from torchbayes.methods.sampler import Sampler
from torchbayes.methods.sgmcmc.sgld import SGLD
from torchbayes.model.model import Model
from torchbayes.native.process import undisturbed
from torchbayes.posteriors.problems import warn_of
from torchbayes.posteriors.start import check_finite_start
from torchbayes.randomness.seeds import Purpose, generator, mix

_SMALL = 1_000_000  # rows times weights up to which all the data are used at every step
_DISAGREE, _REJECTED, _FEWEST = 1.05, 0.2, 50.0  # R-hat, acceptance, effective draws
_UNLIKE = 4.0  # standard errors between two step sizes; many, because those of short chains are too small
_HOTTER = 0.25  # share of β at which the starts of chains are found
_STEP = 0.1  # ε times the largest curvature: chains are then at most 2.5 % too wide in any direction
_STIFF_ROWS, _STIFF_STEPS = 2000, 12


@dataclass(frozen=True)
class LearningCoefficient:
    """A local learning coefficient.

    Attributes:
        value: λ̂.
        error: its Monte Carlo standard error, from the effective sample size.
        chains_C: λ̂ of each chain, float64.
        ess: effective draws of the loss.
        rhat: of the loss; NaN where it is constant.
        acceptance: mean acceptance after burn-in; NaN for a sampler without.
        loss: L_n(w*), in nats per observation.
        inverse_temperature: β.
        localisation: γ.
        num_data: n; a row of weight w is w observations.
        method: the sampler, with its step size where that was found.
        problems: reasons not to trust it; empty if none is known.
    """

    value: float
    error: float
    chains_C: Tensor
    ess: float
    rhat: float
    acceptance: float
    loss: float
    inverse_temperature: float
    localisation: float
    num_data: float
    method: Sampler
    problems: tuple[str, ...]


class _Problem(NamedTuple):
    """A density, the method for it, the loss at w* and the number of observations."""

    density: Localised
    method: Sampler
    loss: float
    num_data: float


@undisturbed
def learning_coefficient(
    model: Model | Callable[[Tensor], Tensor],
    data: Any,
    weights: Weights,
    *,
    inverse_temperature: float | None = None,
    localisation: float = 1.0,
    method: Sampler | None = None,
    seed: int = 0,
    chunk_size: int = 1024,
) -> LearningCoefficient:
    """Estimate the local learning coefficient λ̂ = nβ (E[L_n(w)] − L_n(w*)).

    The chains are those of the library's samplers on the tempered, localised density. They start where other chains
    from w* end after half a burn-in at a quarter of β, so that they do not only see the neighbourhood of w*. After
    their last step they go on for half as many steps again as are not burn-in, with steps of half the size; these
    draws count too. If they give another value, there are regions too narrow for the steps, and `problems` says so.
    HMC, MALA, NUTS and random walks use all the data at every step and are exact up to chance. SGLD and SGHMC use
    minibatches: gradients and losses are taken relative to those at w* on the same rows, and a step size of None
    becomes 0.1 over the largest curvature of the density, found by 12 steps of Lanczos at w*. L_n is the mean
    negative log likelihood; neither prior nor temperature of the model enters. Directions of curvature below γ/(nβ)
    do not count: choose γ well below nβ times the curvatures that should.

    Args:
        model: a model; or a function of weights (M, D) that returns the mean loss (M,), infinite outside its
            domain.
        data: as for `fit`; for a function, n, the number of observations.
        weights: w*, a minimum: a point posterior of one member, a module, or a tensor (D,). For a function a
            tensor.
        inverse_temperature: β; None for 1/log n.
        localisation: γ ≥ 0, in inverse squared units of the weights.
        method: the sampler, its number of chains and their length; a mass that it would take from a prior is
            adapted instead. None for `HMC` with 4 chains of 2,000 steps, half of them burn-in, and `halvings`
            of the step size where rows times weights are at most a million, otherwise `SGLD` with 4 chains of
            4,000 steps.
        seed: seed of the chains.
        chunk_size: rows that go through a network at once where all are used.

    Returns:
        The estimate, with a warning if it is negative or the chains have not converged.

    Raises:
        TypeError: if an argument is of another kind, or the network computes in less than float32.
        ValueError: if data or weights do not fit, the loss is not finite at w*, or settings are out of range.
        DivergedError: if a chain on minibatches diverges.
    """
    optional(check_positive, inverse_temperature=inverse_temperature)
    check_not_negative(localisation=localisation)
    check_counts(chunk_size=chunk_size)
    optional(check_kind, Sampler, "a sampler, such as HMC(chains=4)", method=method)
    if method is not None:
        method = method.without_prior or method  # the density of the chains has no prior
    seed, localisation = as_seed(seed), float(localisation)
    if isinstance(model, Model):
        place = place_of(model, data, weights, batch_size=getattr(method or SGLD(), "batch_size", None) or 128)
        problem = _of_model(
            place, inverse_temperature, localisation=localisation, method=method, seed=seed, chunk_size=chunk_size
        )
    else:
        problem = _of_function(
            model, data, weights, beta=inverse_temperature, localisation=localisation, method=method or _exact()
        )
    check_loss(problem.loss)
    seed = mix(Purpose.COEFFICIENT, seed)
    chains = run_chains(problem.density, problem.method, _dispersed(problem, seed), seed=seed)
    return _judged(chains, _at_half_the_step(chains, problem, seed), problem)


def _of_model(
    place: Place, beta: float | None, *, localisation: float, method: Sampler | None, seed: int, chunk_size: int
) -> _Problem:
    rows, size = place.rows.size, place.weights_D.numel()
    if method is None:
        method = _exact() if rows * size <= _SMALL else SGLD(chains=4, steps=4000, burn_in=2000, thin=1)
    num_data = num_observations(place, chunk_size)
    beta = _beta(num_data, beta)
    batch_size = method.needs.batch_size
    if batch_size is not None and batch_size < rows:
        rise, loss = rise_on_batches(place, chunk_size, chains=method.members, seed=seed)
    else:
        rise, loss = rise_on_all(place, chunk_size)
    if _without_step(method):
        method = replace(method, step_size=_STEP / (beta * _stiffness(place, chunk_size, seed) + localisation))
    density = Localised(rise, place.weights_D, localisation=localisation, inverse_temperature=beta)
    return _Problem(density, method, loss / num_data, num_data)


def _of_function(
    function: Any, data: Any, weights: Any, *, beta: float | None, localisation: float, method: Sampler
) -> _Problem:
    """Return the problem of a function, after checking function, number of observations, weights and step size."""
    if not callable(function) or isinstance(function, type | torch.nn.Module):
        raise TypeError(f"`model` must be a Model, or a function of weights (M, D); got {seen(function)}.")
    if not is_whole(data) or data < 2:
        raise ValueError(f"`data` must be the number of observations, at least 2, for a function; got {seen(data)}.")
    check_tensor("D", weights=weights)
    check_finite_start(weights=weights)
    if _without_step(method):
        raise SettingError("`method` must have a `step_size` for a function; got None. Use HMC, or give one.")
    beta = _beta(int(data), beta)
    rise, loss = rise_of_function(cast("Callable[[Tensor], Tensor]", function), weights, int(data))
    density = Localised(rise, weights, localisation=localisation, inverse_temperature=beta)
    return _Problem(density, method, loss, int(data))


def _without_step(method: Sampler) -> bool:
    """Return whether a sampler needs a step size, has none and does not adapt one."""
    return not method.adapts and getattr(method, "step_size", 0.0) is None


def _beta(num_data: float, beta: float | None) -> float:
    """Return β, or for None 1/log n, which needs at least 2 observations."""
    if beta is not None:
        return float(beta)
    if num_data < 2:
        raise ValueError(
            f"`inverse_temperature` must be given for fewer than 2 observations; got {num_data:g}, whose 1/log n is "
            f"infinite."
        )
    return 1 / math.log(num_data)


def _exact() -> HMC:
    """Return HMC that can enter regions much narrower than others: see `HMC.halvings`."""
    return HMC(
        chains=4,
        steps=2000,
        burn_in=1000,
        thin=1,
        jitter=0.2,
        mass="diagonal",
        max_leapfrogs=64,
        target_acceptance=0.9,
        halvings=5,
    )


def _dispersed(problem: _Problem, seed: int) -> Tensor:
    """Return starts of chains: ends of as many others, which run from w* for half a burn-in at a quarter of β.

    Started at w* itself, all chains would first see the same neighbourhood, and agree.
    """
    density, method = problem.density, problem.method
    start_MD, steps = density.weights_D.expand(method.members, -1).clone(), method.burn_in // 2
    if getattr(method, "schedule", None) is not None or steps < LEAST_BURN_IN:
        return start_MD
    hot = replace(method, steps=steps + 1, burn_in=steps, thin=1)
    return run_chains(
        density.hotter(_HOTTER), hot, start_MD, seed=mix(Purpose.COEFFICIENT_START, seed)
    ).state.weights_MD


def _at_half_the_step(chains: Chains, problem: _Problem, seed: int) -> Tensor:
    """Return nβ(L_n − L_n*), (C, S), along the same chains continued with steps of half the size.

    It is empty for a sampler whose steps change, or have no size.
    """
    method, state = problem.method, chains.state
    more = max((method.steps - method.burn_in) // 2, method.thin)
    adapted: Any = getattr(state, "step_size", None)
    step_size = getattr(method, "step_size", None)
    if hasattr(adapted, "step_size_M"):
        halved = replace(state, step_size=replace(adapted, step_size_M=adapted.step_size_M / 2))
        longer, resume = replace(method, steps=method.steps + more), replace(chains, state=halved)
        later = run_chains(problem.density, longer, state.weights_MD, seed=seed, resume=resume)
    elif not method.adapts and step_size is not None and getattr(method, "schedule", None) is None:
        smaller = replace(method, step_size=step_size / 2, steps=more, burn_in=0)
        later = run_chains(problem.density, smaller, state.weights_MD, seed=mix(Purpose.COEFFICIENT_HALF, seed))
    else:
        return chains.numbers["log_likelihood"][:, :0]
    return _draws(later, problem)[:, -more:]


def _draws(chains: Chains, problem: _Problem) -> Tensor:
    """Return nβ(L_n − L_n*) after each step, float64 (C, S), on the CPU."""
    return -problem.density.inverse_temperature * chains.numbers["log_likelihood"].cpu()


def _stiffness(place: Place, chunk_size: int, seed: int) -> float:
    """Return the largest absolute eigenvalue of the Hessian of n L_n at w*, estimated on at most 2,000 rows."""
    rows = place.rows.size
    subset = place._replace(rows=place.rows.map(lambda t: t[:: -(-rows // _STIFF_ROWS)]))
    source = generator(Purpose.STIFFNESS, seed)
    start_D = torch.randn(len(place.weights_D), generator=source).to(place.weights_D)
    rules = lanczos(Products(subset, "hessian", chunk_size), start_D.unsqueeze(0), _STIFF_STEPS)
    largest = float((rules.values_PK.abs() + rules.residuals_PK).max())
    return largest * num_observations(place, chunk_size) / num_observations(subset, chunk_size)


def _judged(chains: Chains, half_CS: Tensor, problem: _Problem) -> LearningCoefficient:
    """Return the coefficient of chains, and warn of its problems; `half_CS` are draws with steps of half the size."""
    method, burn_in = problem.method, problem.method.burn_in
    parts = [draws for draws in (_draws(chains, problem)[:, burn_in:], half_CS) if draws.shape[1]]
    draws_CS = torch.cat(parts, dim=1)
    acceptance_CS = chains.numbers.get("acceptance", torch.full_like(draws_CS, math.nan))
    coefficient = LearningCoefficient(
        float(draws_CS.mean()),
        float(mcse_mean(draws_CS)),
        draws_CS.mean(1),
        float(ess(draws_CS)),
        float(rhat(draws_CS)),
        float(acceptance_CS[:, burn_in:].mean()),
        problem.loss,
        problem.density.inverse_temperature,
        problem.density.localisation,
        problem.num_data,
        method,
        (),
    )
    problems = (*_problems(coefficient), *_step_problem(parts))
    warn_of(problems, "this learning coefficient")
    return replace(coefficient, problems=problems)


def _step_problem(parts: Sequence[Tensor]) -> Iterator[str]:
    """Yield a problem if steps of half the size give another coefficient."""
    if len(parts) < 2 or any(draws.shape[1] < 4 for draws in parts):  # too few draws have no Monte Carlo error
        return
    means, errors = zip(*((float(draws.mean()), float(mcse_mean(draws))) for draws in parts), strict=True)
    if abs(means[1] - means[0]) > _UNLIKE * math.hypot(*errors):
        yield (
            f"steps of half the size give {means[1]:.3g} in the place of {means[0]:.3g}: there are regions too narrow "
            f"for its steps (use a smaller step size or a `target_acceptance` nearer to 1, and HMC with `halvings`)"
        )


def _problems(coefficient: LearningCoefficient) -> Iterator[str]:
    if coefficient.value < 0:
        hedge = ", though within two standard errors of 0" if coefficient.value > -2 * coefficient.error else ""
        yield f"it is negative ({coefficient.value:.3g}){hedge}: `weights` are not a minimum of the loss (train longer)"
    if coefficient.rhat > _DISAGREE:
        yield f"its chains do not agree (R-hat {coefficient.rhat:.3f}; use more steps, or a larger `localisation`)"
    if coefficient.ess < _FEWEST:
        yield f"it rests on {coefficient.ess:.0f} effective draws (use more steps)"
    if coefficient.acceptance < _REJECTED:
        yield f"of the proposals {coefficient.acceptance:.0%} were accepted (use more burn-in)"
