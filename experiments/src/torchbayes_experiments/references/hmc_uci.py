"""UCI regression by full-batch HMC beside SGD and SGLD, as in Izmailov et al. (2021), section 6."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import torchbayes as tb
from torchbayes.report import Picture, Table, figures
from torchbayes_experiments import Experiment, Findings, Headline, Results, Rows, below, differences, dots, pivot, tidy
from torchbayes_experiments.shared.classifiers import mean_metrics
from torchbayes_experiments.shared.uci_splits import load_split, over_splits

METHODS = ("SGD", "SGLD", "HMC")
METRICS = {"log_likelihood": "log likelihood", "rmse": "RMSE"}
RHAT = 1.1  # bound, as in Izmailov et al. (2021)

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
class UCIChainsRecipe:
    """Settings of all methods.

    Tuples have one entry for each set, chosen on a fifth of the training rows of its first splits, never on test rows.
    """

    sets: tuple[str, ...] = ("yacht", "energy")  # keys of `PUBLISHED`
    # standard deviation of the normal prior of all weights, the same for every method
    prior_scale: tuple[float, ...] = (0.5, 0.3)
    lr: tuple[float, ...] = (0.01, 0.003)  # learning rate of SGD
    sgld_step: tuple[float, ...] = (1e-5, 1e-5)  # step size of SGLD
    splits: int = 10  # number of standard splits of each set, from the first on
    width: int = 50  # number of hidden units
    # of HMC and of SGLD, at most `members`; they start at networks trained by SGD, which shortens burn-in
    chains: int = 2
    steps: tuple[int, ...] = (320, 500)  # iterations of HMC on each set, burn-in included
    burn_in: int = 120  # of HMC; step sizes are adapted in it
    trajectory: float = 1.5  # of HMC, before jitter, in units of √mass times weights; masses are adapted in burn-in
    max_leapfrogs: int = 2000  # maximum number of steps of a trajectory
    target_acceptance: float = 0.9  # acceptance to which the step size is adapted
    # smallest noise variance, in squared units of standardised targets; without a floor, the noise of rows that are
    # fitted well shrinks until only tiny steps are accepted
    noise_floor: float = 1e-4
    sgld_steps: int = 40_000  # steps of SGLD, burn-in included
    sgld_draws: int = 100  # number of draws of each of its chains, from the second half of the steps
    members: int = 5  # number of networks trained by SGD; the mean of their scores is that of a single network
    epochs: int = 1000  # of SGD
    batch_size: int = 100  # rows per step of SGD and SGLD

    def hmc(self, steps: int) -> tb.HMC:
        """Return full-batch HMC, with step size and mass of each chain adapted in burn-in."""
        adapted = {"max_leapfrogs": self.max_leapfrogs, "target_acceptance": self.target_acceptance}
        return tb.HMC(
            self.chains, steps, self.burn_in, trajectory=self.trajectory, jitter=0.2, mass="diagonal", **adapted
        )

    def sgd(self, lr: float) -> tb.MAP:
        return tb.MAP(self.members, self.epochs, self.batch_size, tb.SGD(lr, momentum=0.9))

    def sgld(self, step_size: float) -> tb.SGLD:
        half = self.sgld_steps // 2
        thin = half // self.sgld_draws
        return tb.SGLD(self.chains, self.sgld_steps, half, thin, step_size=step_size, batch_size=self.batch_size)


def split_scores(recipe: UCIChainsRecipe, name: str, split: int, *, seed: int) -> dict[str, dict[str, Any]]:
    """Fit and score all methods on one split: method -> metric -> value, in the target's units.

    `SGD` is the mean over networks, each alone. Of `rhat` there is one value per test row.
    """
    data, scale = load_split(name, split)
    place = recipe.sets.index(name)
    network = tb.networks.mlp(data.input_shape, 2, hidden=(recipe.width,))
    noise = tb.likelihoods.HeteroscedasticGaussian(recipe.noise_floor)
    model = tb.Model(network, noise, tb.priors.Normal(recipe.prior_scale[place]))

    def score(posterior: tb.Posterior) -> dict[str, float]:
        metrics = tb.evaluate(posterior, data.test, target_scale=scale).metrics
        return {"log_likelihood": -metrics["nll"], "rmse": metrics["rmse"]}

    def sampled(method: tb.HMC | tb.SGLD) -> dict[str, Any]:
        records: list[dict[str, Any]] = []
        log = (lambda event: records.append(event.record),)
        posterior = tb.fit(model, data.train, method, start=weights_MD[: recipe.chains], seed=seed, callbacks=log)
        return score(posterior) | _health(tb.diagnose(posterior, data.test.inputs, log=records, burn_in=method.burn_in))

    weights_MD = tb.fit(model, data.train, recipe.sgd(recipe.lr[place]), seed=seed, callbacks=()).sample(recipe.members)
    alone = [score(tb.Point(model, weights_D[None])) for weights_D in weights_MD]
    return {
        "SGD": mean_metrics(alone),
        "SGLD": sampled(recipe.sgld(recipe.sgld_step[place])),
        "HMC": sampled(recipe.hmc(recipe.steps[place])),
    }


def _health(diagnosis: tb.Diagnosis) -> dict[str, Any]:
    """Return the diagnostics of the chains of one split."""
    means, record = diagnosis.spaces["means"], diagnosis.record
    health: dict[str, Any] = {
        "rhat": means.rhat.flatten().tolist(),
        "ess": float(means.ess_bulk.median()),
        "rhat_weights": float(diagnosis.spaces["weights"].rhat.median()),
    }
    if record is not None and record.acceptance_M is not None and record.divergences_M is not None:
        assert record.step_size_M is not None
        health["acceptance"] = float(record.acceptance_M.mean())
        health["divergences"] = int(record.divergences_M.sum())
        health["step_size"] = float(record.step_size_M.mean())
        health["leapfrogs"] = float((record.gradients_M + record.burn_in_gradients_M).sum())
    return health


def summarise(results: Results) -> Findings:
    """The repeats are the splits, of scores averaged over seeds: the methods of one split share its rows."""
    rows = tidy(results, "set", "method", "metric", lists=("split", "row")).only(method=METHODS)
    parts = []
    for name in results[0]:
        medians = np.mean([[np.median(rhats) for rhats in r[name]["HMC"]["rhat"]] for r in results], axis=0)
        # a chain that never moves has no R-hat, and counts as the worst
        medians, said = np.nan_to_num(medians, nan=1e6, posinf=1e6), "median R-hat of HMC's test predictions below"
        parts.append(below(f"{name}: {said} {RHAT}", medians, RHAT, precondition=True))
    for name in results[0]:
        scores = rows.where(set=name, metric="log_likelihood")
        parts += [
            below(f"{name}: log likelihood of {other} below that of HMC", scores.less("method", other, "HMC", "split"))
            for other in METHODS[:-1]
        ]
    return Findings.of(parts, _tables(rows, results), _pictures(rows, results))


def _tables(rows: Rows, results: Results) -> Iterator[Table]:
    """Yield each metric beside the paper's values, differences of methods, and the health of the chains."""
    for metric, label in METRICS.items():
        scores = rows.where(metric=metric)
        paper = {
            (name, method): PUBLISHED[name][metric][method] for name, method in scores.combinations("set", "method")
        }
        less = {at: scores.values("split", set=at[0], method=at[1]).mean() - value for at, value in paper.items()}
        yield pivot(
            scores,
            ("set", "method"),
            "metric",
            over="split",
            labels={metric: f"test {label}"},
            beside={"paper": lambda *at, of=paper: of[at], "difference": lambda *at, of=less: of[at]},
            caption=f"Test {label} in the target's units: mean over splits ± standard error; SGD is the mean "
            "over single networks. Paper: read off the bar plots of Izmailov et al. (2021), other splits.",
        )
    yield differences(
        rows.where(metric=list(METRICS)),
        [("HMC", other) for other in METHODS[:-1]],
        labels=METRICS,
        caption="Paired differences over splits with their 95 % t interval. HMC is better where the log likelihood's "
        "is above zero, and the RMSE's below.",
    )
    yield _health_table(results)


def _health_table(results: Results) -> Table:
    rows = []
    for name in results[0]:
        for method in ("SGLD", "HMC"):
            chains = [result[name][method] for result in results]
            rhats = _rhats(results, method, name)
            # NaN, of a chain that never moves, counts as above the bound
            numbers = [float(np.median(rhats)), f"{100 * (1 - np.mean(~(rhats <= RHAT))):.1f} %"]
            for key in ("rhat_weights", "ess", "acceptance", "divergences", "step_size", "leapfrogs"):
                values = [each[key] for each in chains] if key in chains[0] else None
                numbers.append(values and (int(np.sum(values)) if key == "divergences" else float(np.mean(values))))
            rows.append([name, method, *numbers])
    health = ["R-hat of weights", "effective draws", "acceptance", "divergences", "step size", "leapfrog steps"]
    return Table(
        ["set", "method", "R-hat", f"at most {RHAT}", *health],
        rows,
        "Health of the chains. R-hat: median over the means predicted at the test rows of all splits, and the share of "
        "them that is small; of the weights, the median; effective draws, the median over test rows of one split. "
        "Acceptance after burn-in, divergences of all splits, leapfrog steps of all chains of one split.",
        formats={"effective draws": ".0f", "step size": ".5f", "leapfrog steps": ",.0f"},
    )


def _rhats(results: Results, method: str, *names: str) -> np.ndarray:
    """Return R-hat at all test rows of some sets, of every split and seed."""
    splits = [split for result in results for name in names for split in result[name][method]["rhat"]]
    return np.array([rhat for split in splits for rhat in split], dtype=np.float64)


def _pictures(rows: Rows, results: Results) -> Iterator[Picture]:
    for metric, label in METRICS.items():
        yield dots(
            rows.where(metric=metric),
            label,
            title=f"Test {label} on UCI regression",
            published={
                name: {f"{method}, paper": (value, 0.0) for method, value in PUBLISHED[name][metric].items()}
                for name in results[0]
            },
            better="high" if metric == "log_likelihood" else None,
            caption=f"{label} in the target's units: mean over splits with two standard errors; hollow, the "
            "values of Izmailov et al. (2021), read off their bar plots.",
        )
    yield Picture(
        "Do the chains agree on what they predict?",
        figures.rhat_histogram({method: _rhats(results, method, *results[0]) for method in ("SGLD", "HMC")}),
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
    recipes={
        "small": UCIChainsRecipe(),
        "paper": UCIChainsRecipe(splits=20, chains=4, steps=(600, 600), burn_in=200, sgld_steps=200_000),
    },
    cost={
        "small": "about 45 minutes of one core for a seed",
        "paper": "about five hours of one core for a seed (an estimate); no gain from a GPU",
    },
    run=partial(over_splits, split_scores),
    summarise=summarise,
    headline=Headline("test log likelihood", ("test log likelihood",), published="paper"),
)
