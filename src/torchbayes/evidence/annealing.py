"""Annealed importance sampling (Neal 2001), the same path backwards, and simple Monte Carlo.

Particles start as draws from the prior. At inverse temperatures 0 = β_0 < β_1 < … < β_K = 1 each is weighted, and
moved by a kernel that leaves p_{β_k} invariant:

    log v = Σ_{k=1}^{K} (β_k − β_{k−1}) log p(D|w_{k−1}),     w_k ~ HMC at β_k from w_{k−1}

Then E[v] = p(D), however poor the moves, if their settings do not depend on the particles. So log (1/P) Σ_p v_p is
too low on average, by half its variance, and by more where few particles dominate.

Backwards from a draw of the posterior, E[1/v] = 1/p(D), and −log (1/P) Σ_p 1/v_p is too high on average. The two
bracket the log evidence (Grosse, Ghahramani and Adams 2015; Grosse, Ancha and Roy 2016). The upper bound is valid
only if the draws are from the posterior.

Simple Monte Carlo is a path of one step, log p(D) ≈ log (1/S) Σ_s p(D|w_s), w_s ~ p(w).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchbayes.checks import as_seed, check_counts, check_kind, check_memory
from torchbayes.evidence.estimate import Evidence, log_mean, warn_of_few
from torchbayes.evidence.path import DRAWN, Target, as_target, at_prior
from torchbayes.evidence.pilot import Ladder, Place, Temperatures, as_temperatures, move, pilot
from torchbayes.model.model import Model
from torchbayes.native.process import undisturbed
from torchbayes.posteriors.draws import Draws
from torchbayes.posteriors.problems import warn_of
from torchbayes.posteriors.start import check_finite_start
from torchbayes.randomness.seeds import Purpose, mix

# Target variance of log weights, if particles mixed at once. In practice it is larger.
_VARIANCE = 0.2
_FEWEST, _MOST = 10, 20_000  # temperatures


@undisturbed
def annealed_importance_sampling(
    model: Model | Target,
    data: Any = None,
    *,
    particles: int = 128,
    temperatures: Temperatures | None = None,
    leapfrogs: int = 20,
    seed: int = 0,
) -> Evidence:
    """Estimate the log evidence by annealing particles from the prior to the posterior.

    Temperatures, step sizes and masses come from a pilot run with other random numbers (`evidence.pilot`) and are
    fixed before the first particle moves, so the evidence itself is estimated without bias. Cost in gradients:
    particles times temperatures times at most `leapfrogs`, plus the pilot run's.

    Args:
        model: a model with proper priors and temperature 1, or a `FunctionTarget`.
        data: as for `fit`; None with a `FunctionTarget`.
        particles: P, independent particles.
        temperatures: K + 1, their number, equally spaced along the path; or inverse temperatures from 0 to 1, such
            as `sigmoidal(500)`; None takes the number at which log weights would have variance 0.2 if particles
            mixed at once, between 10 and 20,000.
        leapfrogs: bound on the leapfrog steps of a move, which covers a quarter of a period if that takes fewer.
        seed: seed of everything.

    Returns:
        The estimate, with the error of the jackknife over particles. Details: `ess`, effective number of particles;
        `log_weights` (P,); `temperatures` (K + 1,), inverse; `acceptance` (K − 1,), means over particles at those
        between 0 and 1; `log_likelihoods` (K,), weighted means before each step; `length` of the path.

    Raises:
        TypeError: if `model` is neither.
        ValueError: if a prior is improper, the temperature is not 1, the data do not fit, or settings are out of
            range.
    """
    check_counts(particles=particles, leapfrogs=leapfrogs)
    seed, target = as_seed(seed), as_target(model, data)
    ladder, length = _prepared(target, temperatures, leapfrogs=leapfrogs, seed=seed)
    check_memory(2 * particles * target.draw(1, 0).nbytes, "the particles", particles=particles)
    weights_PD = target.draw(particles, mix(Purpose.ANNEALING_START, seed))
    log_weights_P, details = _annealed(target, weights_PD, ladder, seed=mix(Purpose.ANNEALING_MOVES, seed))
    mean = log_mean(log_weights_P)
    warn_of_few(mean.ess, "particles", "Use more temperatures; more particles help less.")
    details |= {"ess": mean.ess, "length": length}
    return Evidence(mean.value, mean.error, "annealed importance sampling", details)


@undisturbed
def reverse_annealing(
    model: Model | Target,
    data: Any = None,
    *,
    draws: Draws | Tensor,
    temperatures: Temperatures | None = None,
    leapfrogs: int = 20,
    seed: int = 0,
) -> Evidence:
    """Bound the log evidence from above by annealing draws of the posterior back to the prior.

    With the same settings and seed it uses the temperatures of `annealed_importance_sampling`, in reverse order.
    The error assumes that the draws are independent: thin them. If they miss a part of the posterior of mass 1 − a,
    the bound is lower by at most −log a.

    Args:
        model: a model with proper priors and temperature 1, or a `FunctionTarget`.
        data: as for `fit`; None with a `FunctionTarget`.
        draws: draws of the posterior, such as those of HMC; or weights (S, D) or (M, S, D).
        temperatures: as for `annealed_importance_sampling`.
        leapfrogs: likewise.
        seed: seed of everything.

    Returns:
        The bound, with the error of the jackknife over draws. Details as for `annealed_importance_sampling`; log
        weights are those of 1/p(D), and temperatures, acceptances and log likelihoods run from the posterior to the
        prior.

    Raises:
        TypeError: if `model` is neither.
        ValueError: if a prior is improper, the temperature is not 1, or data, draws or settings do not fit.
    """
    check_counts(leapfrogs=leapfrogs)
    seed, target = as_seed(seed), as_target(model, data)
    check_kind((Draws, Tensor), "draws of the posterior, or a tensor of weights", draws=draws)
    if isinstance(draws, Tensor):
        weights = draws
    else:
        warn_of(draws.problems, "`draws`")
        weights = draws.weights_MSD
    like_PD = target.draw(1, 0)
    if weights.ndim not in {2, 3} or weights.shape[-1] != like_PD.shape[-1] or not weights.numel():
        raise ValueError(f"`draws` must be weights (S, {like_PD.shape[-1]}); got shape {tuple(weights.shape)}.")
    check_finite_start(draws=weights)
    weights_PD = weights.detach().reshape(-1, weights.shape[-1]).to(like_PD)
    ladder, length = _prepared(target, temperatures, leapfrogs=leapfrogs, seed=seed)
    log_weights_P, details = _annealed(target, weights_PD, ladder.reversed(), seed=mix(Purpose.REVERSE_MOVES, seed))
    mean = log_mean(log_weights_P)
    warn_of_few(mean.ess, "draws", "Use more temperatures; more draws help less.", wrong="too high")
    details |= {"ess": mean.ess, "length": length}
    return Evidence(-mean.value, mean.error, "reverse annealing, an upper bound", details)


@undisturbed
def prior_monte_carlo(model: Model | Target, data: Any = None, *, draws: int = 100_000, seed: int = 0) -> Evidence:
    """Estimate the log evidence by draws from the prior: p(D) is the mean of the likelihood over it.

    Unbiased on the natural scale. The number of draws it needs grows exponentially with the information in the data,
    KL(posterior ‖ prior) (Chatterjee and Diaconis 2018), so it is a check for tiny problems.

    Args:
        model: a model with proper priors and temperature 1, or a `FunctionTarget`.
        data: as for `fit`; None with a `FunctionTarget`.
        draws: S, draws from the prior.
        seed: seed of the draws.

    Returns:
        The estimate, with the error of the jackknife. Details: `ess`, effective number of draws.

    Raises:
        TypeError: if `model` is neither.
        ValueError: if a prior is improper, the temperature is not 1, the data do not fit, or no draw explains them.
    """
    check_counts(draws=draws)
    seed, target = as_seed(seed), as_target(model, data)
    mean = log_mean(at_prior(target, draws, lambda start: mix(Purpose.MONTE_CARLO, seed, start // DRAWN)))
    warn_of_few(mean.ess, "draws", "Use annealed importance sampling, or many more draws.")
    return Evidence(mean.value, mean.error, "prior Monte Carlo", {"ess": mean.ess, "draws": draws})


def _prepared(target: Target, temperatures: Temperatures | None, *, leapfrogs: int, seed: int) -> tuple[Ladder, float]:
    """Return the ladder of temperatures, and the length of the path."""
    beta_K = as_temperatures(temperatures)
    pilot_run = pilot(target, leapfrogs=leapfrogs, seed=mix(Purpose.ANNEALING_PILOT, seed))
    if not isinstance(beta_K, Tensor):
        beta_K = pilot_run.even(beta_K or min(max(math.ceil(pilot_run.length**2 / _VARIANCE), _FEWEST), _MOST))
    return pilot_run.ladder(beta_K), pilot_run.length


def _annealed(target: Target, weights_PD: Tensor, ladder: Ladder, *, seed: int) -> tuple[Tensor, dict[str, Any]]:
    """Return log weights, float64 (P,), of particles annealed along a ladder, and details."""
    place = Place(weights_PD, target.parts(weights_PD))
    log_weights_P = torch.zeros(len(weights_PD), dtype=torch.float64)
    acceptances, log_likelihoods = [], []
    last = len(ladder.beta_K) - 1
    for number in range(1, last + 1):
        log_likelihood_P = place.parts.log_likelihood.cpu()
        log_likelihoods.append(float((log_weights_P.softmax(0) * log_likelihood_P.nan_to_num(neginf=0.0)).sum()))
        log_weights_P += (ladder.beta_K[number] - ladder.beta_K[number - 1]) * log_likelihood_P
        if number < last:  # a move after the last weight changes nothing
            beta, tuning = float(ladder.beta_K[number]), ladder.tunings[number]
            place, acceptance_P = move(target, place, beta, tuning=tuning, seed=seed, number=number)
            acceptances.append(float(acceptance_P.mean()))
    return log_weights_P, {
        "log_weights": log_weights_P,
        "temperatures": ladder.beta_K,
        "acceptance": torch.tensor(acceptances, dtype=torch.float64),
        "log_likelihoods": torch.tensor(log_likelihoods, dtype=torch.float64),
    }
