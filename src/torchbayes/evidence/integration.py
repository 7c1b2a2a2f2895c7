"""Thermodynamic integration (Gelman and Meng 1998; Lartillot and Philippe 2006; Friel and Pettitt 2008).

    log p(D) = ∫_0^1 m(β) dβ,     m(β) = E[log p(D|w)] over p_β

The slope of m is v(β) = Var[log p(D|w)] over p_β, estimated from the same draws. With it the trapezoid rule gains
two orders (Friel, Hurn and Wyse 2014):

    log p(D) ≈ Σ_k δ_k (m_k + m_{k+1})/2 − δ_k² (v_{k+1} − v_k)/12,     δ_k = β_{k+1} − β_k

Chains at all temperatures are the rows of one stack. At β = 0 draws from the prior replace them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchbayes.checks import as_seed, check_counts
from torchbayes.diagnostics import ess, mcse_mean, rhat
from torchbayes.driver.sample import run_chains
from torchbayes.evidence.estimate import Evidence
from torchbayes.evidence.path import AnnealedDensity, Target, as_target, at_prior
from torchbayes.evidence.pilot import Pilot, Temperatures, as_temperatures, pilot
from torchbayes.methods.mcmc.hmc import HMC
from torchbayes.model.model import Model
from torchbayes.native.process import undisturbed
from torchbayes.posteriors.problems import note
from torchbayes.randomness.seeds import Purpose, generator, mix

_DISTANCE = 0.4  # of neighbours on the path, in nats; the corrected rule's error is then below that of the chains
_FEWEST, _MOST = 17, 513  # temperatures
_ACCEPTANCE = 0.9  # high, because chains adapt for a short time and get stuck if the step size is too large
_DISAGREE, _STUCK = 1.1, 0.01  # R-hat, and acceptance


class Quadrature(NamedTuple):
    """An integral over β and its error."""

    value: float  # Σ_k δ_k (m_k + m_{k+1})/2 − δ_k² (v_{k+1} − v_k)/12
    trapezoid: float  # the same without variances
    discretisation: float  # estimate of the error that more temperatures would remove


@undisturbed
def thermodynamic_integration(
    model: Model | Target,
    data: Any = None,
    *,
    chains: int = 8,
    steps: int = 600,
    temperatures: Temperatures | None = None,
    leapfrogs: int = 32,
    seed: int = 0,
) -> Evidence:
    """Estimate the log evidence by the mean log likelihood along the path from the prior to the posterior.

    Every temperature has its own chains of HMC, which start from particles of a pilot run and adapt step size and
    mass in the first half of their steps. Unlike annealed importance sampling it needs chains that mix at every
    temperature. Cost in gradients: chains times temperatures times steps times at most `leapfrogs`, plus the pilot
    run's.

    Args:
        model: a model with proper priors and temperature 1, or a `FunctionTarget`.
        data: as for `fit`; None with a `FunctionTarget`.
        chains: C, chains at every temperature.
        steps: length of a chain; only the second half counts.
        temperatures: K, their number, at least 3, equally spaced along the path; or inverse temperatures from 0 to
            1, such as `power(30)`; None places them at distances of 0.4, at least 17.
        leapfrogs: bound on the leapfrog steps of an iteration.
        seed: seed of everything.

    Returns:
        The estimate. Its error is √(`monte_carlo`² + `discretisation`²). Details: these two; `temperatures` (K,),
        inverse; `log_likelihoods` and `variances` (K,), m and v; `ess` (K,) of the means; `rhat` (K,) of log
        likelihoods; `acceptance` (K − 1,), means at those above 0; `trapezoid`, the value without the correction.

    Raises:
        TypeError: if `model` is neither.
        ValueError: if a prior is improper, the temperature is not 1, the data do not fit, settings are out of
            range, or log likelihoods are not finite.
    """
    check_counts(chains=chains, steps=steps, leapfrogs=leapfrogs)
    if steps < 30:
        raise ValueError(f"`steps` must be at least 30, of which half adapt; got {steps}.")
    seed, target = as_seed(seed), as_target(model, data)
    beta_K = as_temperatures(temperatures, least=3, why="lest the error of discretisation hide")
    pilot_run = pilot(target, leapfrogs=leapfrogs, seed=mix(Purpose.INTEGRATION_PILOT, seed))
    if not isinstance(beta_K, Tensor):
        beta_K = pilot_run.even(beta_K or min(max(math.ceil(pilot_run.length / _DISTANCE) + 1, _FEWEST), _MOST))
    method = HMC(
        chains=chains * (len(beta_K) - 1),
        steps=steps,
        burn_in=steps // 2,
        thin=steps - steps // 2,
        jitter=0.2,
        mass="diagonal",
        target_acceptance=_ACCEPTANCE,
        max_leapfrogs=leapfrogs,
    )
    density = AnnealedDensity(target, beta_K[1:].repeat_interleave(chains))
    starts_MD = _starts(pilot_run, beta_K[1:], chains, seed=seed)
    run = run_chains(density, method, starts_MD, seed=mix(Purpose.INTEGRATION_CHAINS, seed))
    counting = slice(method.burn_in, None)
    values_KCS = run.numbers["log_likelihood"][:, counting].cpu().unflatten(0, (-1, chains))
    prior_S = at_prior(target, values_KCS[0].numel(), lambda start: mix(Purpose.INTEGRATION_PRIOR, seed, start))
    values_KCS = torch.cat([prior_S.view(1, *values_KCS.shape[1:]), values_KCS])
    if not torch.isfinite(values_KCS).all():
        raise ValueError("log likelihoods are not finite along the path. Look for extreme values, or narrow the prior.")
    acceptance_K = run.numbers["acceptance"][:, counting].cpu().mean(-1).unflatten(0, (-1, chains)).mean(-1)
    return _integrated(values_KCS, beta_K, acceptance_K)


def _integrated(values_KCS: Tensor, beta_K: Tensor, acceptance_K: Tensor) -> Evidence:
    """Return the evidence from log likelihoods along the path."""
    mean_K, variance_K = values_KCS.mean((1, 2)), values_KCS.flatten(1).var(1)
    integral = integrate(beta_K, mean_K, variance_K)
    monte_carlo = _monte_carlo_error(values_KCS, beta_K)
    draws_CSK = values_KCS.permute(1, 2, 0)
    rhat_K = rhat(draws_CSK)
    # R-hat is NaN where nothing moves, because the likelihood is constant or nothing is accepted.
    still_K = torch.where(torch.cat([torch.ones(1), acceptance_K]) < _STUCK, torch.inf, 1.0)
    judged_K = torch.where(rhat_K.isnan(), still_K, rhat_K)
    worst = int(judged_K.argmax())
    if (largest := float(judged_K[worst])) > _DISAGREE:
        note(
            f"chains at inverse temperature {float(beta_K[worst]):.3g} do not agree (R-hat {largest:.2f}), "
            f"so the error bar of the evidence is probably too small. Use more steps, or annealed importance sampling."
        )
    details = {
        "monte_carlo": monte_carlo,
        "discretisation": integral.discretisation,
        "trapezoid": integral.trapezoid,
        "temperatures": beta_K,
        "log_likelihoods": mean_K,
        "variances": variance_K,
        "ess": ess(draws_CSK),
        "rhat": rhat_K,
        "acceptance": acceptance_K,
    }
    error = math.hypot(monte_carlo, integral.discretisation)
    return Evidence(integral.value, error, "thermodynamic integration", details)


def integrate(beta_K: Tensor, mean_K: Tensor, variance_K: Tensor) -> Quadrature:
    """Return the integral of m(β) by the corrected trapezoid rule, for at least 3 ascending β.

    The rule is of fourth order, so with every second temperature alone its error is about sixteen times as large,
    and the difference estimates it. An eighth of it is taken, not a fifteenth, because the asymptotic order is not
    yet reached.
    """
    means, slopes = _coefficients(beta_K)
    value = float(means @ mean_K + slopes @ variance_K)
    last = len(beta_K) - 1
    some = [*range(0, last, 2), last]
    few_means, few_slopes = _coefficients(beta_K[some])
    few = float(few_means @ mean_K[some] + few_slopes @ variance_K[some])
    return Quadrature(value, float(means @ mean_K), abs(value - few) / 8)


def _coefficients(beta_K: Tensor) -> tuple[Tensor, Tensor]:
    """Return the coefficients of means and of variances."""
    step, zero = beta_K.diff(), beta_K.new_zeros(1)
    means = (torch.cat([step, zero]) + torch.cat([zero, step])) / 2
    slopes = (torch.cat([step**2, zero]) - torch.cat([zero, step**2])) / 12
    return means, slopes


def _monte_carlo_error(values_KCS: Tensor, beta_K: Tensor) -> float:
    """Return the standard error of the integral; chains at different temperatures are independent.

    To first order, a draw contributes a (x − m) + c ((x − m)² − v) to a m + c v.
    """
    means_K11, slopes_K11 = (coefficients[:, None, None] for coefficients in _coefficients(beta_K))
    centred_KCS = values_KCS - values_KCS.mean((1, 2), keepdim=True)
    influence_CSK = (means_K11 * centred_KCS + slopes_K11 * centred_KCS**2).permute(1, 2, 0)
    return float(mcse_mean(influence_CSK).nan_to_num(0.0).square().sum().sqrt())


def _starts(pilot_run: Pilot, beta_K: Tensor, chains: int, *, seed: int) -> Tensor:
    """Return particles of a pilot run at the nearest temperature above each β, (K · C, D)."""
    starts = []
    for number, beta in enumerate(beta_K.tolist()):
        rung = next(rung for rung in pilot_run.rungs if rung.beta >= beta)
        source = generator(Purpose.INTEGRATION_START, seed, number)
        index = torch.randint(len(rung.weights_PD), (chains,), generator=source)
        starts.append(rung.weights_PD[index.to(rung.weights_PD.device)])
    return torch.cat(starts)
