"""UCI regression by full-batch HMC beside SGD and SGLD, as in Izmailov et al. (2021), section 6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torchbayes import networks
from torchbayes.assess.diagnose import Diagnosis, diagnose
from torchbayes.assess.evaluate import evaluate
from torchbayes.data import load
from torchbayes.driver import fit
from torchbayes.experiments.experiment import Experiment, Findings
from torchbayes.experiments.shared.uci_splits import over_splits
from torchbayes.experiments.verdicts import Part, Verdict, below, interval, mean_and_error
from torchbayes.methods import HMC, MAP, SGD, SGLD
from torchbayes.methods.sampler import Sampler
from torchbayes.model import Model
from torchbayes.model.likelihoods import HeteroscedasticGaussian
from torchbayes.model.priors.univariate import Normal
from torchbayes.posteriors import Draws, Point, Posterior
from torchbayes.report import Picture, Table, figures

METHODS = ("SGD", "SGLD", "HMC")
METRICS = {"log_likelihood": "log likelihood", "rmse": "RMSE"}
RHAT = 1.1  # the bound that Izmailov et al. (2021) look at

# Test values of Izmailov et al. (2021), read off bar plots, so to two digits at best.
PUBLISHED: dict[str, dict[str, dict[str, float]]] = {
    "yacht": {
        "log_likelihood": {"SGD": -2.9, "SGLD": -2.35, "HMC": 0.55},
        "rmse": {"SGD": 0.92, "SGLD": 1.63, "HMC": 0.65},
    },
    "energy": {
        "log_likelihood": {"SGD": -1.47, "SGLD": -2.15, "HMC": -1.07},
        "rmse": {"SGD": 0.86, "SGLD": 1.3, "HMC": 0.37},
    },
}


@dataclass(frozen=True)
class Recipe:
    """Settings of all methods.

    Tuples have one entry for each set, chosen on a fifth of the training rows of its first splits, never on test rows.

    Attributes:
        sets: keys of `PUBLISHED`.
        prior_scale: standard deviation of the normal prior of all weights, the same for every method.
        lr: learning rate of SGD.
        sgld_step: step size of SGLD.
        splits: standard splits of each set, from the first on.
        width: hidden units.
        chains: independent chains of HMC and of SGLD, at most `members`; they start at networks trained by SGD, where
            burn-in is short.
        steps: iterations of HMC, burn-in included.
        burn_in: of HMC; step sizes are adapted there.
        trajectory: of HMC, before jitter, in units of √mass times weights; masses are adapted in burn-in.
        max_leapfrogs: bound on the steps of a trajectory.
        target_acceptance: what the step size is adapted to.
        noise_floor: smallest noise variance, in squared units of standardised targets; with next to none the noise of
            rows that are fitted well shrinks until only tiny steps are accepted.
        sgld_steps: steps of SGLD, burn-in included.
        sgld_draws: draws kept of each of its chains, from the second half of the steps.
        members: networks trained by SGD; the mean of their scores stands for a single network.
        epochs: of SGD.
        batch_size: rows per step of SGD and SGLD.
    """

    sets: tuple[str, ...] = ("yacht", "energy")
    prior_scale: tuple[float, ...] = (0.5, 0.3)
    lr: tuple[float, ...] = (0.01, 0.003)
    sgld_step: tuple[float, ...] = (1e-5, 1e-5)
    splits: int = 5
    width: int = 50
    chains: int = 2
    steps: int = 320
    burn_in: int = 120
    trajectory: float = 1.5
    max_leapfrogs: int = 1500
    target_acceptance: float = 0.75
    noise_floor: float = 1e-4
    sgld_steps: int = 40_000
    sgld_draws: int = 100
    members: int = 5
    epochs: int = 1000
    batch_size: int = 100

    def hmc(self) -> HMC:
        """Return full-batch HMC, with step size and mass of each chain adapted in burn-in."""
        return HMC(
            self.chains,
            self.steps,
            self.burn_in,
            trajectory=self.trajectory,
            jitter=0.2,
            mass="diagonal",
            max_leapfrogs=self.max_leapfrogs,
            target_acceptance=self.target_acceptance,
        )

    def sgd(self, lr: float) -> MAP:
        """Return stochastic gradient descent to the mode, of several networks at once."""
        return MAP(self.members, self.epochs, self.batch_size, SGD(lr, momentum=0.9))

    def sgld(self, step_size: float) -> SGLD:
        """Return SGLD on minibatches."""
        half = self.sgld_steps // 2
        return SGLD(
            self.chains,
            self.sgld_steps,
            half,
            half // self.sgld_draws,
            step_size=step_size,
            batch_size=self.batch_size,
        )


def run(recipe: Recipe, seed: int, directory: Path) -> dict[str, Any]:
    """Run every split of every set; each leaves a file, so that an interrupted run continues with the next.

    Args:
        recipe: the settings.
        seed: replicate: seed of starts, data orders and noise on every split.
        directory: of this seed.

    Returns:
        set -> method -> metric -> one value per split; `rhat` holds one value for each test row of a split.
    """
    return over_splits(split_scores, recipe, sets=recipe.sets, splits=recipe.splits, seed=seed, directory=directory)


def split_scores(recipe: Recipe, name: str, split: int, *, seed: int) -> dict[str, dict[str, Any]]:
    """Fit and score all methods on one split.

    Args:
        recipe: the settings.
        name: one of its sets.
        split: which of its splits.
        seed: seed of the fits.

    Returns:
        method -> metric -> value, in the target's units. `SGD` is the mean over networks taken alone.
    """
    data = load(f"uci_{name}", split=split)
    place = recipe.sets.index(name)
    network = networks.mlp(data.input_shape, 2, hidden=(recipe.width,))
    model = Model(network, HeteroscedasticGaussian(recipe.noise_floor), Normal(recipe.prior_scale[place]))
    assert data.target_standardise is not None
    scale = float(data.target_standardise.scale)

    def score(posterior: Posterior) -> dict[str, float]:
        found = evaluate(posterior, data.test, target_scale=scale).metrics
        return {"log_likelihood": -found["nll"], "rmse": found["rmse"]}

    def sampled(method: Sampler) -> dict[str, Any]:
        records: list[dict[str, Any]] = []
        log = (lambda event: records.append(event.record),)
        posterior = fit(model, data.train, method, start=weights_MD[: recipe.chains], seed=seed, callbacks=log)
        assert isinstance(posterior, Draws)
        found = diagnose(posterior, data.test.inputs, log=records, burn_in=method.burn_in)
        return score(posterior) | _health(found)

    weights_MD = fit(model, data.train, recipe.sgd(recipe.lr[place]), seed=seed, callbacks=()).sample(recipe.members)
    alone = [score(Point(model, weights_D[None])) for weights_D in weights_MD]
    return {
        "SGD": {metric: float(np.mean([one[metric] for one in alone])) for metric in METRICS},
        "SGLD": sampled(recipe.sgld(recipe.sgld_step[place])),
        "HMC": sampled(recipe.hmc()),
    }


def _health(found: Diagnosis) -> dict[str, Any]:
    """Return what the diagnostics say of the chains of one split."""
    means, record = found.spaces["means"], found.record
    health: dict[str, Any] = {
        "rhat": means.rhat.flatten().tolist(),
        "ess": float(means.ess_bulk.median()),
        "rhat_weights": float(found.spaces["weights"].rhat.median()),
    }
    if record is not None and record.acceptance_M is not None and record.divergences_M is not None:
        assert record.step_size_M is not None
        health["acceptance"] = float(record.acceptance_M.mean())
        health["divergences"] = int(record.divergences_M.sum())
        health["step_size"] = float(record.step_size_M.mean())
        health["leapfrogs"] = float((record.gradients_M + record.burn_in_gradients_M).sum())
    return health


def summarise(results: Sequence[dict[str, Any]]) -> Findings:
    """Turn the replicates' scores into verdict, tables and figures.

    The repeats of the verdict are the splits, of scores averaged over seeds: the methods of one split share its rows.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    values = {
        name: {m: {k: np.mean([r[name][m][k] for r in results], axis=0) for k in METRICS} for m in METHODS}
        for name in results[0]
    }
    parts = [_mixed(results, name) for name in values]
    for name, methods in values.items():
        ours = methods["HMC"]["log_likelihood"]
        parts += [
            below(f"{name}: log likelihood of {other} below that of HMC", methods[other]["log_likelihood"] - ours)
            for other in METHODS[:-1]
        ]
    tables = (*(_table(values, metric) for metric in METRICS), _difference_table(values), _health_table(results))
    pictures = (*(_figure(values, metric) for metric in METRICS), _rhat_figure(results))
    return Findings(Verdict.of(parts), tables, pictures)


def _mixed(results: Sequence[dict[str, Any]], name: str) -> Part:
    """Return whether the chains of HMC agree on what they predict."""
    medians = np.mean([[np.median(rhats) for rhats in r[name]["HMC"]["rhat"]] for r in results], axis=0)
    # a chain that never moves has no R-hat, and is as bad as one can be
    medians = np.nan_to_num(medians, nan=1e6, posinf=1e6)
    return below(f"{name}: median R-hat of HMC's test predictions below {RHAT}", medians, RHAT, precondition=True)


def _share(rhats: Sequence[float]) -> float:
    """Return the share of R-hats above the bound; one that is not a number counts as above."""
    return float(np.mean(~(np.asarray(rhats, dtype=np.float64) <= RHAT)))


Values = Mapping[str, Mapping[str, Mapping[str, np.ndarray]]]


def _table(values: Values, metric: str) -> Table:
    """Return one metric of all methods with the paper's values and how far from them HMC is."""
    rows = []
    for name, methods in values.items():
        paper = PUBLISHED[name][metric]
        for method in METHODS:
            mean = float(methods[method][metric].mean())
            rows.append([name, method, mean_and_error(methods[method][metric]), paper[method], mean - paper[method]])
    caption = (
        f"Test {METRICS[metric]} in the target's units: mean over splits ± standard error; SGD is the mean over single "
        "networks. Paper: read off the bar plots of Izmailov et al. (2021), other splits."
    )
    return Table(["set", "method", f"test {METRICS[metric]}", "paper", "difference"], rows, caption)


def _difference_table(values: Values) -> Table:
    """Return paired differences of HMC and the others: splits differ far more than methods do."""
    rows = []
    for name, methods in values.items():
        for metric, label in METRICS.items():
            for other in METHODS[:-1]:
                mean, low, high = interval(methods["HMC"][metric] - methods[other][metric])
                rows.append([name, label, f"HMC − {other}", mean, low, high])
    return Table(
        ["set", "metric", "difference", "mean", "from", "to"],
        rows,
        "Paired differences over splits with their 95 % t interval. HMC is better where the log likelihood's is above "
        "zero, and the RMSE's below.",
    )


def _health_table(results: Sequence[dict[str, Any]]) -> Table:
    rows = []
    for name in results[0]:
        for method in ("SGLD", "HMC"):
            found = [result[name][method] for result in results]
            rhats = [rhat for one in found for split in one["rhat"] for rhat in split]

            def mean(key: str, found: Sequence[Mapping[str, Any]] = found) -> float | None:
                return float(np.mean([one[key] for one in found])) if key in found[0] else None

            divergences = int(np.sum([one["divergences"] for one in found])) if "divergences" in found[0] else None
            agreed = f"{100 * (1 - _share(rhats)):.1f} %"
            middle = float(np.median(rhats))
            numbers = [middle, agreed, mean("rhat_weights"), mean("ess"), mean("acceptance"), divergences]
            rows.append([name, method, *numbers, mean("step_size"), mean("leapfrogs")])
    return Table(
        [
            "set",
            "method",
            "R-hat",
            f"at most {RHAT}",
            "R-hat of weights",
            "effective draws",
            "acceptance",
            "divergences",
            "step size",
            "leapfrog steps",
        ],
        rows,
        "Health of the chains. R-hat: median over the means predicted at the test rows of all splits, and the share of "
        "them that is small; of the weights, the median; effective draws, the median over test rows of one split. "
        "Acceptance after burn-in, divergences of all splits, leapfrog steps of all chains of one split.",
        formats={"effective draws": ".0f", "step size": ".5f", "leapfrog steps": ",.0f"},
    )


def _figure(values: Values, metric: str) -> Picture:
    drawn = {name: {m: methods[m][metric] for m in METHODS} for name, methods in values.items()}
    published = {
        name: {f"{method}, paper": (value, 0.0) for method, value in PUBLISHED[name][metric].items()} for name in values
    }
    better = "high" if metric == "log_likelihood" else None
    return Picture(
        f"Test {METRICS[metric]} on UCI regression",
        figures.metric_dots(drawn, METRICS[metric], published=published, better=better),
        f"{METRICS[metric]} in the target's units: mean over splits with two standard errors; hollow, the values of "
        "Izmailov et al. (2021), read off their bar plots.",
    )


def _rhat_figure(results: Sequence[dict[str, Any]]) -> Picture:
    spaces = {
        method: np.array([
            v for r in results for scores in r.values() for split in scores[method]["rhat"] for v in split
        ])
        for method in ("SGLD", "HMC")
    }
    return Picture(
        "Do the chains agree on what they predict?",
        figures.rhat_histogram(spaces),
        "R-hat of the mean predicted at every test row of all sets, splits and seeds, over the chains of a split.",
    )


EXPERIMENT = Experiment(
    name="hmc_uci",
    claim="On UCI regression the model average of full-batch HMC has a higher test log likelihood than SGD and SGLD "
    "under the same prior.",
    source="Izmailov, Vikram, Hoffman and Wilson 2021, What are Bayesian neural network posteriors really like?",
    expected="For yacht and energy: log likelihood of HMC above those of SGD and SGLD on paired splits (the paper's "
    "figure; it prints no table).",
    differences="The standard splits in the place of the paper's random ones. The paper's priors, step sizes and "
    "lengths for these sets are not known: here they were chosen on held-out training rows of the first splits, some "
    "of which are test rows of other splits. The noise has a floor of one per cent of the targets' standard deviation, "
    "masses are adapted, and chains start at networks trained by SGD, so that they mix in minutes. SGD "
    "and SGLD take far fewer gradients than HMC.",
    recipes={"small": Recipe(), "paper": Recipe(splits=20, chains=4, steps=600, burn_in=200, sgld_steps=200_000)},
    cost={
        "small": "about five minutes on 2 cores",
        "paper": "about two hours on 2 cores (an estimate); no gain from a GPU",
    },
    run=run,
    summarise=summarise,
)
