"""HMC as the reference: how close cheaper methods come to the posterior (Izmailov et al. 2021, sections 5 and 7).

All methods have one network, one prior and one likelihood, and the same rows. Full-batch HMC at temperature 1 says what
the posterior predicts. The others are judged on the test rows by how well they predict and by how close they come to
it: agreement, the share of equal decisions, and total variation, mean_i ½ Σ_c |p_ic − q_ic|. One chain of HMC against
the others is the ceiling: there the method is exact, and only the chains are short.

Settings were chosen on a repeat that is none of the seeds: digits drawn with seed 1000, judged on the training rows
that it left over. Step sizes and momentum of SG-MCMC are those whose chains came closest to HMC in total variation
there, among step sizes from 1e-6 to 4e-5. SGLD has the 10,000 epochs of the paper. With 4,000, which it had first, its
chains were further away, on those rows (0.028 instead of 0.020) and on the test rows of seed 0, which had been looked
at by then. The prior, σ = 0.3, is the widest that is affordable: 0.5 needs twice the leapfrog steps. Which prior it is
matters for the claim on NLL. On the left-over rows HMC tied with the single network at σ = 0.3, and was worse than it
for networks of tanh units (σ from 0.15 to 1), for σ = 0.5, on whole MNIST images and with ten hidden units: its average
is not sure enough there. One setting serves all problems. Temperatures are fitted on left-over training rows too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchbayes import metrics
from torchbayes.driver import fit
from torchbayes.experiments.experiment import Experiment, as_json
from torchbayes.experiments.hmc_reference.report import summarise
from torchbayes.experiments.shared.image_hmc import Problem, Setup, mixing, named, run_hmc, set_up
from torchbayes.methods import HMC, MAP, SGD, SGHMC, SGLD, Adam, Cycles
from torchbayes.methods.optimise.descent import epochs_of
from torchbayes.methods.sampler import Sampler
from torchbayes.metrics.temperature import fit_temperature
from torchbayes.posteriors import Draws, Functions, Posterior
from torchbayes.posteriors.files import read_json, write_whole
from torchbayes.predictive.average import predict


@dataclass(frozen=True)
class Recipe:
    """The problems, and the methods that are compared with HMC on each.

    Attributes:
        digits: the small problem.
        noisy: the same with wrong labels among the right ones; None to leave it out.
        mnist: the larger problem; None to leave it out.
        ensemble: the deep ensemble; its members, each by itself, are the single networks.
        sgld: stochastic gradient Langevin dynamics.
        sghmc: stochastic gradient Hamiltonian Monte Carlo.
        cyclical: the same in cycles.
    """

    digits: Problem
    noisy: Problem | None
    mnist: Problem | None
    ensemble: MAP
    sgld: SGLD
    sghmc: SGHMC
    cyclical: SGHMC

    def problems(self) -> dict[str, Problem]:
        """Return the problems by the names they have in tables."""
        return named(self.digits, self.noisy, self.mnist)

    def methods(self) -> dict[str, MAP | Sampler]:
        """Return the methods that are compared with HMC by their names."""
        return {"deep ensemble": self.ensemble, "SGLD": self.sgld, "SGHMC": self.sghmc, "cSGHMC": self.cyclical}


def run(recipe: Recipe, seed: int, directory: Path) -> dict[str, Any]:
    """Fit and score everything on every problem.

    Args:
        recipe: the settings.
        seed: of the training rows, and of all fits.
        directory: of this seed; problems that are done are read, fits that were interrupted go on.

    Returns:
        problem -> `methods` (see `scores`), `chains` (see `image_hmc.mixing`) and `passes`: method -> passes over the
        data of all its members or chains together.
    """
    results = {}
    for number, (name, problem) in enumerate(recipe.problems().items()):
        home = directory / f"problem_{number}"
        path = home / "scores.json"
        if not path.exists():
            home.mkdir(parents=True, exist_ok=True)
            write_whole(path, as_json(_on_problem(recipe, problem, seed, home=home)))
        results[name] = read_json(path)
    return results


def _on_problem(recipe: Recipe, problem: Problem, seed: int, *, home: Path) -> dict[str, Any]:
    setup = set_up(problem, seed)
    hmc, found = run_hmc(problem, setup, seed=seed, directory=home / "hmc")
    posteriors: dict[str, Posterior] = {"HMC": hmc}
    passes: dict[str, float] = {}
    if found.record is not None:
        passes["HMC"] = float((found.record.gradients_M + found.record.burn_in_gradients_M).sum())
    for name, method in recipe.methods().items():
        place = home / name.replace(" ", "_").lower()
        posteriors[name] = fit(setup.model, setup.train, method, seed=seed, directory=place, resume=True)
        passes[name] = passes_of(method, len(setup.train.targets))
    return {"methods": scores(posteriors, setup), "chains": mixing(found), "passes": passes}


def passes_of(method: MAP | Sampler, rows: int) -> float:
    """Return the passes over the data that a method makes with all its members or chains.

    Args:
        method: one on minibatches.
        rows: N.

    Returns:
        The number.
    """
    if isinstance(method, MAP):
        return float(method.members * epochs_of(method.epochs, -(-rows // method.batch_size)))
    return method.members * method.steps * min(1.0, (method.rows or rows) / rows)


def scores(posteriors: Mapping[str, Posterior], setup: Setup) -> dict[str, dict[str, dict[str, float]]]:
    """Return the metrics of all averages on the test rows.

    Args:
        posteriors: method -> its posterior; "HMC" is the reference.
        setup: with test rows, and spare rows for temperatures.

    Returns:
        method -> `all` (the average over all members or chains) and `one` (the mean of the metrics of each alone) ->
        the metrics of `quality` and `closeness`. Closeness is to all chains of HMC; for HMC itself `one` holds that of
        each chain to the average of the others, and `all` none.
    """
    test = {name: log_probabilities(posterior, setup.test.inputs) for name, posterior in posteriors.items()}
    spare = {name: log_probabilities(posterior, setup.spare.inputs) for name, posterior in posteriors.items()}
    reference = mixture(test["HMC"])
    found = {}
    for name, log_probs_MBK in test.items():
        pairs = list(zip(log_probs_MBK, spare[name], strict=True))
        ones = [quality(here, setup.test.targets) | scaled(here, there, setup) for here, there in pairs]
        both = mixture(log_probs_MBK), mixture(spare[name])
        together = quality(both[0], setup.test.targets) | scaled(*both, setup)
        if name != "HMC":
            together |= closeness(both[0], reference)
        for member in range(len(ones)):
            others = log_probs_MBK[torch.arange(len(ones)) != member]
            ones[member] |= closeness(log_probs_MBK[member], mixture(others) if name == "HMC" else reference)
        found[name] = {"all": together, "one": {key: sum(o[key] for o in ones) / len(ones) for key in ones[0]}}
    return found


def log_probabilities(posterior: Posterior, inputs: Tensor) -> Tensor:
    """Return the log of the probabilities that each member or chain gives, averaged over its draws.

    Args:
        posterior: point masses or chains.
        inputs: B rows.

    Returns:
        Tensor (M, B, K), float64, on the CPU.
    """
    weights = posterior.weights_MSD if isinstance(posterior, Draws) else posterior.sample(posterior.members)[:, None]
    outputs = (predict(Functions(posterior.model, weights_SD), inputs).outputs_SBK for weights_SD in weights)
    return torch.stack([mixture(outputs_SBK.double().log_softmax(-1)) for outputs_SBK in outputs]).cpu()


def mixture(log_probs: Tensor) -> Tensor:
    """Return the log of the average of probabilities over the first axis, (S, ...) -> (...)."""
    return log_probs.logsumexp(0) - math.log(len(log_probs))


def quality(log_probs: Tensor, targets: Tensor) -> dict[str, float]:
    """Return how well an average predicts.

    Args:
        log_probs: (B, K), float64.
        targets: (B,).

    Returns:
        `accuracy`, `nll` in nats, `ece` (15 bins of equal width), and `gap`: mean confidence − accuracy.
    """
    probs, targets = log_probs.exp(), targets.cpu()
    accuracy = float(metrics.accuracy(probs, targets))
    return {
        "accuracy": accuracy,
        "nll": float(metrics.nll(log_probs.gather(1, targets[:, None]).squeeze(1))),
        "ece": float(metrics.ece(probs, targets)),
        "gap": float(probs.amax(-1).mean()) - accuracy,
    }


def scaled(log_probs: Tensor, spare: Tensor, setup: Setup) -> dict[str, float]:
    """Return the NLL that an average would have, were its confidence right.

    Args:
        log_probs: of the test rows, (B, K).
        spare: of the spare rows, on which the temperature is fitted.
        setup: with their targets.

    Returns:
        `temperature`, above 1 for what is too sure of itself, and `nll_scaled`, of softmax(log p / temperature).
    """
    floor = math.log(1e-30)  # a point mass may rule a class out
    temperature = fit_temperature(spare.clamp_min(floor), setup.spare.targets.cpu())
    sharp = (log_probs.clamp_min(floor) / temperature).log_softmax(-1)
    return {"temperature": temperature, "nll_scaled": quality(sharp, setup.test.targets)["nll"]}


def closeness(log_probs: Tensor, reference: Tensor) -> dict[str, float]:
    """Return `agreement` and `total_variation` of two averages, (B, K) each."""
    pair = log_probs.exp(), reference.exp()
    return {
        "agreement": float(metrics.agreement(*pair)),
        "total_variation": float(metrics.total_variation(*pair)),
    }


_DIGITS = Problem("digits", 1000, HMC(chains=4, steps=120, burn_in=30), prior_scale=0.3)

SMALL = Recipe(
    digits=_DIGITS,
    noisy=replace(_DIGITS, label="digits, noisy labels", noise=0.2, hmc=HMC(chains=4, steps=100, burn_in=30)),
    mnist=replace(
        _DIGITS, label="MNIST", data="mnist", pool=2, hmc=HMC(chains=4, steps=80, burn_in=30), test_rows=2000
    ),
    ensemble=MAP(members=10, epochs=100, batch_size=100, optimizer=Adam(0.005)),
    sgld=SGLD(chains=2, steps=100_000, burn_in=10_000, thin=450, step_size=4e-5, batch_size=100),
    sghmc=SGHMC(chains=2, steps=20_000, burn_in=5000, thin=100, step_size=4e-6, batch_size=100, momentum=0.98),
    cyclical=SGHMC(
        chains=2,
        steps=40_000,
        burn_in=5000,
        thin=150,
        step_size=4e-6,
        batch_size=100,
        momentum=0.98,
        schedule=Cycles(5000, exploration=0.25, draws=20),
    ),
)

# Table of hyper-parameters in Izmailov et al. (2021) for CIFAR-10; a trajectory has 70,248 leapfrog steps.
_CIFAR10 = Problem(
    "cifar10",
    40_960,
    HMC(chains=3, steps=290, burn_in=50, step_size=1e-5, accept_in_burn_in=True),
    prior_scale=0.2**0.5,
    network="resnet20_frn",
    label="CIFAR-10",
)
_EPOCH = 512  # steps of 80 rows

PAPER = Recipe(
    digits=_CIFAR10,
    noisy=None,
    mnist=None,
    ensemble=MAP(members=50, epochs=500, batch_size=80, optimizer=SGD(lr=3e-7 * 40_960, momentum=0.9)),
    sgld=SGLD(
        chains=1,
        steps=10_000 * _EPOCH,
        burn_in=1000 * _EPOCH,
        thin=10 * _EPOCH,
        step_size=1e-6,
        batch_size=80,
    ),
    sghmc=SGHMC(
        chains=1, steps=10_000 * _EPOCH, burn_in=1000 * _EPOCH, thin=10 * _EPOCH, step_size=3e-7, batch_size=80
    ),
    cyclical=SGHMC(
        chains=1,
        steps=10_000 * _EPOCH,
        burn_in=1000 * _EPOCH,
        step_size=3e-7,
        batch_size=80,
        momentum=0.95,
        schedule=Cycles(50 * _EPOCH, exploration=0.0),
    ),
)

EXPERIMENT = Experiment(
    name="hmc_reference",
    claim="The average over full-batch HMC predicts better than a single network, and SG-MCMC comes closer to it than "
    "a single network does, with a deep ensemble between them.",
    source="Izmailov, Vikram, Hoffman and Wilson 2021, What are Bayesian neural network posteriors really like?, "
    "sections 5 and 7",
    expected="On CIFAR-10 total variation from HMC falls from 0.190 (SGD) over 0.115 (deep ensemble) to 0.110, 0.109 "
    "and 0.099 (SGLD, SGHMC, cyclical SGHMC), one HMC chain being at 0.074, and NLL from 0.80 (SGD) to 0.31 (HMC).",
    differences="The small scale has perceptrons with 50 + 50 hidden units on 1,000 images: digits of 8 x 8 pixels, "
    "the same with a fifth of all labels drawn at random, and MNIST averaged to 14 x 14. HMC adapts its step size. "
    "A single network is the mode under the same prior, found by Adam; the paper trains one by SGD with twice the "
    "weight precision. ECE has 15 bins of equal width. Variational inference is left out. With wider priors, tanh "
    "units or fewer units, HMC is less sure than it should be on data as clean as these, and its NLL is worse than a "
    "single network's.",
    recipes={"small": SMALL, "paper": PAPER},
    cost={
        "small": "a few minutes on 2 cores",
        "paper": "61 million passes over the data for HMC alone: years on one GPU (an estimate)",
    },
    run=run,
    summarise=summarise,
)
