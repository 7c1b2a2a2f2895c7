"""How HMC chains mix: in function space far better than in weight space (Izmailov et al. 2021, section 4).

R-hat compares the variance between chains with that within them, for every weight and for every test probability. The
units of a layer can change places without changing the function, so chains may predict alike whose weights differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchbayes.assess.diagnose import Diagnosis
from torchbayes.diagnostics import summary
from torchbayes.experiments.experiment import Experiment, Findings, as_json
from torchbayes.experiments.hmc_reference import run as hmc_reference
from torchbayes.experiments.shared.image_hmc import Problem, judged, known, mixing, named, run_hmc, set_up
from torchbayes.experiments.verdicts import Part, Verdict, below, mean_and_error
from torchbayes.methods import HMC
from torchbayes.native.seeds import Purpose, generator
from torchbayes.posteriors.files import read_json, write_whole
from torchbayes.report import Picture, Table, figures

SPACES = {"weights": "weights", "functions": "test probabilities"}

# CIFAR-10 in Izmailov et al. (2021): where the histograms of R-hat end, read off the figure.
PUBLISHED = {"weights": "mass near 1, tail to about 54", "functions": "nearly all below 1.1, tail to about 4"}


@dataclass(frozen=True)
class Recipe:
    """The problems, each with its chains.

    Attributes:
        digits: the small problem.
        noisy: the same with wrong labels among the right ones; None to leave it out.
        mnist: the larger problem; None to leave it out.
        narrow: the small problem with few hidden units and a wide prior, where each unit has work of its own and what
            it does is as good as fixed; None to leave it out.
    """

    digits: Problem
    noisy: Problem | None
    mnist: Problem | None
    narrow: Problem | None

    def problems(self) -> dict[str, Problem]:
        """Return the problems by the names they have in tables."""
        return named(self.narrow, self.digits, self.noisy, self.mnist)


def run(recipe: Recipe, seed: int, directory: Path) -> dict[str, Any]:
    """Run the chains of every problem and judge them in both spaces.

    Args:
        recipe: the settings.
        seed: of the training rows, the starts and the chains.
        directory: of this seed; problems that are done are read, chains that were interrupted go on.

    Returns:
        problem -> what `image_hmc.mixing` says; `counts`: space -> R-hat, rounded to 0.0001 -> how many quantities;
        `floor`: what is said of a space, for independent draws; and `traces` of the quantities that mix worst: `name`,
        `values` (M, S), `at` (S,) and `over`.
    """
    results = {}
    for number, (name, problem) in enumerate(recipe.problems().items()):
        home = directory / f"problem_{number}"
        path = home / "mixing.json"
        if not path.exists():
            home.mkdir(parents=True, exist_ok=True)
            setup = set_up(problem, seed)
            _, found = run_hmc(problem, setup, seed=seed, directory=home / "hmc")
            numbers = {"counts": {space: counts(found, space) for space in SPACES}, "traces": _traces(found)}
            floor = independent(found.chains, found.draws, seed)
            write_whole(path, as_json(mixing(found) | numbers | {"floor": floor}))
        results[name] = read_json(path)
    return results


def independent(chains: int, draws: int, seed: int, *, quantities: int = 2000) -> dict[str, float]:
    """Return what R-hat is of draws that are all independent: the best that chains of this length can show.

    Args:
        chains: M.
        draws: S.
        seed: of the draws.
        quantities: how many are simulated.

    Returns:
        What `image_hmc.mixing` says of a space.
    """
    values = torch.randn(chains, draws, quantities, generator=generator(Purpose.INDEPENDENT, seed))
    found = summary(values)
    return judged(found.rhat.numpy(), found.ess_bulk.numpy())


def counts(found: Diagnosis, space: str) -> dict[str, int]:
    """Return how many quantities of a space have each R-hat, rounded to 0.0001.

    Args:
        found: the diagnosis.
        space: "weights" or "functions".

    Returns:
        R-hat in text -> number of quantities, in rising order.
    """
    return dict(
        sorted(Counter(f"{rhat:.4f}" for rhat in known(found, space)[0]).items(), key=lambda pair: float(pair[0]))
    )


def spread_out(counted: Mapping[str, int]) -> np.ndarray:
    """Return the R-hats behind `counts`, rounded."""
    return np.repeat([float(rhat) for rhat in counted], list(counted.values()))


def _traces(found: Diagnosis) -> list[dict[str, Any]]:
    rounded = {"log density": 1}  # decimals: it is in the thousands
    return [
        {
            "name": trace.name,
            "values": np.round(trace.values_MS.numpy(), rounded.get(trace.name, 4)).tolist(),
            "at": trace.at_S.tolist(),
            "over": trace.over,
        }
        for trace in found.traces
    ]


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


_SHARED = hmc_reference.SMALL

SMALL = Recipe(
    _SHARED.digits,
    _SHARED.noisy,
    _SHARED.mnist,
    replace(
        _SHARED.digits,
        label="digits, narrow network",
        hidden=(10,),
        prior_scale=1.0,
        hmc=HMC(chains=4, steps=100, burn_in=30),
    ),
)

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
    recipes={"small": SMALL, "paper": Recipe(hmc_reference.PAPER.digits, None, None, None)},
    cost={
        "small": "a few minutes on 2 cores",
        "paper": "61 million passes over the data: years on one GPU (an estimate)",
    },
    run=run,
    summarise=summarise,
)
