"""Full-batch HMC on 160 MNIST images, the setting that comes with the code of Izmailov et al. (2021).

A proposal costs 50,000 gradients, so a chain has few iterations. It ends when they are made or its minutes are used up,
and which of them are burn-in is decided afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import torchbayes as tb
from torchbayes.driver.log import read_log
from torchbayes.driver.progress import progress_bar
from torchbayes.report import Picture, Table, figures
from torchbayes_experiments import Experiment, Findings, Headline, Part, Results, Rows, below, pivot, tidy
from torchbayes_experiments.shared.classifiers import mean_metrics, metrics_of
from torchbayes_experiments.tables import BETTER

METRICS = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE"}
NAMES = {"single": "single network (MAP)", "draw": "single draw of HMC", "average": "model average of HMC"}
DIGITS = {"accuracy": ".4f", "NLL": ".3f", "ECE": ".4f"}


@dataclass(frozen=True)
class MNISTChainRecipe:
    """Settings of the chains and of the single networks; the chain under the wide prior has the published ones."""

    data: str = "mnist"
    train_size: int = 160
    hidden: tuple[int, ...] = (256, 256)
    prior_scale: float = 1.0  # standard deviation of the normal prior
    step_size: float = 3e-5  # of a leapfrog step
    trajectory: float = 1.5  # length of a proposal, in units of the weights
    iterations: int = 100  # maximum number of iterations of the chain
    minutes: float = 20.0  # of sampling; the chain ends with the iteration in which they are used up
    burn_in: float = 0.2  # share of the iterations that were run, the first of them, that is left out
    # standard deviation of a second, narrower prior, under which a draw is not a hard classifier
    narrow_scale: float = 0.2
    narrow_step_size: float = 5e-4  # of a leapfrog step under it; a proposal is a quarter of the prior's period
    narrow_iterations: int = 100  # of the chain under it
    members: int = 3  # number of networks trained to the mode; their mean scores are those of a single network
    epochs: int = 500  # of their training, as `batch_size` and `lr`, of Adam
    batch_size: int = 80
    lr: float = 1e-3
    test_rows: int | None = None  # number of test images; None for all

    def chain(self) -> tb.HMC:
        """Return HMC with one chain that keeps every iteration."""
        step, length = self.step_size, self.trajectory
        return tb.HMC(1, self.iterations, 0, step_size=step, trajectory=length, max_leapfrogs=math.ceil(length / step))

    def single(self) -> tb.MAP:
        return tb.MAP(self.members, self.epochs, self.batch_size, tb.Adam(self.lr))


def run(recipe: MNISTChainRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Return the chain and its scores (see `_scored`), and as `narrow` the same under the narrower prior.

    An interrupted run continues until the minutes of sampling, summed over all calls, are used up. The images are the
    same for every seed.
    """
    data = tb.data.load(recipe.data, train_size=recipe.train_size)
    network = tb.networks.mlp(data.input_shape, data.num_classes, hidden=recipe.hidden)
    wide, narrow = (
        tb.Model(network, tb.likelihoods.Categorical(), tb.priors.Normal(scale))
        for scale in (recipe.prior_scale, recipe.narrow_scale)
    )
    home = directory / "hmc"
    method, done = recipe.chain(), len(read_log(home))

    def time_is_up(_event: tb.Event | None = None) -> bool:
        return sum(record["seconds"] for record in read_log(home)) >= 60 * recipe.minutes

    fit = partial(tb.fit, seed=seed, resume=True)
    with progress_bar(method, done, recipe.iterations) as bar:
        steps = done if done and time_is_up() else None  # a chain whose time is used up gets no further iteration
        draws = fit(wide, data.train, method, directory=home, steps=steps, callbacks=(bar, time_is_up))
    results = _scored(recipe, draws, data, read_log(home), seed=seed)

    folder, chain = directory / "narrow", tb.HMC(1, recipe.narrow_iterations, 0, step_size=recipe.narrow_step_size)
    draws = fit(narrow, data.train, chain, directory=folder)
    return results | {"narrow": _scored(recipe, draws, data, read_log(folder), seed=seed)}


def _scored(
    recipe: MNISTChainRecipe, draws: tb.Posterior, data: tb.data.Data, log: Results, *, seed: int
) -> dict[str, Any]:
    """Return the log of a chain, and the scores of its draws, of their average and of networks at the mode.

    `chain`: what every iteration logged; `left_out`: number of iterations that are burn-in; `prior_mean`: mean of the
    log density under the prior; `each`: metric -> value of the draw of every iteration, alone; `running`: metric ->
    value of the average of the first draws after burn-in, by their number; `scores`: single, draw or average -> metric
    -> value.
    """
    left_out = min(int(recipe.burn_in * len(log)), len(log) - 1)
    inputs, targets = (tensor[: recipe.test_rows] for tensor in data.test)
    all_draws, last = tb.predict(draws, inputs), len(log)
    each = [metrics_of(all_draws, targets, [row]) for row in range(last)]
    running = [metrics_of(all_draws, targets, slice(left_out, stop)) for stop in range(left_out + 1, last + 1)]
    modes = tb.fit(draws.model, data.train, recipe.single(), seed=seed, callbacks=()).sample(recipe.members)
    alone = [metrics_of(tb.predict(tb.Point(draws.model, w[None]), inputs), targets) for w in modes]
    single, draw = mean_metrics(alone), mean_metrics(each[left_out:])
    logged = ("log_density", "log_likelihood", "acceptance", "seconds", "gradients")
    # E log p(w) = −Σ_d (½ + log σ_d √2π) of a normal prior
    prior_mean = -float((0.5 + draws.model.prior.stds().log() + 0.5 * math.log(2 * math.pi)).sum())
    return {
        "chain": {name: [float(np.ravel(record[name])[0]) for record in log] for name in logged},
        "left_out": left_out,
        "prior_mean": prior_mean,
        "each": {key: [of[key] for of in each] for key in METRICS},
        "running": {key: [of[key] for of in running] for key in METRICS},
        "scores": {"single": single, "draw": draw, "average": running[-1]},
    }


def summarise(results: Results) -> Findings:
    """The repeats are the seeds."""
    second = [result["narrow"] for result in results]
    scores, narrow = (tidy([r["scores"] for r in of], "method", "metric") for of in (results, second))
    return Findings.of(_parts(results, scores, narrow), _tables(results, scores, narrow), _pictures(results, second))


def _parts(results: Results, scores: Rows, narrow: Rows) -> Iterator[Part]:
    rejected = [1 - float(np.mean(_kept(result, "acceptance"))) for result in results]
    yield below("share of proposals that are rejected", rejected, 0.05)
    statement = "drift of the log density between the halves of the chain below 3 standard errors"
    drifts = [drift(_kept(result, "log_density")) for result in results]
    if np.isfinite(drifts).all():
        yield below(statement, drifts, 3.0)
    else:
        yield Part(statement, "inconclusive", "a chain has fewer than four iterations after burn-in")
    less = scores.less("method", "draw", "average", metric="accuracy")
    yield below("accuracy: single draw below model average", less)
    for rows, where in ((scores, ""), (narrow, " under the narrower prior")):
        less = rows.less("method", "average", "single", metric="nll")
        yield below(f"NLL{where}: model average below single network", less)


def _tables(results: Results, scores: Rows, narrow: Rows) -> Iterator[Table]:
    for rows, prior in ((scores, "Test images"), (narrow, "The same under the narrower prior")):
        yield pivot(
            rows.only(method=list(NAMES)),
            "method",
            "metric",
            keep=METRICS,
            labels=NAMES,
            digits=DIGITS,
            better=BETTER,
            caption=f"{prior}: mean over seeds ± standard error. A single network is the mean over networks trained to "
            "the mode of the same posterior, a single draw the mean over the kept places of the chain taken alone.",
        )
    yield _chain_table(results)
    # how the average's scores change with the number of draws
    most = min(len(result["running"]["nll"]) for result in results)
    frame = tidy([result["running"] for result in results], "metric", lists=("draws",)).frame
    counts = [*(2**power for power in range(most.bit_length())), most]
    yield pivot(
        Rows(frame.assign(draws=frame["draws"] + 1)).where(draws=counts),
        "draws",
        "metric",
        keep=METRICS,
        digits=DIGITS,
        caption="The average of the first kept draws, by their number; mean over seeds ± standard error.",
    )


def _chain_table(results: Results) -> Table:
    body = []
    for seed, result in enumerate(results):
        chain, kept = result["chain"], _kept(result, "log_density")
        drifts, seconds = drift(kept), sum(chain["seconds"])
        body.append([
            str(seed),
            len(chain["seconds"]),
            result["left_out"],
            seconds / 60,
            1e3 * seconds / sum(chain["gradients"]),
            float(np.mean(_kept(result, "acceptance"))),
            float(energy_errors(chain["acceptance"]).max()),
            (float(np.mean(kept)), float(np.std(kept, ddof=1))) if len(kept) > 1 else kept[0],
            drifts if math.isfinite(drifts) else None,
        ])
    formats = {"minutes": ".1f", "ms per leapfrog step": ".2f", "acceptance": ".4f", "largest energy error": ".4f"}
    formats |= {"log density": ".0f", "drift": ".2f"}
    return Table(
        ["seed", "iterations", "burn-in", *formats],
        body,
        "The chains. Acceptance: mean probability after burn-in; energy errors, in nats, where they are positive; log "
        "density: mean and standard deviation after burn-in; drift: how far its mean moves from the first half to the "
        "second, in standard errors.",
        formats=formats,
    )


def _kept(result: Mapping[str, Any], name: str) -> list[float]:
    """Return a logged value of the iterations after burn-in."""
    return result["chain"][name][result["left_out"] :]


def energy_errors(acceptance: Sequence[float]) -> np.ndarray:
    """Return the energy errors that acceptance probabilities imply: −log min(1, exp(−ΔH)) = max(ΔH, 0)."""
    return -np.log(np.maximum(acceptance, 1e-300))


def drift(log_density: Sequence[float]) -> float:
    """Return how far the mean moves from the first half of a chain to the second, in its standard errors.

    |m₂ − m₁| / (s √(1/n₁ + 1/n₂)), s² the pooled variance within the halves: of the order of one for independent
    draws of one distribution. Of an odd number the value in the middle is left out; fewer than four, which have no
    spread within halves, give infinity.
    """
    half = len(log_density) // 2
    if half < 2:
        return math.inf
    first, second = np.asarray(log_density[:half]), np.asarray(log_density[-half:])
    spread = math.sqrt((first.var(ddof=1) + second.var(ddof=1)) / 2)
    return float(abs(second.mean() - first.mean()) / (spread * math.sqrt(2 / half)))


def _pictures(results: Results, narrow: Results) -> Iterator[Picture]:
    yield _average_picture(results, "What the model average gains with every draw")
    yield _average_picture(narrow, "The same under the narrower prior")
    yield _chain_picture(results)


def _average_picture(results: Results, title: str) -> Picture:
    from matplotlib.ticker import LogLocator, NullFormatter

    most = min(len(result["running"]["nll"]) for result in results)
    runs: dict[str, list[dict[str, Any]]] = {
        NAMES[name]: [
            {"draws": count} | {metric: [r["scores"][name][metric] for r in results] for metric in METRICS}
            for count in (1, most)
        ]
        for name in ("single", "draw")
    }
    runs[NAMES["average"]] = [
        {"draws": count + 1} | {metric: [r["running"][metric][count] for r in results] for metric in METRICS}
        for count in range(most)
    ]
    figure = figures.training_curves(runs, ("nll", "accuracy"), x="draws")
    axes = figure.axes[0]
    axes.set_yscale("log")  # with plain numbers
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _position: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    return Picture(
        title,
        _counted(figure),
        "Test NLL (logarithmic) and accuracy of the average of the first kept draws of HMC against their number, "
        "beside a single draw and a network trained to the mode; thin lines are seeds.",
    )


def _counted(figure: Any) -> Any:
    """Return a figure with whole numbers on its horizontal axes."""
    from matplotlib.ticker import MaxNLocator

    for axes in figure.axes:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    return figure


def _chain_picture(results: Results) -> Picture:
    names = ("log density", "log likelihood", "energy error (nats)")
    runs = {}
    for seed, chain in enumerate(result["chain"] for result in results):
        columns = (chain["log_density"], chain["log_likelihood"], energy_errors(chain["acceptance"]))
        places = enumerate(zip(*columns, strict=True), 1)
        runs[f"seed {seed}"] = [{"iteration": at} | dict(zip(names, place, strict=True)) for at, place in places]
    ends = (1, max(len(result["chain"]["seconds"]) for result in results))
    prior = results[0]["prior_mean"]
    runs["mean of the prior's own log density"] = [{"iteration": at, names[0]: prior} for at in ends]
    return Picture(
        "Along the chains",
        _counted(figures.training_curves(runs, names, x="iteration")),
        "Log density and log likelihood of the training images after every iteration, burn-in included, and the energy "
        "error of the proposal where it is positive.",
    )


EXPERIMENT = Experiment(
    name="hmc_mnist",
    claim="Full-batch HMC with 50,000 leapfrog steps a proposal accepts nearly every proposal on a network of 270,000 "
    "weights, is stationary within a few iterations, and its model average has a lower NLL than a single network.",
    source="Izmailov, Vikram, Hoffman and Wilson 2021, What are Bayesian neural network posteriors really like?, with "
    "the MNIST setting of the code published with it",
    expected="The setting is published without results. From the paper's other data sets: stationary log densities "
    "after burn-in, and a model average better than a single draw and than SGD in accuracy and NLL.",
    differences="At scale small seven iterations of which the first is burn-in, not 100 of which 10 are; a Metropolis "
    "test in burn-in too. The 160 training images are drawn from all, and standardised with their own statistics. A "
    "second, narrower prior is ours: under the published one the logits of a draw are in the thousands, so that a draw "
    "is a hard classifier, its mistakes cost hundreds of nats, and an average of few draws is a vote.",
    recipes={
        "small": MNISTChainRecipe(iterations=7, minutes=60.0),
        "paper": MNISTChainRecipe(minutes=240.0, burn_in=0.1),
    },
    cost={
        "small": "a quarter of an hour of one core for a seed",
        "paper": "up to 100 iterations: three to four hours on 2 cores",
    },
    run=run,
    summarise=summarise,
    headline=Headline("test NLL under the published prior", ("NLL",), table="Test images"),
)
