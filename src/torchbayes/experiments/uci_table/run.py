"""The UCI regression table: deep ensembles and MultiSWAG beside Lakshminarayanan et al. (2017), table 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchbayes.assess.evaluate import evaluate
from torchbayes.data import load
from torchbayes.driver import fit
from torchbayes.experiments.experiment import Experiment, Findings
from torchbayes.experiments.shared.uci_splits import over_splits
from torchbayes.experiments.verdicts import Verdict, below, interval, mean_and_error
from torchbayes.methods import MAP, SWAG, Adam
from torchbayes.model import Model
from torchbayes.model.likelihoods import HeteroscedasticGaussian
from torchbayes.model.priors.univariate import Normal, PriorRules
from torchbayes.posteriors import Functions
from torchbayes.predictive.average import Predictive, predict
from torchbayes.report import Picture, Table, figures

METHODS = ("single", "ensemble", "MultiSWAG")
METRICS = {"nll_gaussian": "NLL", "nll": "NLL of the mixture", "rmse": "RMSE"}

# Deep ensembles in table 1 of Lakshminarayanan et al. (2017): mean and standard deviation over the splits.
PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    "boston": {"rmse": (3.28, 1.00), "nll_gaussian": (2.41, 0.25)},
    "concrete": {"rmse": (6.03, 0.58), "nll_gaussian": (3.06, 0.18)},
    "energy": {"rmse": (2.09, 0.29), "nll_gaussian": (1.38, 0.22)},
    "kin8nm": {"rmse": (0.09, 0.00), "nll_gaussian": (-1.20, 0.02)},
    "naval": {"rmse": (0.00, 0.00), "nll_gaussian": (-5.63, 0.05)},
    "power": {"rmse": (4.11, 0.17), "nll_gaussian": (2.79, 0.04)},
    "protein": {"rmse": (4.71, 0.06), "nll_gaussian": (2.83, 0.02)},
    "wine": {"rmse": (0.64, 0.04), "nll_gaussian": (0.94, 0.12)},
    "yacht": {"rmse": (1.58, 0.48), "nll_gaussian": (1.18, 0.21)},
}
ROUNDING = 0.005  # what a number printed to two digits may hide


@dataclass(frozen=True)
class Recipe:
    """Settings of all sets, chosen on a fifth of the training rows of the first splits, never on their test rows.

    Attributes:
        sets: keys of `PUBLISHED`.
        splits: standard splits of each set, from the first on.
        members: M.
        prior_scale: standard deviation of the normal prior, for standardised inputs and targets.
        noise_scale: that of the noise head's weights: how far the noise may vary with the input. A network that may
            shrink its noise wherever it fits a training row well is far too sure of itself on sets of this size.
        epochs: passes over the data.
        batch_size: rows per step.
        lr: Adam's learning rate: cosine to 0 for the ensemble, piecewise linear to `averaging_lr` for MultiSWAG.
        averaging_lr: Adam's learning rate while SWAG collects.
        burn_in: share of the epochs before it does.
        rank: of SWAG's covariance.
        draws: functions drawn per member of MultiSWAG.
    """

    sets: tuple[str, ...] = ("boston", "concrete", "energy", "yacht")
    splits: int = 20
    members: int = 5
    prior_scale: float = 0.4
    noise_scale: float = 0.04
    epochs: int = 150
    batch_size: int = 100
    lr: float = 0.01
    averaging_lr: float = 0.003
    burn_in: float = 0.5
    rank: int = 20
    draws: int = 10

    def prior(self) -> PriorRules:
        """Return the prior; the bias of the noise head, the log of the noise variance where that is small, is wide."""
        normal = Normal(self.prior_scale)
        return {"noise.weight": Normal(self.noise_scale), "noise.bias": Normal(10.0), "*": normal}

    def ensemble(self) -> MAP:
        """Return the deep ensemble's method; the plan is set, so that rounding is the same everywhere."""
        return MAP(self.members, self.epochs, self.batch_size, Adam(self.lr), plan="vmap")

    def multiswag(self) -> SWAG:
        """Return MultiSWAG's method."""
        return SWAG(
            self.members,
            self.epochs,
            self.batch_size,
            Adam(self.lr),
            self.averaging_lr,
            self.burn_in,
            per_epoch=1,
            rank=self.rank,
            plan="vmap",
        )


class TwoHeads(nn.Module):
    """One hidden layer of ReLU units with a linear head for the mean and one for the noise.

    The function is that of a single layer with two outputs; two heads let each have a prior of its own.
    """

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.hidden, self.mean, self.noise = nn.Linear(features, width), nn.Linear(width, 1), nn.Linear(width, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return mean and raw variance, (B, 2), of inputs (B, features)."""
        hidden = torch.relu(self.hidden(inputs))
        return torch.cat([self.mean(hidden), self.noise(hidden)], dim=-1)


def run(recipe: Recipe, seed: int, directory: Path) -> dict[str, Any]:
    """Run every split of every set; each leaves a file, so that an interrupted run continues with the next.

    Args:
        recipe: the settings.
        seed: replicate: seed of initialisations, data orders and draws on every split.
        directory: of this seed.

    Returns:
        set -> method -> metric -> one value per split, in the target's units.
    """
    return over_splits(split_scores, recipe, sets=recipe.sets, splits=recipe.splits, seed=seed, directory=directory)


def split_scores(recipe: Recipe, name: str, split: int, *, seed: int) -> dict[str, dict[str, float]]:
    """Fit and score ensemble and MultiSWAG on one split.

    Args:
        recipe: the settings.
        name: key of `PUBLISHED`.
        split: which of its splits.
        seed: seed of the fits and draws.

    Returns:
        method -> metric -> value; `single` is the mean over the ensemble's members taken alone.
    """
    data = load(f"uci_{name}", split=split)
    network = TwoHeads(*data.input_shape, width=100 if name == "protein" else 50)
    model = Model(network, HeteroscedasticGaussian(), recipe.prior())
    assert data.target_standardise is not None
    scale = float(data.target_standardise.scale)

    def score(average: Predictive) -> dict[str, float]:
        found = evaluate(average, data.test.targets, target_scale=scale).metrics
        return {metric: found[metric] for metric in METRICS}

    def average(functions: Functions) -> Predictive:
        return predict(functions, data.test.inputs)

    ensemble = average(fit(model, data.train, recipe.ensemble(), seed=seed, callbacks=()).functions())
    swag = fit(model, data.train, recipe.multiswag(), seed=seed, callbacks=())
    alone = [score(replace(ensemble, outputs_SBK=ensemble.outputs_SBK[m : m + 1])) for m in range(recipe.members)]
    return {
        "single": {metric: float(np.mean([one[metric] for one in alone])) for metric in METRICS},
        "ensemble": score(ensemble),
        "MultiSWAG": score(average(swag.functions(recipe.members * recipe.draws, seed=seed))),
    }


def summarise(results: Sequence[dict[str, Any]]) -> Findings:
    """Turn the replicates' scores into verdict, tables and figures.

    The verdict compares means over the standard splits, the published statistic, and its repeats are the seeds: the
    bound already grants one standard deviation over splits. Tables and figures show the spread over splits, of scores
    averaged over seeds first.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    values = {
        name: {m: {k: np.mean([r[name][m][k] for r in results], axis=0) for k in METRICS} for m in METHODS}
        for name in results[0]
    }
    parts = [
        below(
            f"{name}: {METRICS[metric]} of {method} no worse than {mean:g} + {bar:g}",
            [np.mean(r[name][method][metric]) for r in results],
            mean + bar + ROUNDING,
        )
        for name in values
        for metric, (mean, bar) in PUBLISHED[name].items()
        for method in METHODS[1:]
    ]
    tables = (*(_table(values, metric) for metric in METRICS), _difference_table(values))
    return Findings(Verdict.of(parts), tables, tuple(_figure(values, metric) for metric in ("nll_gaussian", "rmse")))


Values = Mapping[str, Mapping[str, Mapping[str, np.ndarray]]]


def _table(values: Values, metric: str) -> Table:
    rows = []
    for name, methods in values.items():
        published = PUBLISHED[name].get(metric)
        rows.append([name, *(mean_and_error(methods[m][metric]) for m in METHODS), published])
    caption = (
        "Mean over splits ± standard error. A single network is the mean over the ensemble's members. Published: deep "
        "ensemble of Lakshminarayanan et al. (2017), ± the standard deviation over splits."
    )
    return Table(
        [f"test {METRICS[metric]}", *METHODS, "published"],
        rows,
        caption,
        formats=dict.fromkeys(METHODS, ".3f") | {"published": ".2f"},
    )


def _difference_table(values: Values) -> Table:
    """Return paired differences of MultiSWAG and the ensemble: splits differ far more than methods do."""
    rows = []
    for name, methods in values.items():
        for metric, label in METRICS.items():
            mean, low, high = interval(methods["MultiSWAG"][metric] - methods["ensemble"][metric])
            rows.append([name, label, mean, low, high])
    return Table(
        ["set", "metric", "MultiSWAG − ensemble", "from", "to"],
        rows,
        "Paired differences over splits with their 95 % t interval; below zero MultiSWAG is better.",
    )


def _figure(values: Values, metric: str) -> Picture:
    drawn = {name: {m: methods[m][metric] for m in METHODS} for name, methods in values.items()}
    published = {name: {"published ensemble": PUBLISHED[name][metric]} for name in values}
    return Picture(
        f"Test {METRICS[metric]} on UCI regression",
        figures.metric_dots(drawn, METRICS[metric], published=published),
        f"{METRICS[metric]} in the target's units: mean over splits with two standard errors; hollow, the published "
        "deep ensemble with the standard deviation over splits that it was published with.",
    )


EXPERIMENT = Experiment(
    name="uci_table",
    claim="Deep ensembles and MultiSWAG of one-hidden-layer networks reach the published test NLL and RMSE of deep "
    "ensembles on UCI regression.",
    source="Lakshminarayanan, Pritzel and Blundell 2017, Simple and scalable predictive uncertainty estimation using "
    "deep ensembles, table 1",
    expected="For each set, NLL (of the Gaussian with the average's two moments, as published) and RMSE no worse than "
    "the published mean plus its published standard deviation over splits, to the digits printed.",
    differences="A normal prior, narrower for what makes the noise depend on the input, and 150 epochs with a falling "
    "learning rate in the place of adversarial training and 40 epochs at a rate of 0.1. One setting for all sets, "
    "chosen on held-out training rows of the first splits, some of which are test rows of other splits.",
    recipes={
        "small": Recipe(),
        "paper": Recipe(sets=tuple(PUBLISHED)),
    },
    cost={
        "small": "four sets, 20 splits: a few minutes on 2 cores",
        "paper": "all nine sets: hours on 2 cores, most of them on protein, naval and power; no gain from a GPU",
    },
    run=run,
    summarise=summarise,
)
