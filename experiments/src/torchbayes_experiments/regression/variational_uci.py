"""The UCI regression table of variational methods: mean field, MC dropout and variational last layers, on 20 splits."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

import torchbayes as tb
from torchbayes.report import Table
from torchbayes_experiments import (
    Experiment,
    Findings,
    Headline,
    Part,
    Results,
    Rows,
    below,
    differences,
    dots,
    pivot,
    tidy,
)
from torchbayes_experiments.shared.classifiers import with_dropout
from torchbayes_experiments.shared.uci_splits import load_split, over_splits, score_table

METHODS = ("single", "mean field", "MC dropout", "VBLL")
METRICS = {"nll": "NLL", "rmse": "RMSE"}
MARGIN = 0.05  # nats: NLLs this close count as equally good

# NLL of MC dropout on each standard split: repository of Gal, yaringal/DropoutUncertaintyExps, UCI_Datasets/*/results,
# test_ll_100_xepochs_1_hidden_layers.txt (4,000 epochs; rate and precision chosen from a grid on every split)
_BY_SPLIT = """
boston 2.444 2.448 2.245 2.347 2.735 2.179 2.145 2.484 2.635 2.850
    2.608 2.163 2.300 2.386 2.240 2.225 2.382 2.376 2.374 2.474
concrete 3.050 2.930 2.792 2.925 3.092 2.830 3.029 2.987 2.869 2.976
    2.711 2.817 2.883 2.798 3.050 2.932 2.956 2.896 3.128 3.081
energy 1.174 1.210 1.176 1.210 1.221 1.202 1.186 1.205 1.245 1.192
    1.261 1.206 1.251 1.205 1.179 1.222 1.228 1.202 1.222 1.234
kin8nm -1.070 -1.136 -1.137 -1.140 -1.183 -1.108 -1.140 -1.155 -1.144 -1.088
    -1.159 -1.113 -1.129 -1.178 -1.107 -1.156 -1.170 -1.104 -1.143 -1.170
naval -4.418 -4.452 -4.457 -4.447 -4.446 -4.455 -4.432 -4.455 -4.454 -4.441
    -4.458 -4.455 -4.456 -4.449 -4.455 -4.443 -4.452 -4.455 -4.453 -4.459
power 2.847 2.753 2.779 2.801 2.897 2.866 2.810 2.772 2.804 2.812
    2.772 2.883 2.763 2.824 2.781 2.777 2.793 2.790 2.806 2.826
protein 2.874 2.867 2.874 2.875 2.867
wine 0.928 0.910 1.065 0.900 0.844 0.950 0.973 0.995 0.838 0.960
    0.920 0.964 1.014 0.923 0.907 0.831 0.924 0.876 0.907 0.934
yacht 1.311 1.202 1.139 1.248 1.222 1.220 1.171 1.385 1.184 1.159
    1.354 1.344 1.263 1.263 1.289 1.214 1.190 1.253 1.241 1.350
"""
DROPOUT_NLL = {
    name: tuple(map(float, numbers.split())) for name, numbers in re.findall(r"([a-z]\w+)([\s\d.-]+)", _BY_SPLIT)
}
# RMSE of the same run, mean over splits
DROPOUT_RMSE = dict(zip(DROPOUT_NLL, (2.90, 4.83, 0.54, 0.08, 0.00, 4.01, 4.27, 0.62, 0.67), strict=True))
# NLL of variational inference with independent weights: google/uncertainty-baselines, baselines/uci/README.md. One
# hidden layer of 50 units, one draw of the weights, one random split with 80 % of the rows for training
MEAN_FIELD_NLL = dict(zip(DROPOUT_NLL, (3.12, 3.22, 0.93, -1.03, -6.12, 2.85, 2.93, 1.00, 2.01), strict=True))
PUBLISHED: dict[str, dict[str, dict[str, float]]] = {
    name: {
        "mean field": {"nll": MEAN_FIELD_NLL[name]},
        "MC dropout": {"nll": sum(by_split) / len(by_split), "rmse": DROPOUT_RMSE[name]},
    }
    for name, by_split in DROPOUT_NLL.items()
}

_Method = TypeVar("_Method", bound=tb.MAP | tb.VI | tb.MCDropout | tb.VBLL)


@dataclass(frozen=True)
class VariationalUCIRecipe:
    """Settings of all sets.

    Lengths, learning rate and prior were compared on a fifth of the training rows of the first two splits of each set.
    The noise and the rate of dropout are chosen by the run itself, on every split, from its training rows.
    """

    single: tb.MAP  # one network, with which the others are compared, and whose errors on held-out rows are the noise
    mean_field: tb.VI
    dropout: tb.MCDropout
    last_layer: tb.VBLL
    rates: tuple[float, ...] = (0.005, 0.05)  # of dropout, among which held-out rows choose
    # of a single network's noise, among which held-out rows choose that of MC dropout
    shares: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2)
    sets: tuple[str, ...] = ("boston", "concrete", "energy", "yacht")  # keys of `PUBLISHED`
    splits: int = 20  # number of standard splits of each set, from the first on
    folds: int = 5  # parts of the training rows, each held out once for the noise, and the first for MC dropout
    epochs: int = 40  # least passes over the data, of all methods
    steps: int = 2600  # least steps, of a single network, last layers, and the fits that choose
    long_steps: int = 5000  # least steps of mean field and of MC dropout, whose gradients are noisier
    prior_scale: float = 0.5  # standard deviation of the normal prior, for standardised inputs and targets
    draws: int = 1000  # functions drawn of mean field and of MC dropout

    def lasting(self, method: _Method, rows: int, *, steps: int) -> _Method:
        """Return a method with the epochs that make so many steps, or those that it takes at least."""
        return replace(method, epochs=max(self.epochs, math.ceil(steps / math.ceil(rows / method.batch_size))))


_ADAM = tb.Adam(0.01)
SMALL = VariationalUCIRecipe(
    single=tb.MAP(batch_size=32, optimizer=_ADAM),
    mean_field=tb.VI(batch_size=32, optimizer=_ADAM, estimator="weights", draws=8, kl_weight=1.0),
    dropout=tb.MCDropout(batch_size=32, optimizer=_ADAM),
    last_layer=tb.VBLL(batch_size=32, optimizer=_ADAM, initial_scale=0.01, kl_weight=1.0),
)
PAPER = replace(SMALL, sets=tuple(PUBLISHED), long_steps=20_000)  # as published, MC dropout took 12,000 and more


def split_scores(recipe: VariationalUCIRecipe, name: str, split: int, *, seed: int) -> dict[str, dict[str, float]]:
    """Choose noise and rate of dropout on held-out training rows of one split, then fit and score every method.

    Beside the methods is "chosen" -> `noise`, `rate` and `dropout_noise`.
    """
    data, scale = load_split(name, split)
    width = 100 if name == "protein" else 50
    noise = noise_scale(recipe, data.train, width=width, seed=seed)
    rate, noise_of_draws = best_dropout(recipe, data.train, noise=noise, width=width, seed=seed)

    def scores(method: Any, *, noise: float = noise, rate: float = 0.0) -> dict[str, float]:
        short = method in (recipe.single, recipe.last_layer)
        steps, draws = (recipe.steps, None) if short else (recipe.long_steps, recipe.draws)
        lasting = recipe.lasting(method, len(data.train.inputs), steps=steps)
        posterior = fitted(recipe, lasting, data.train, noise=noise, width=width, seed=seed, rate=rate)
        metrics = tb.evaluate(posterior, data.test, draws=draws, target_scale=scale).metrics
        return {metric: metrics[metric] for metric in METRICS}

    return {
        "single": scores(recipe.single),
        "mean field": scores(recipe.mean_field),
        "MC dropout": scores(recipe.dropout, noise=noise_of_draws, rate=rate),
        "VBLL": scores(recipe.last_layer),
        "chosen": {"noise": noise * scale, "rate": rate, "dropout_noise": noise_of_draws * scale},
    }


def noise_scale(recipe: VariationalUCIRecipe, train: tb.data.Pair, *, width: int, seed: int) -> float:
    """Return the RMSE of single networks, each on a part of the training rows that it was not trained on.

    A noise learned from rows that a network was trained on is that of these rows, far too small for others where rows
    are few. This is the scale that is most probable for rows held out. The rows are in random order, as the standard
    splits have them.
    """
    errors = []
    for fold in range(recipe.folds):
        rest, held = parted(train, recipe.folds, fold)
        single = recipe.lasting(recipe.single, len(rest.inputs), steps=recipe.steps)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tb.ProblemWarning)  # that learned noise is too small is known, and not used
            network = fitted(recipe, single, rest, noise="learned", width=width, seed=seed)
            errors.append(tb.predict(network, held.inputs).mean - held.targets)
    return float(torch.cat(errors).double().square().mean().sqrt())


def best_dropout(
    recipe: VariationalUCIRecipe, train: tb.data.Pair, *, noise: float, width: int, seed: int
) -> tuple[float, float]:
    """Return rate and noise of MC dropout under which the first part of the training rows, held out, is most likely.

    The noise of draws is less than `noise`, that of a single network, as their spread is a part of the error. It is
    changed in the predictions alone: the network is trained once for each rate.
    """
    rest, held = parted(train, recipe.folds, 0)
    dropout = recipe.lasting(recipe.dropout, len(rest.inputs), steps=recipe.steps)
    nll: dict[tuple[float, float], float] = {}
    for rate in recipe.rates:
        posterior = fitted(recipe, dropout, rest, noise=noise, rate=rate, width=width, seed=seed)
        average = tb.predict(posterior, held.inputs, draws=recipe.draws)
        for share in recipe.shares:
            other = replace(average, likelihood=tb.likelihoods.Gaussian(share * noise))
            nll[rate, share * noise] = tb.evaluate(other, held.targets).metrics["nll"]
    return min(nll, key=nll.__getitem__)


def parted(rows: tb.data.Pair, folds: int, fold: int) -> tuple[tb.data.Pair, tb.data.Pair]:
    """Return the rows outside a fold, and every `folds`-th row, those of the fold."""
    is_held_N = torch.arange(len(rows.inputs)) % folds == fold
    rest, held = (tb.data.Pair(rows.inputs[which_N], rows.targets[which_N]) for which_N in (~is_held_N, is_held_N))
    return rest, held


def fitted(
    recipe: VariationalUCIRecipe, method: Any, rows: tb.data.Pair, *, noise: Any, width: int, seed: int, rate: float = 0
) -> tb.Posterior:
    """Fit one method, with dropout of the hidden units at a rate; `noise` is a number or "learned"."""
    likelihood, scale = tb.likelihoods.Gaussian(noise), recipe.prior_scale
    model = with_dropout(rows.inputs.shape[1:], 1, likelihood, hidden=(width,), rate=rate, prior_scale=scale)
    return tb.fit(model, rows, method, seed=seed, callbacks=())


def summarise(results: Results) -> Findings:
    """The repeats of the verdict are the splits, of scores averaged over seeds."""
    rows = tidy(results, "set", "method", "metric").only(method=METHODS, set=list(results[0]))
    nll = _with_published(rows.where(metric="nll"))
    pictures = (
        dots(
            rows.where(metric=metric),
            label,
            title=f"Test {label} of variational methods on UCI regression",
            published={
                name: {f"{m}, published": (p[metric], 0.0) for m, p in PUBLISHED[name].items() if metric in p}
                for name in results[0]
            },
            caption=f"{label} in the target's units: mean over splits with two standard errors; hollow, as published.",
        )
        for metric, label in METRICS.items()
    )
    parts = [part for name in results[0] for part in _parts(nll.where(set=name), name)]
    return Findings.of(parts, _tables(rows, nll, results), pictures)


def _with_published(nll: Rows) -> Rows:
    """Return rows with the published NLL of MC dropout on every split as one more method."""
    import pandas as pd

    frame = nll.frame[nll.frame["method"] == "MC dropout"]
    published = [DROPOUT_NLL[name][split] for name, split in zip(frame["set"], frame["split"], strict=True)]
    return Rows(pd.concat([nll.frame, frame.assign(method="as published", value=published)]))


def _parts(nll: Rows, name: str) -> Iterator[Part]:
    mark, within = MEAN_FIELD_NLL[name], f"within {MARGIN} of"
    mean_field = nll.values("split", method="mean field")
    yield below(f"{name}: NLL of mean field {within} the published {mark:g}", mean_field, mark + MARGIN)
    by_split = f"{name}: NLL of MC dropout {within} the published one of the same split"
    yield below(by_split, nll.less("method", "MC dropout", "as published", "split"), MARGIN)
    last_layer = f"{name}: NLL of VBLL {within} a single network's"
    yield below(last_layer, nll.less("method", "VBLL", "single", "split"), MARGIN)


def _tables(rows: Rows, nll: Rows, results: Results) -> Iterator[Table]:
    for metric, label in METRICS.items():
        published = {
            f"{method}, published": lambda name, of=metric, method=method: PUBLISHED[name][method].get(of)
            for method in ("mean field", "MC dropout")
        }
        digits = dict.fromkeys(published, ".2f")
        caption = f"Test {label} in the target's units: mean over splits ± standard error."
        yield score_table(rows, metric, label, beside=published, digits=digits, caption=caption)
    yield differences(
        nll,
        [*((method, "single") for method in METHODS[1:]), ("MC dropout", "as published")],
        index=("set",),
        labels={"mean": "NLL"},
        caption="Paired differences over splits with their 95 % t interval; below zero the first is better.",
    )
    chosen = tidy(results, "set", "method", "metric").where(method="chosen")

    def rates(name: str) -> str:
        values = chosen.where(set=name, metric="rate").frame["value"]
        return ", ".join(f"{rate:g} ({n})" for rate, n in zip(*np.unique(values, return_counts=True), strict=True))

    yield pivot(
        chosen,
        "set",
        "metric",
        over="split",
        keep=("noise", "dropout_noise"),
        heads=["chosen"],
        labels={"dropout_noise": "noise of MC dropout"},
        beside={"rates of dropout": rates},
        caption="What held-out training rows choose: the noise in the target's units, mean over splits ± standard "
        "error, and the rate of dropout, with the number of splits.",
    )


EXPERIMENT = Experiment(
    name="variational_uci",
    claim="Mean field and MC dropout of one-hidden-layer networks reach the test NLL that is published for them on UCI "
    "regression, and a variational last layer predicts no worse than the same network without one.",
    source="Hernández-Lobato and Adams 2015, Probabilistic backpropagation, for the protocol; Gal and Ghahramani 2016, "
    "Dropout as a Bayesian approximation, in the run of 2018 with a grid search on every split; mean field from the "
    "Uncertainty Baselines of Nado et al. 2021; Harrison, Willes and Snoek 2024, Variational Bayesian last layers",
    expected="NLL of MC dropout on boston, concrete, energy and yacht 2.40, 2.94, 1.21 and 1.25, and that of every "
    "split; of mean field 3.12, 3.22, 0.93 and 2.01.",
    differences="The noise is fixed, for each split, at the RMSE of single networks on held-out training rows. MC "
    "dropout chooses its rate and noise on such rows too, of two rates and seven shares of that noise, where it was "
    "published with four rates and three precisions, dropout of the inputs too, and 4,000 epochs and 10,000 draws in "
    "the place of 5,000 steps and 1,000. Adam with a falling learning rate, its settings one for all sets, compared on "
    "held-out training rows of the first splits, some of which are test rows of other splits. The whole divergence "
    "counts. The published mean field has learned noise and prior scales, another split (80 % of the rows) and one "
    "draw of the weights. VBLL was published with other splits too, so it is compared with a single network here.",
    recipes={"small": SMALL, "paper": PAPER},
    cost={
        "small": "four sets, 20 splits: 27 to 56 minutes of one core for a seed",
        "paper": "all nine sets: three hours of one core (an estimate); no gain from a GPU",
    },
    run=partial(over_splits, split_scores),
    summarise=summarise,
    headline=Headline("test NLL", ("MC dropout",), table="test NLL", published="MC dropout, published"),
)
