"""HMC as the reference: how close cheaper methods come to the posterior (Izmailov et al. 2021, sections 5 and 7).

All methods share network, prior, likelihood and rows. The reference is the predictive distribution by full-batch HMC at
temperature 1. The other methods are judged on the test rows by how well they predict and by how close they come to the
reference: agreement, the share of equal decisions, and total variation, mean_i ½ Σ_c |p_ic − q_ic|. One chain of HMC
against the others is the ceiling: there the method is exact, and only the chains are short.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

import torchbayes as tb
from torchbayes.report import Picture, Table
from torchbayes_experiments import Experiment, Findings, Headline, Part, Results, Rows, below, dots, pivot, tidy
from torchbayes_experiments.shared import image_hmc
from torchbayes_experiments.shared.fidelity import PUBLISHED, closeness, log_probabilities, mixture, quality, scores
from torchbayes_experiments.shared.image_hmc import Problem, Problems, Setup
from torchbayes_experiments.tables import BETTER

STOCHASTIC = ("SGLD", "SGHMC", "cSGHMC")
OTHERS = ("single network", "deep ensemble", *STOCHASTIC)
# line of tables -> method, with all its chains or members together or the mean of each alone
LINES = {
    "HMC": ("HMC", "all"),
    "HMC, one chain": ("HMC", "one"),
    "single network": ("deep ensemble", "one"),
    "deep ensemble": ("deep ensemble", "all"),
    **{method: (method, "one") for method in STOCHASTIC},
    **{f"all {method}": (method, "all") for method in STOCHASTIC},
}
QUALITY = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE", "gap": "confidence − accuracy"}
CLOSENESS = {"agreement": "agreement with HMC", "total_variation": "TV from HMC"}
MARGIN = 0.01  # nats: NLLs this close count as equally good


@dataclass(frozen=True)
class ReferenceRecipe(Problems):
    """The problems, and the methods that are compared with HMC on each.

    All were chosen with seed 1000, which is none of the seeds that are run, on training rows left over by that seed.
    Step sizes and momentum of SG-MCMC are those whose chains came closest to HMC in total variation on these rows,
    among step sizes from 1e-6 to 4e-5. SGLD runs for the paper's 10,000 epochs. A first version had 4,000: its chains
    were further away, on these rows (0.028 instead of 0.020) and on the test rows of seed 0, which had been looked at
    by then.

    The prior, σ = 0.3, is the widest that is affordable: 0.5 needs twice the leapfrog steps. The result for NLL depends
    on the prior. On the left-over rows HMC tied with the single network at σ = 0.3, and was worse for networks of tanh
    units (σ from 0.15 to 1), for σ = 0.5, on whole MNIST images and with ten hidden units: there its average is
    under-confident. All problems share one setting. Temperatures are fitted on left-over training rows too.
    """

    ensemble: tb.MAP  # its members, each alone, are the single networks
    sgld: tb.SGLD
    sghmc: tb.SGHMC
    cyclical: tb.SGHMC  # SGHMC with a cyclical step size

    def methods(self) -> dict[str, tb.MAP | tb.SGLD | tb.SGHMC]:
        """Return the methods that are compared with HMC, by name."""
        return {"deep ensemble": self.ensemble, "SGLD": self.sgld, "SGHMC": self.sghmc, "cSGHMC": self.cyclical}


_sghmc = partial(tb.SGHMC, chains=2, burn_in=5000, step_size=4e-6, batch_size=100, momentum=0.98)
SMALL = ReferenceRecipe(
    digits=image_hmc.DIGITS,
    noisy=image_hmc.NOISY_DIGITS,
    mnist=image_hmc.MNIST,
    ensemble=tb.MAP(members=10, epochs=100, batch_size=100, optimizer=tb.Adam(0.005)),
    sgld=tb.SGLD(chains=2, steps=100_000, burn_in=10_000, thin=450, step_size=4e-5, batch_size=100),
    sghmc=_sghmc(steps=20_000, thin=100),
    cyclical=_sghmc(steps=40_000, thin=150, schedule=tb.Cycles(5000, exploration=0.25, draws=20)),
)
PAPER = ReferenceRecipe(
    digits=image_hmc.CIFAR10,
    noisy=None,
    mnist=None,
    ensemble=image_hmc.CIFAR10_ENSEMBLE,
    sgld=tb.SGLD(*image_hmc.CIFAR10_LENGTH, step_size=1e-6, batch_size=80),
    sghmc=tb.SGHMC(*image_hmc.CIFAR10_LENGTH, step_size=3e-7, batch_size=80),
    cyclical=image_hmc.CIFAR10_CYCLICAL,
)


def run(recipe: ReferenceRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Return problem -> `methods` (method -> all or one -> metric), `chains` (see `mixing`) and `passes` of methods.

    Passes over the data are those of all members or chains together.
    """

    def compute(problem: Problem, home: Path) -> dict[str, Any]:
        setup = image_hmc.set_up(problem, seed)
        hmc, diagnosis = image_hmc.run_hmc(problem, setup, seed=seed, directory=home / "hmc")
        methods = recipe.methods()
        others = image_hmc.fitted(methods, dict.fromkeys(methods, setup.model), setup.train, home=home, seed=seed)
        passes = {name: passes_of(method, len(setup.train.targets)) for name, method in methods.items()}
        if (record := diagnosis.record) is not None:
            passes = {"HMC": float((record.gradients_M + record.burn_in_gradients_M).sum())} | passes
        scores, chains = _scores({"HMC": hmc, **others}, setup), image_hmc.mixing(diagnosis)
        return {"methods": scores, "chains": chains, "passes": passes}

    return image_hmc.over_problems(recipe.problems(), compute, home=directory, file="scores.json")


def passes_of(method: tb.MAP | tb.SGLD | tb.SGHMC, rows: int) -> float:
    """Return the number of passes over the data that a method makes with all its members or chains."""
    if isinstance(method, tb.MAP):
        assert method.epochs is not None
        return float(method.members * method.epochs)
    return method.members * method.steps * min(1.0, (method.batch_size or rows) / rows)


def _scores(posteriors: Mapping[str, tb.Posterior], setup: Setup) -> dict[str, Any]:
    """Return the metrics of `quality`, `_scaled` and `closeness` of every method on the test rows."""
    predictions = {
        name: list(zip(*(log_probabilities(posterior, part.inputs) for part in (setup.test, setup.spare)), strict=True))
        for name, posterior in posteriors.items()
    }

    def mixed(some: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
        return tuple(map(mixture, zip(*some, strict=True)))

    def measured(log_probs: tuple[Tensor, Tensor], reference: tuple[Tensor, Tensor] | None) -> dict[str, float]:
        near = {} if reference is None else closeness(log_probs[0], reference[0])
        return quality(log_probs[0], setup.test.targets) | _scaled(*log_probs, setup) | near

    return scores(predictions, mixed=mixed, measured=measured)


def _scaled(test: Tensor, spare: Tensor, setup: Setup) -> dict[str, float]:
    """Return the temperature that spare rows ask for, above 1 if over-confident, and the test NLL after scaling by it.

    `nll_scaled` is that of softmax(log p / temperature).
    """
    floor = math.log(1e-30)  # a point mass may give a class probability zero
    temperature = tb.metrics.fit_temperature(spare.clamp_min(floor), setup.spare.targets.cpu())
    sharp = (test.clamp_min(floor) / temperature).log_softmax(-1)
    return {"temperature": temperature, "nll_scaled": quality(sharp, setup.test.targets)["nll"]}


def summarise(results: Results) -> Findings:
    """The repeats are the seeds. A line of a table is a method with all its chains or members, or the mean of each."""
    lines = [
        {
            name: {
                # all of HMC is compared with nothing
                line: {key: v for key, v in of["methods"][m][which].items() if line != "HMC" or key not in CLOSENESS}
                for line, (m, which) in LINES.items()
            }
            for name, of in result.items()
        }
        for result in results
    ]
    rows = tidy(lines, "problem", "method", "metric")
    parts = [part for name in rows.names("problem") for part in _parts(name, rows.where(problem=name), results)]
    return Findings.of(parts, _tables(rows, results), _pictures(rows))


def _parts(name: str, rows: Rows, results: Results) -> Iterator[Part]:
    nll, distance, agreement = (
        {line: rows.values(method=line, metric=metric) for line in LINES}
        for metric in ("nll", "total_variation", "agreement")
    )
    single, ensemble = distance["single network"], distance["deep ensemble"]
    sampled = [distance[method] for method in STOCHASTIC]
    disagreement = np.max([1 - agreement[method] for method in STOCHASTIC], axis=0) - (1 - agreement["single network"])
    rhat = np.array([1 - result[name]["chains"]["functions"]["share"] for result in results])
    best = np.min([nll[method] for method in OTHERS], axis=0)
    yield below(f"{name}: share of test probabilities with R-hat of 1.1 or more", rhat, 0.05, precondition=True)
    ceiling = f"{name}: TV of one HMC chain to the others below a single network's"
    yield below(ceiling, distance["HMC, one chain"] - single, precondition=True)
    yield below(f"{name}: NLL of HMC below a single network's", nll["HMC"] - nll["single network"])
    yield below(f"{name}: NLL of HMC within {MARGIN} of the best other", nll["HMC"] - best, MARGIN)
    farthest = np.max(sampled, axis=0) - single
    yield below(f"{name}: TV from HMC of every SG-MCMC chain below a single network's", farthest)
    yield below(f"{name}: agreement of every SG-MCMC chain above a single network's", disagreement)
    yield below(f"{name}: TV of the ensemble below a single network's", ensemble - single)
    yield below(f"{name}: TV of the best SG-MCMC chain below the ensemble's", np.min(sampled, axis=0) - ensemble)


def _tables(rows: Rows, results: Results) -> Iterator[Table]:
    columns = QUALITY | CLOSENESS
    for name in rows.names("problem"):
        yield pivot(
            rows.where(problem=name, method=["HMC", "HMC, one chain", *OTHERS]),
            "method",
            "metric",
            keep=columns,
            heads=[name],
            labels={"HMC": "HMC, all chains"} | {method: f"{method}, one chain" for method in STOCHASTIC},
            digits=".4f",
            better=BETTER,
            caption=f"{name}, test rows: mean over seeds ± standard error. Closeness of one HMC chain is to the "
            "average of the other chains, that of the rest to all of HMC. A single network is the mean over the "
            "ensemble's members.",
        )
    yield Table(
        ["as published", "accuracy, %", "agreement with HMC, %", "TV from HMC", "NLL ≈", "ECE ≈"],
        [[name, *row] for name, row in PUBLISHED.items()],
        "For comparison: ResNet-20 on CIFAR-10 in Izmailov et al. (2021), mean ± standard deviation of three runs; NLL "
        "and ECE are read off their bar plots. HMC: one chain against the other two.",
        formats={"accuracy, %": ".2f", "agreement with HMC, %": ".2f", "NLL ≈": ".2f"},
    )
    yield pivot(
        rows.where(method=["HMC", *OTHERS]),
        ("problem", "method"),
        "metric",
        keep=("nll", "nll_scaled", "temperature"),
        labels={"nll_scaled": "NLL after scaling"},
        digits={"NLL": ".4f", "NLL after scaling": ".4f", "temperature": ".2f"},
        caption="Is it the order of the classes that a method gets wrong, or only its confidence? The temperature by "
        "which log probabilities are divided was fitted on training rows that were not trained on. Below 1: not sure "
        "enough.",
    )
    yield from _sampler_tables(rows, results)


def _sampler_tables(rows: Rows, results: Results) -> Iterator[Table]:
    samplers = {f"all {method}": method for method in STOCHASTIC} | {"HMC": "HMC"}
    passes = tidy([{name: of["passes"] for name, of in result.items()} for result in results], "problem", "method")
    metrics = {"nll": "NLL", **CLOSENESS}
    yield pivot(
        rows.only(method=list(samplers), problem=rows.names("problem")),
        ("problem", "method"),
        "metric",
        keep=metrics,
        heads=("problem", "all chains of"),
        labels=samplers,
        beside={"passes over the data": lambda name, line: passes.values(problem=name, method=samplers[line]).mean()},
        digits=dict.fromkeys(metrics.values(), ".4f") | {"passes over the data": ",.0f"},
        caption="The samplers with all their chains together, and what they cost.",
    )
    yield image_hmc.chains_table(
        [{name: of["chains"] for name, of in result.items()} for result in results],
        {"leapfrogs": "leapfrog steps", "acceptance": "acceptance", "divergences": "divergences", "ebfmi": "E-BFMI"}
        | {"functions/share": "R-hat < 1.1: probabilities", "weights/share": "weights"},
        caption="The chains of HMC, after burn-in: mean over seeds ± standard error, the sum for divergences; shares "
        "of test probabilities and of weights with R-hat below 1.1.",
    )


def _pictures(rows: Rows) -> Iterator[Picture]:
    chain = (
        "For HMC, one chain against the average of the others, an estimate of the ceiling: its chain has fewer draws "
        "and its reference one chain less than the others have. One chain of each SG-MCMC method."
    )
    far = f"How far the test predictions are from those of HMC. {chain}"
    equal = f"How often the most probable class is that of HMC. {chain}"
    all_chains = "HMC with all its chains; one chain of each SG-MCMC method."
    sure = "Left of zero a method is less sure than it should be, right of it too sure."
    calibrated, one = "mean confidence − accuracy (zero is calibrated)", "HMC, one chain"
    for metric, title, label, caption, hmc, way in (
        ("total_variation", "Total variation from HMC", "total variation from HMC", far, one, "low"),
        ("agreement", "Agreement with HMC", "agreement with HMC", equal, one, "high"),
        ("nll", "NLL on test rows", "NLL", all_chains, "HMC", None),
        ("gap", "Confidence less accuracy", calibrated, sure, "HMC", None),
    ):
        shown, names = rows.where(metric=metric, method=[hmc, *OTHERS]), {hmc: "HMC"}
        yield dots(shown, label, title=title, panels="problem", over="seed", labels=names, better=way, caption=caption)


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
        "small": "five to nine minutes of one core for a seed",
        "paper": "61 million passes over the data for HMC alone: years on one GPU (an estimate)",
    },
    run=run,
    summarise=summarise,
    headline=Headline(
        "total variation from HMC, MNIST",
        ("TV from HMC",),
        table="MNIST",
        rows=("single network", "deep ensemble", *(f"{name}, one chain" for name in STOCHASTIC), "HMC, one chain"),
        published={
            "single network": (0.190, 0.005),
            "deep ensemble": 0.115,
            "SGLD, one chain": (0.110, 0.001),
            "SGHMC, one chain": (0.109, 0.001),
            "cSGHMC, one chain": (0.099, 0.006),
            "HMC, one chain": (0.074, 0.003),
        },
        source="published, ResNet-20 on CIFAR-10",
    ),
)
