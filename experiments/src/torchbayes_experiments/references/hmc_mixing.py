"""How HMC chains mix: in function space far better than in weight space (Izmailov et al. 2021, section 4).

R-hat compares the variance between chains with that within them, for every weight and for every test probability. The
units of a layer can be permuted without changing the function, so chains with different weights may predict alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchbayes as tb
from torchbayes.diagnostics import summary
from torchbayes.report import Picture, Table, figures
from torchbayes_experiments import Experiment, Findings, Headline, Part, Results, Rows, below, pivot, tidy
from torchbayes_experiments.shared import image_hmc
from torchbayes_experiments.shared.image_hmc import SPACES, Problem, Problems, convergence, rhat_and_ess
from torchbayes_experiments.streams import Purpose, generator


@dataclass(frozen=True)
class MixingRecipe(Problems):
    """The problems, each with its chains."""

    # the small problem with few hidden units and a wide prior, where every unit has a distinct role that hardly changes
    # along a chain; None to leave it out
    narrow: Problem | None

    def problems(self) -> dict[str, Problem]:
        """Return the problems by their names in tables."""
        return image_hmc.by_label(self.narrow) | super().problems()


def run(recipe: MixingRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Return problem -> what `mixing` returns, with `counts`, `floor`, and `traces` of the quantities that mix worst.

    `counts`: space -> R-hat, rounded to 0.0001 -> number of quantities; `floor`: what `independent` returns; a trace
    has `name`, `values` (M, S), `at` (S,) and `over`.
    """

    def compute(problem: Problem, home: Path) -> dict[str, Any]:
        setup = image_hmc.set_up(problem, seed)
        _, diagnosis = image_hmc.run_hmc(problem, setup, seed=seed, directory=home / "hmc")
        traces = [
            {
                "name": trace.name,
                # the log density is in the thousands
                "values": np.round(trace.values_MS.numpy(), 1 if trace.name == "log density" else 4).tolist(),
                "at": trace.at_S.tolist(),
                "over": trace.over,
            }
            for trace in diagnosis.traces
        ]
        numbers = {"counts": {space: _counts(diagnosis, space) for space in SPACES}, "traces": traces}
        floor = independent(diagnosis.chains, diagnosis.draws, seed)
        return image_hmc.mixing(diagnosis) | numbers | {"floor": floor}

    return image_hmc.over_problems(recipe.problems(), compute, home=directory, file="mixing.json")


def independent(chains: int, draws: int, seed: int, *, quantities: int = 2000) -> dict[str, float]:
    """Return `convergence` of independent draws: the best that chains of this length can show."""
    simulated = summary(torch.randn(chains, draws, quantities, generator=generator(Purpose.INDEPENDENT, seed)))
    return convergence(simulated.rhat.numpy(), simulated.ess_bulk.numpy())


def _counts(diagnosis: tb.Diagnosis, space: str) -> dict[str, int]:
    """Return R-hat, rounded to 0.0001, as text -> number of quantities, in rising order."""
    counted = Counter(f"{rhat:.4f}" for rhat in rhat_and_ess(diagnosis, space)[0])
    return dict(sorted(counted.items(), key=lambda pair: float(pair[0])))


def summarise(results: Results) -> Findings:
    """The repeats are the seeds."""
    rows = tidy(results, "problem", "space", "metric")
    parts = [part for name in results[0] for part in _parts(name, rows.where(problem=name), results)]
    chains = image_hmc.chains_table(
        results,
        {"leapfrogs": "leapfrog steps", "step_size": "step size", "acceptance": "acceptance", "ebfmi": "E-BFMI"}
        | {"divergences": "divergences"},
        caption="The chains after burn-in: mean over seeds ± standard error, the sum for divergences.",
    )
    return Findings.of(parts, (_rhat_table(results, rows), chains), _pictures(results))


def _parts(name: str, rows: Rows, results: Results) -> Iterator[Part]:
    chains = [result[name] for result in results]
    diverged = [of["divergences"] / (of["chains"] * of["iterations"]) for of in chains]
    yield below(f"{name}: share of iterations that diverge below 1 %", diverged, 0.01, precondition=True)
    weights, functions = (1 - rows.values(space=space, metric="share") for space in SPACES)
    yield below(f"{name}: share of test probabilities with R-hat of 1.1 or more below 5 %", functions, 0.05)
    yield below(f"{name}: that share at most half of the weights'", functions - weights / 2)
    for metric, label in (("median", "median"), ("maximum", "maximal")):
        less = rows.where(metric=metric).less("space", "functions", "weights")
        yield below(f"{name}: {label} R-hat of probabilities below the weights'", less)


def _rhat_table(results: Results, rows: Rows) -> Table:
    columns = {"median": "median", "high": "95 % quantile", "maximum": "maximum", "share": "below 1.1", "ess": "ESS"}
    spaces: dict[Any, str] = {**SPACES, "floor": "independent draws"}
    return pivot(
        rows.only(space=list(spaces), problem=rows.names("problem")),
        ("problem", "space"),
        "metric",
        keep={"quantities": "quantities"} | columns,
        labels=spaces,
        beside={"quantities": lambda problem, space: results[0][problem][space]["quantities"]},
        digits={"below 1.1": ".4f", "ESS": ".0f"},
        # what Izmailov et al. (2021) saw is the range of the histograms in their figure
        caption="R-hat (rank-normalised, split) over all quantities of a space, and their median effective sample "
        "size: mean over seeds ± standard error. Independent draws, simulated, show what chains of this length can "
        "reach at best. On CIFAR-10 Izmailov et al. (2021) saw for weights: mass near 1, tail to about 54; for test "
        "probabilities: nearly all below 1.1, tail to about 4.",
    )


def _pictures(results: Results) -> Iterator[Picture]:
    caption = "Chains agree on what they predict sooner than on their weights. All seeds together."
    for name in results[0]:
        spaces = {
            label: np.concatenate([spread_out(result[name]["counts"][space]) for result in results])
            for space, label in SPACES.items()
        }
        yield Picture(f"R-hat in both spaces: {name}", figures.rhat_histogram(spaces), caption)
    name = next(iter(results[0]))
    traces = {trace["name"]: (trace["values"], trace["at"], trace["over"]) for trace in results[0][name]["traces"]}
    caption = "The log density, the weight of the largest R-hat and the probability of the largest Monte Carlo error."
    yield Picture(f"Chains of the first seed: {name}", figures.traces_and_ranks(traces), caption)


def spread_out(counts: Mapping[str, int]) -> np.ndarray:
    """Return the rounded R-hats behind `counts`."""
    return np.repeat([float(rhat) for rhat in counts], list(counts.values()))


EXPERIMENT = Experiment(
    name="hmc_mixing",
    claim="Chains of full-batch HMC mix far better in function space than in weight space.",
    source="Izmailov, Vikram, Hoffman and Wilson 2021, What are Bayesian neural network posteriors really like?, "
    "section 4",
    expected="R-hat of most test probabilities is below 1.1 and their tail is short, R-hat of weights has a long tail "
    "(to about 54 against about 4 on CIFAR-10, figure read by eye).",
    differences="The small scale has perceptrons on 1,000 digits or averaged MNIST images, more and shorter chains, "
    "adapted step sizes, and rank-normalised split R-hat, which is stricter than the paper's. With 50 + 50 "
    "units and a narrow prior the weights mix nearly as well as the functions, and a part may stay open "
    "because both shares are zero; the narrow network, 10 units and a wide prior, is where chains keep to "
    "their own arrangement of units.",
    recipes={
        "small": MixingRecipe(
            digits=image_hmc.DIGITS,
            noisy=image_hmc.NOISY_DIGITS,
            mnist=image_hmc.MNIST,
            narrow=replace(
                image_hmc.DIGITS,
                label="digits, narrow network",
                hidden=(10,),
                prior_scale=1.0,
                hmc=tb.HMC(chains=4, steps=100, burn_in=30),
            ),
        ),
        "paper": MixingRecipe(digits=image_hmc.CIFAR10, noisy=None, mnist=None, narrow=None),
    },
    cost={
        "small": "about two minutes of one core for a seed",
        "paper": "61 million passes over the data: years on one GPU (an estimate)",
    },
    run=run,
    summarise=summarise,
    headline=Headline("share of R-hats below 1.1", ("below 1.1",)),
)
