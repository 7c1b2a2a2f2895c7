"""Bayesian model averages under a shift of the inputs, and the prior that has the covariance of these (EmpCov).

Izmailov, Nicholson, Lotfi and Wilson (2021): along directions in which the training inputs do not vary, the data say
nothing of the first layer's weights, and a posterior keeps its prior there, where a mode has zeros. Test inputs that do
vary along them are multiplied by weights that mean nothing. Here the weights are looked at as well: where some pixels
are dead by hand, those of their weights have the prior's standard deviation, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import torchbayes as tb
from torchbayes.data import Pair
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
from torchbayes_experiments.shared.classifiers import best_device, metrics_of
from torchbayes_experiments.streams import Purpose, generator

MODE, NORMAL, EMPCOV = "MAP", "HMC, normal prior", "HMC, EmpCov prior"
METHODS = (MODE, NORMAL, EMPCOV)
NOISE, DEAD = "noise in all pixels", "dead pixels come alive"

FAR = 0.1  # accuracy by which HMC is below MAP at the largest shift
MOST = 0.5  # share of that loss that is left
RIGHT = 0.05  # relative difference of the weights along no data from their prior


@dataclass(frozen=True)
class ShiftProblem:
    """Images, a perceptron, its priors, and how the test images are shifted."""

    data: str = "mnist"  # an image data set by name
    train_size: int | None = 1000  # N, rows drawn by the seed; None for all
    # pixels that are added to all images, 0 in training; noise comes to them alone. 0: noise in all pixels.
    dead: int = 0
    hidden: tuple[int, ...] = (100,)
    # σ of the normal prior of every weight; EmpCov has the same mean variance over the first layer
    prior_scale: float = 0.1
    jitter: float = 1e-4  # ε, the variance under EmpCov along directions without data
    # standard deviations of the noise in test images, in those of a pixel in training; the first is 0
    noise: tuple[float, ...] = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
    # chains, steps, burn_in: of HMC, whose steps include burn-in
    chains: int = 1
    steps: int = 120
    burn_in: int = 40
    # epochs, batch_size, lr: of MAP, by Adam
    epochs: int = 150
    batch_size: int = 100
    lr: float = 2e-3
    test_rows: int = 2000  # test images, the first of them

    def hmc(self) -> tb.HMC:
        """Return HMC with a quarter of a period of the normal prior as trajectory.

        Lengths vary by half of that: under EmpCov directions without data have shorter periods, of which a fixed length
        may be a multiple of one half, so that weights would change their signs alone.
        """
        return tb.HMC(self.chains, self.steps, self.burn_in, trajectory=self.prior_scale * math.pi / 2, jitter=0.5)


@dataclass(frozen=True)
class ShiftRecipe:
    """The two problems."""

    images: ShiftProblem = ShiftProblem()  # whose own pixels are noisy
    # with pixels that are dead in training
    dead: ShiftProblem = ShiftProblem("digits", 800, 40, (50,), 0.3, test_rows=900)


SMALL = ShiftRecipe()
_brief: Any = partial(replace, train_size=300, hidden=(20,), steps=60, burn_in=30, epochs=40)
QUICK = ShiftRecipe(_brief(SMALL.images, test_rows=500), _brief(SMALL.dead, test_rows=300))
_wide: Any = partial(replace, hidden=(256, 256), steps=100, burn_in=10)
PAPER = ShiftRecipe(_wide(SMALL.images, train_size=None, epochs=100, test_rows=10_000), _wide(SMALL.dead))


def run(recipe: ShiftRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Return shift -> method -> what `scored` returns; and shift -> `noise`, the levels."""
    results: dict[str, Any] = {}
    for number, (shift, problem) in enumerate({NOISE: recipe.images, DEAD: recipe.dead}.items()):
        train, test = rows(problem, seed=seed)
        results[shift] = {"noise": list(problem.noise)}
        for place, method in enumerate(METHODS):
            compute = partial(scored, problem, method, train, test=test, seed=seed)
            results[shift][method] = load_or_compute(directory / f"problem_{number}_{place}.json", compute)
    return results


def rows(problem: ShiftProblem, *, seed: int) -> tuple[Pair, Pair]:
    """Return training and test rows, flat; added pixels are the last ones, 0 in both."""
    data = tb.data.load(problem.data, train_size=problem.train_size, seed=seed)

    def flat(pair: Pair, count: int | None) -> Pair:
        inputs = pair.inputs[:count].flatten(1)
        inputs = torch.cat([inputs, inputs.new_zeros(len(inputs), problem.dead)], 1)
        return Pair(inputs.to(best_device()), pair.targets[:count].to(best_device()))

    return flat(data.train, None), flat(data.test, problem.test_rows)


def shifted(problem: ShiftProblem, inputs: Tensor, level: float, *, seed: int) -> Tensor:
    """Return inputs with noise in all pixels, or in the added ones alone; at all levels the same but for its size."""
    drawn = torch.randn(inputs.shape, generator=generator(Purpose.SHIFT, seed))
    if problem.dead:
        drawn[:, : -problem.dead] = 0
    return inputs + level * drawn.to(inputs)


def model_of(problem: ShiftProblem, method: str, train: Pair) -> tb.Model:
    size, classes = train.inputs.shape[1], int(train.targets.max()) + 1
    network = tb.networks.mlp((size,), classes, hidden=problem.hidden).to(best_device())
    prior: Any = tb.priors.Normal(problem.prior_scale)
    if method == EMPCOV:
        spread = float(train.inputs.double().square().mean().sqrt())
        first = tb.priors.EmpCov.of(train.inputs, scale=problem.prior_scale / spread, jitter=problem.jitter)
        prior = {next(iter(dict(network.named_parameters()))): first, "*": prior}
    return tb.Model(network, tb.likelihoods.Categorical(), prior)


def scored(problem: ShiftProblem, method: str, train: Pair, *, test: Pair, seed: int) -> dict[str, Any]:
    """Return metric -> values at all levels of noise, what `along_nothing` returns, and `problems` of the fit.

    `prior` is the standard deviation under the prior of what `along_nothing` measures.
    """
    mode = tb.MAP(1, problem.epochs, problem.batch_size, tb.Adam(problem.lr))
    settings = mode if method == MODE else problem.hmc()
    posterior = tb.fit(model_of(problem, method, train), train, settings, seed=seed, callbacks=())
    scores = [
        metrics_of(tb.predict(posterior, shifted(problem, test.inputs, level, seed=seed), seed=seed), test.targets)
        for level in problem.noise
    ]
    return {
        **{name: [score[name] for score in scores] for name in scores[0]},
        **along_nothing(posterior, train.inputs),
        "prior": problem.jitter**0.5 if method == EMPCOV else problem.prior_scale,
        "problems": list(posterior.problems),
    }


def along_nothing(posterior: tb.Posterior, inputs: Tensor) -> dict[str, float]:
    """Return the `directions` in which inputs do not vary, and root mean square `weights` of the first layer there."""
    flat = inputs.double().flatten(1)
    values, vectors = torch.linalg.eigh(flat.T @ flat)
    null = vectors[:, values < 1e-9 * values[-1]]
    layout = posterior.model.layout
    weights = layout.split(posterior.sample(posterior.default_draws))[layout.names[0]]
    return {"weights": float((weights.double() @ null).square().mean().sqrt()), "directions": null.shape[1]}


def summarise(results: Results) -> Findings:
    numbers = tidy(results, "shift", "method", "metric", lists=("level",))
    noise = {shift: result["noise"] for shift, result in results[0].items()}
    parts = [part for shift in noise for part in _parts(numbers.where(shift=shift), shift)]
    return Findings.of(parts, _tables(numbers, noise), _pictures(numbers, noise[NOISE]))


def _pictures(numbers: Rows, noise: Sequence[float]) -> Iterator[Picture]:
    panels = {
        f"{score}\n{shift}": numbers.where(shift=shift, metric=metric).stacked("method", "level")
        for metric, score in (("accuracy", "test accuracy"), ("nll", "test NLL (nats)"))
        for shift in (NOISE, DEAD)
    }
    percent, label = [name for name in panels if "accuracy" in name], "standard deviation of the noise"
    yield Picture(
        "Model averages under a shift of the inputs",
        figures.measure_curves(panels, noise, label=label, percent=percent),
        "Test accuracy and NLL against the size of the noise. Left: Gaussian noise in all pixels of MNIST. Right: "
        "digits with 40 further pixels that are 0 in training, and noise in these alone.",
    )


def _parts(numbers: Rows, shift: str) -> Iterator[Part]:
    accuracy = numbers.where(metric="accuracy").stacked("method", "level")
    clean, last = ({method: values[level] for method, values in accuracy.items()} for level in (0, -1))
    lost, left = last[MODE] - last[NORMAL], last[MODE] - last[EMPCOV]
    yield below(f"{shift}: clean accuracy of HMC at most 0.02 below MAP", clean[MODE] - clean[NORMAL], 0.02)
    yield below(f"{shift}: HMC is more than {FAR} less accurate than MAP at the largest shift", -lost, -FAR)
    yield below(f"{shift}: with EmpCov it is less than half as far below MAP", left - MOST * lost)
    for method in (NORMAL, EMPCOV):
        size, prior = (numbers.values(method=method, metric=metric) for metric in ("weights", "prior"))
        off = np.abs(size / prior - 1)
        yield below(f"{shift}: {method}: weights along no data have the prior's size", off, RIGHT)


def _tables(numbers: Rows, noise: Mapping[str, Sequence[float]]) -> Iterator[Table]:
    for shift, levels in noise.items():
        yield pivot(
            numbers.where(shift=shift).only(metric=("accuracy", "nll")),
            ("metric", "method"),
            "level",
            heads=("score", "method"),
            labels={place: f"noise {level:g}" for place, level in enumerate(levels)},
            caption=f"{shift.capitalize()}: test scores by the standard deviation of the noise, mean over seeds ± "
            "standard error.",
        )

    def prior(shift: str, method: str) -> float | None:
        return None if method == MODE else numbers.values(shift=shift, method=method, metric="prior")[0]

    yield pivot(
        numbers,
        ("shift", "method"),
        "metric",
        keep=("directions", "weights"),
        labels={"weights": "size of the weights"},
        beside={"size under the prior": prior},
        caption="First-layer weights along the directions in which no training input varies: how many directions, root "
        "mean square of the weights, and their standard deviation under the prior.",
        digits={"directions": ".0f", "size of the weights": ".4f", "size under the prior": ".4f"},
    )


EXPERIMENT = Experiment(
    name="empcov_shift",
    claim="Under noise in the test inputs full-batch HMC with independent normal priors is far less accurate than MAP, "
    "though it is not on clean ones, because first-layer weights without data keep their prior; with the covariance of "
    "the inputs as that of these weights (EmpCov) it loses most of this.",
    source="Izmailov, Nicholson, Lotfi and Wilson 2021, Dangers of Bayesian model averaging under covariate shift",
    expected="On MNIST under Gaussian noise HMC with N(0, 1/100) collapses far below MAP, and EmpCov recovers most of "
    "it; on clean images HMC is at least as good as MAP. The paper's perceptron has 256 + 256 units and all images.",
    differences="The small scale has 1,000 images and 100 units. The covariance is that of the stated prior, α Σ + "
    "ε I; the published code has a precision in its place. α is such that the mean variance of the weights is that of "
    "the other prior. Added are digits with pixels that are dead in training and come alive in the test, and the size "
    "of the weights along directions without data.",
    recipes={"quick": QUICK, "small": SMALL, "paper": PAPER},
    cost={
        "quick": "ten to fifteen seconds of one core",
        "small": "80 seconds of one core",
        "paper": "HMC on 60,000 images: about a day on one GPU (an estimate); it has not been run",
    },
    run=run,
    summarise=summarise,
    headline=Headline("accuracy on MNIST under the largest noise", ("noise 3",), where=("accuracy",)),
)
