r"""At which temperature a posterior predicts best, with and without data augmentation.

The posterior at temperature T is proportional to (p(D|w) p(w))^(1/T). Where networks are trained with augmentation,
posteriors of T below 1 have been found to predict better ("cold posteriors"). Izmailov et al. (2021) find none with
full-batch HMC and no augmentation, and take augmentation as the cause: with k views of every image the log likelihood
of a row is the mean over its views, so that N rows count as N, though the views say more:

    log p_T(w|D) = [ (1/k) Σ_n Σ_v log p(y_n | f_w(x_nv)) + log N(w; 0, σ² I) ] / T + const

This is, without weights of rows, the joint density of k N rows at temperature k T under the prior N(0, σ²/k I):

    log p_T(w|D) = [ Σ_n Σ_v log p(y_n | f_w(x_nv)) + log N(w; 0, (σ²/k) I) ] / (k T) + const

the form that is sampled, since fast kernels run it. Trajectories of HMC, (π/2) σ √T, are the same in both.

All was chosen with seed 1000, which is none of the seeds that are run, on training images that it did not draw: the
scale of the prior by the NLL of HMC at T = 1 without augmentation, among 0.3, 0.6 and 1 (1 is 0.008 nats ahead of 0.6,
and takes twice the time); the shift; steps of SGHMC by how close it comes to HMC; and the bounds of the verdict.

Draws are many because their number favours low temperatures: the average of a few functions that differ much has a
higher NLL than that of all, by an amount that grows with T.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

import torchbayes as tb
from torchbayes.report import Picture, Table, figures
from torchbayes_experiments import (
    Experiment,
    Findings,
    Headline,
    Part,
    Results,
    Rows,
    below,
    load_or_compute,
    pivot,
    tidy,
)
from torchbayes_experiments.shared.classifiers import METRICS, best_device, classifier
from torchbayes_experiments.shared.image_hmc import convergence, rhat_and_ess

METHODS = FULL, CYCLICAL = "HMC", "cyclical SGHMC"
ROWS = PLAIN, VIEWS = "no augmentation", "augmentation"

LEVELS = ("data", "rows", "method")
RHAT = 1.1  # bound on the median R-hat of test probabilities of HMC, at the worst T
MARGINS = {"nll": 0.01, "accuracy": 0.005}  # a score that is less than this behind the best is near it
LABELS = {"nll": "NLL", "accuracy": "accuracy", "ece": "ECE", "few": "NLL"}

# IMDB without augmentation in Izmailov et al. (2021), read off a figure: T -> accuracy, NLL, ECE.
PUBLISHED = {
    0.03: (0.772, 0.47, 0.012),
    0.1: (0.797, 0.425, 0.012),
    0.3: (0.83, 0.378, 0.02),
    1.0: (0.866, 0.311, 0.034),
    3.0: (0.83, 0.42, 0.101),
    10.0: (0.672, 0.66, 0.133),
}


@dataclass(frozen=True)
class TemperatureProblem:
    """Images and their views, and a network."""

    data: str
    label: str  # its name in tables
    prior_scale: float  # σ of the normal prior of every weight at T = 1
    train_size: int = 300  # N, images drawn by the seed
    shift: int = 2  # pixels by which views are shifted
    pool: int = 4  # images and views are averaged over squares of this many pixels a side
    network: str = "mlp"
    hidden: tuple[int, ...] = (50,)  # widths of the hidden layers, for the network `mlp`
    test_rows: int | None = 5000  # test images, the first of them; None for all


@dataclass(frozen=True)
class TemperatureRecipe:
    """Settings of all problems."""

    problems: tuple[TemperatureProblem, ...]
    hmc: tb.HMC  # chains of HMC; by default a trajectory is (π/2) σ √T and the step size is adapted in burn-in
    temperatures: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0)  # T, in rising order, 1 among them
    chains: int = 8  # of SGHMC
    cycle: int = 200  # steps of a cycle of SGHMC, at whose end one draw is retained
    cycles: int = 35
    left_out: int = 5  # cycles, of `cycles`, before draws are retained
    lr: float = 0.03  # step size of SGHMC at the start of a cycle, times N
    momentum: float = 0.98
    batch_size: int = 100  # views per step of SGHMC
    few: int = 40  # draws, of all, whose average is scored beside that of all; a multiple of the chains

    def sghmc(self, rows: int) -> tb.SGHMC:
        """Return cyclical SGHMC for the log joint density of so many rows, each counted once."""
        steps = {"steps": self.cycle * self.cycles, "burn_in": self.cycle * self.left_out, "step_size": self.lr / rows}
        schedule = tb.Cycles(self.cycle, exploration=0.0)
        rule = {"batch_size": self.batch_size, "schedule": schedule, "momentum": self.momentum}
        return tb.SGHMC(self.chains, thin=1, **steps, **rule)


SMALL = TemperatureRecipe((TemperatureProblem("mnist", "MNIST", 0.6),), tb.HMC(chains=4, steps=90, burn_in=30))
QUICK = replace(
    SMALL,
    problems=tuple(replace(each, train_size=100, hidden=(20,), test_rows=2000) for each in SMALL.problems),
    temperatures=(0.1, 1.0, 3.0),
    hmc=tb.HMC(chains=2, steps=40, burn_in=20),
    cycle=100,
    cycles=25,
)
PAPER = replace(
    SMALL,
    problems=(TemperatureProblem("cifar10", "CIFAR-10", 0.2**0.5, 40_960, 4, 1, "resnet20_frn", test_rows=None),),
    hmc=tb.HMC(chains=3, steps=290, burn_in=50),
    cycle=25_000,
    few=48,
)


class ImageRows(NamedTuple):
    """Training images, or all `views` of each, and test images."""

    train: tb.data.Pair
    test: tb.data.Pair
    views: int


def run(recipe: TemperatureRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Return problem -> rows -> method -> what `numbers` returns at each T, and problem -> `temperatures`."""
    results: dict[str, Any] = {}
    for place, problem in enumerate(recipe.problems):
        results[problem.label] = {"temperatures": list(recipe.temperatures)}
        for side, name in enumerate(ROWS):
            rows = rows_of(problem, seed=seed, augmented=name == VIEWS)
            scored, stem = partial(numbers, recipe, problem, rows, seed=seed), f"problem_{place}_{side}"
            results[problem.label][name] = {
                method: [
                    load_or_compute(
                        directory / f"{stem}_{number}_T{heat:g}.json", scored, method=method, temperature=heat
                    )
                    for heat in recipe.temperatures
                ]
                for number, method in enumerate(METHODS)
            }
    return results


def rows_of(problem: TemperatureProblem, *, seed: int, augmented: bool) -> ImageRows:
    """Return training and test rows; all images come first, then all in the first shift, and so on."""
    data = tb.data.load(problem.data, train_size=problem.train_size, seed=seed)
    shown = views(data.train.inputs, problem.shift) if augmented else [data.train.inputs]

    def pair(inputs: torch.Tensor, targets: torch.Tensor) -> tb.data.Pair:
        return tb.data.Pair(pooled(inputs, problem.pool).to(best_device()), targets.to(best_device()))

    train = pair(torch.cat(shown), data.train.targets.repeat(len(shown)))
    return ImageRows(train, pair(*(rows[: problem.test_rows] for rows in data.test)), len(shown))


def views(images: torch.Tensor, shift: int) -> list[torch.Tensor]:
    """Return images (N, C, H, W), and the same shifted down, up, right and left, what enters of the least value."""
    height, width = images.shape[-2:]
    padded = F.pad(images, (shift,) * 4, value=float(images.min()))
    corners = ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))
    return [padded[..., a * shift : a * shift + height, b * shift : b * shift + width] for a, b in corners]


def pooled(images: torch.Tensor, pool: int) -> torch.Tensor:
    """Return images averaged over squares of `pool` pixels a side."""
    return F.avg_pool2d(images, pool) if pool > 1 else images


def model_of(problem: TemperatureProblem, rows: ImageRows, temperature: float) -> tb.Model:
    """Return the model of all views with the joint density of images with averaged views at T, but for a constant."""
    return classifier(
        problem.network,
        rows.train.inputs.shape[1:],
        int(rows.test.targets.max()) + 1,
        prior=tb.priors.Normal(problem.prior_scale / rows.views**0.5),
        hidden=problem.hidden,
        temperature=temperature * rows.views,
    )


def numbers(
    recipe: TemperatureRecipe,
    problem: TemperatureProblem,
    rows: ImageRows,
    *,
    method: str,
    temperature: float,
    seed: int,
) -> dict[str, Any]:
    """Return `METRICS` of an average, `few`: the NLL of few draws, and `functions`: convergence at 200 test rows."""
    sampler = recipe.hmc if method == FULL else recipe.sghmc(len(rows.train.targets))
    posterior = tb.fit(model_of(problem, rows, temperature), rows.train, sampler, seed=seed, callbacks=())
    metrics = tb.evaluate(posterior, rows.test).metrics
    health = convergence(*rhat_and_ess(tb.diagnose(posterior, rows.test.inputs[:200]), "functions"))
    few = tb.evaluate(posterior, rows.test, draws=recipe.few).metrics["nll"]
    return {**{key: metrics[key] for key in METRICS}, "few": few, "functions": health}


def summarise(results: Results) -> Findings:
    rows = tidy([{name: _by_heat(each) for name, each in r.items()} for r in results], *LEVELS, "T", "metric")
    parts = [part for problem in rows.names("data") for part in _parts(rows.where(data=problem), problem)]
    return Findings.of(parts, _tables(rows), _pictures(rows))


def _tables(rows: Rows) -> Iterator[Table]:
    heats = {heat: f"T = {heat:g}" for heat in rows.names("T")}
    for metric, label in LABELS.items():
        average = f"{label} of the average over {'few' if metric == 'few' else 'all'} draws"
        caption = f"Test {average} by temperature, mean over seeds ± standard error."
        yield pivot(rows.where(metric=metric), LEVELS, "T", labels=heats, caption=caption, digits=".4f")
    caption = "Health of the chains: median R-hat of the probabilities at 200 test rows, mean over seeds."
    yield pivot(rows.where(metric="rhat"), LEVELS, "T", over="metric", labels=heats, caption=caption)
    yield Table(
        ["T, as published", "accuracy", "NLL", "ECE"],
        [[f"{heat:g}", *scores] for heat, scores in PUBLISHED.items()],
        "For comparison: HMC on IMDB without augmentation in Izmailov et al. (2021), read off a figure.",
    )


def _by_heat(problem: Mapping[str, Any]) -> dict[str, Any]:
    """Return rows -> method -> T -> scores, with the median R-hat of predictions; one that is none counts as large."""

    def scores(each: Mapping[str, Any]) -> dict[str, Any]:
        return {**each, "rhat": float(np.nan_to_num(each["functions"]["median"], nan=1e6, posinf=1e6))}

    heats = problem["temperatures"]
    return {
        name: {method: dict(zip(heats, map(scores, problem[name][method]), strict=True)) for method in METHODS}
        for name in ROWS
    }


def _losses(rows: Rows, metric: str) -> np.ndarray:
    """Return scores at every T, (T, seeds), of which less is better: accuracies have their sign changed."""
    return (-1 if metric == "accuracy" else 1) * rows.where(metric=metric).stacked("metric", "T")[metric]


def _parts(rows: Rows, problem: str) -> Iterator[Part]:
    heats, rhats = np.array(rows.names("T")), rows.where(method=FULL, metric="rhat").stacked("rows", "T")
    worst = np.max([values.max(0) for values in rhats.values()], axis=0)
    yield below(f"{problem}: median R-hat of predictions of HMC, worst T", worst, RHAT, precondition=True)
    for method in METHODS:
        for metric, margin in MARGINS.items():
            plain, more = (_losses(rows.where(method=method, rows=name), metric) for name in ROWS)
            best, start = f"best {LABELS[metric]} below T = 1", f"{problem}, {method}"
            leads = [losses[heats < 1].min(0) - losses[heats == 1][0] for losses in (plain, more)]  # over T = 1
            cold = more[heats < 1].min(0) - more[heats >= 1].min(0)
            near = f"{start}, {PLAIN}: {LABELS[metric]} at T = 1 less than {margin} behind the best"
            yield below(near, plain[heats == 1][0] - plain.min(0), margin)
            yield below(f"{start}, {VIEWS}: {best} more than {margin} ahead", cold, -margin)
            yield below(f"{start}: lead of the {best}, larger with augmentation", leads[1] - leads[0])


def _pictures(rows: Rows) -> Iterator[Picture]:
    panels = {
        f"test {LABELS[metric]}, {problem}": {
            f"{method}, {name}": np.abs(_losses(rows.where(data=problem, rows=name, method=method), metric))
            for name in ROWS
            for method in METHODS
        }
        for metric in MARGINS
        for problem in rows.names("data")
    }
    heats = [f"{heat:g}" for heat in rows.names("T")]
    yield Picture(
        "Test scores by temperature",
        figures.measure_curves(panels, heats, label="temperature T", mark=("T = 1", "1")),
        "Test NLL and accuracy of the average over all draws at temperature T, with and without four shifted views of "
        "every training image. T = 1 is the Bayes posterior.",
    )


EXPERIMENT = Experiment(
    name="temperature",
    claim="Without data augmentation T = 1 is at or near the best temperature of a posterior; with augmentation a "
    "temperature below 1 is best.",
    source="Izmailov, Vikram, Hoffman and Wilson 2021, What are Bayesian neural network posteriors really like?, "
    "on cold posteriors",
    expected="On IMDB without augmentation accuracies of 0.797, 0.830, 0.866, 0.830 and 0.672 and NLLs of 0.425, "
    "0.378, 0.311, 0.420 and 0.660 at T = 0.1, 0.3, 1, 3 and 10 (read off a figure); with augmentation T < 1 ahead of "
    "T = 1.",
    differences="Perceptrons on 300 images of 7 × 7 pixels in the place of residual networks and texts; both sides "
    "of the comparison are sampled here. Augmentation is a fixed set of views, each image and four shifts of it, whose "
    "log likelihoods are averaged: the expectation that minibatches with random views estimate, which HMC can sample "
    "too. The noise of cyclical SGHMC is on during whole cycles.",
    recipes={"quick": QUICK, "small": SMALL, "paper": PAPER},
    cost={
        "quick": "a quarter of a minute of one core",
        "small": "two minutes of one core",
        "paper": "ten posteriors of 40,960 images by HMC, five of them with five views of each: many thousand hours on "
        "one GPU (an estimate); it has not been run",
    },
    run=run,
    summarise=summarise,
    headline=Headline(
        "test NLL of HMC",
        ("T = 0.03", "T = 0.1", "T = 0.3", "T = 1", "T = 3"),
        table="NLL of the average over all draws",
        where=("MNIST", "HMC"),
    ),
)
