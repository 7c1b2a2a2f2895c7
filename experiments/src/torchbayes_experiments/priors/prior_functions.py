"""What normal priors of several scales say of functions, and what posteriors under them predict.

Learning rate, epochs and the ends of the broad range were chosen with seed 1000, which is none of the seeds that are
run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

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
from torchbayes_experiments.files import significant
from torchbayes_experiments.shared.classifiers import classifier

PIXELS = "linear"  # the model whose correlations are those of the pixels
FLAT = 0.1  # share of the whole fall of the NLL by which it may change over the broad range
CORRELATIONS = {
    "within": "within a class",
    "between": "between classes",
    "nearest": "least lead of a class",
    "ratio": "ratio of 1 − ρ",
    "confidence": "confidence",
}
SCORES = {"nll": "test NLL", "accuracy": "test accuracy", "ece": "ECE", "train_nll": "training NLL"}


@dataclass(frozen=True)
class Drawn:
    """Functions drawn from priors, and the images at which they are compared."""

    network: str = "lenet"
    classes: tuple[int, ...] = (0, 1, 2, 4, 7)
    per_class: int = 200  # images of each class, the first of the training rows that a seed draws
    # standard deviations of the normal prior of every weight, in rising order
    scales: tuple[float, ...] = (0.02, 0.1, 1.0)
    draws: int = 100  # S, functions of each prior
    shown: int = 20  # images of each class in the picture


@dataclass(frozen=True)
class Fitted:
    """Posteriors by SWAG under priors of several scales."""

    network: str = "lenet"
    settings: tuple[tuple[str, Any], ...] = (("channels", (8, 16)), ("hidden", 64))  # of the network
    train_size: int | None = 4000  # N, training rows, drawn anew for each seed; None for all
    # standard deviations of the normal prior of every weight, in rising order
    scales: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
    # ends of the range of scales over which the NLL is expected to be about the same
    broad: tuple[float, float] = (0.1, 1.0)
    epochs: int = 30
    batch_size: int = 100
    optimizer: tb.SGD = tb.SGD(lr=0.02, momentum=0.9)  # noqa: RUF009  (frozen)
    draws: int = 20  # functions drawn from each posterior
    test_rows: int | None = 5000  # number of test images, the first of the test set; None for all

    def swag(self) -> tb.SWAG:
        return tb.SWAG(1, self.epochs, self.batch_size, self.optimizer, self.optimizer.lr, plan="native")


@dataclass(frozen=True)
class PriorRecipe:
    """Settings of both halves: functions of priors, and posteriors by scale."""

    data: str = "mnist"
    drawn: Drawn = Drawn()
    fitted: Fitted = Fitted()


def run(recipe: PriorRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Return `drawn`: what `correlations` returns, per scale and of the linear model; `fitted`: `scores`; `broad`."""
    drawn, fitted = recipe.drawn, recipe.fitted
    data = tb.data.load(recipe.data)
    images = chosen(data.train, drawn, seed=seed)
    compute = partial(correlations, drawn, images, outputs=data.num_classes, seed=seed)
    functions = [
        load_or_compute(directory / f"drawn_{network}_{scale:g}.json", compute, network=network, scale=scale)
        for network, scale in [*((drawn.network, scale) for scale in drawn.scales), (PIXELS, 1.0)]
    ]
    some = tb.data.load(recipe.data, train_size=fitted.train_size, seed=seed)
    scored = [
        load_or_compute(directory / f"fitted_{scale:g}.json", scores, fitted, some, scale=scale, seed=seed)
        for scale in fitted.scales
    ]
    return {"drawn": functions, "fitted": scored, "broad": list(fitted.broad)}


def _by_class(labels: torch.Tensor, classes: Sequence[int], count: int, skip: int = 0) -> torch.Tensor:
    """Return the places of some rows of each class, class after class, from that which `skip` of the class precede."""
    return torch.cat([torch.nonzero(labels == label).flatten().roll(-skip)[:count] for label in classes])


def chosen(rows: tb.data.Pair, recipe: Drawn, *, seed: int) -> tb.data.Pair:
    """Return images, class after class; number `seed · per_class` of a class comes first."""
    places = _by_class(rows.targets, recipe.classes, recipe.per_class, seed * recipe.per_class)
    return tb.data.Pair(rows.inputs[places], rows.targets[places])


def correlations(
    recipe: Drawn, images: tb.data.Pair, *, network: str, scale: float, outputs: int, seed: int
) -> dict[str, Any]:
    """Return correlations of functions drawn from one prior, beside `network` and `scale`.

    `classes`: the mean correlation of each two classes, (C, C); `within` and `between`: their means on and off the
    diagonal; `nearest`: the least, over classes, of the correlation within less the largest with another;
    `confidence`: mean probability of the likeliest class, of a function; `map`: correlations of the `shown` first
    images of each class; `labels` of these.
    """
    model = classifier(network, images.inputs.shape[1:], outputs, prior=tb.priors.Normal(scale))
    inputs = images.inputs.to(model.network.device)
    functions = tb.prior_predictive(model, inputs, draws=recipe.draws, seed=seed)
    table = functions.class_correlation(images.targets.to(inputs.device))
    within, other = table.diagonal(), ~torch.eye(len(table), dtype=torch.bool, device=table.device)
    few = _by_class(images.targets, recipe.classes, recipe.shown)
    return {
        "network": network,
        "scale": scale,
        "classes": significant(table),
        "within": float(within.mean()),
        "between": float(table[other].mean()),
        "nearest": float((within - torch.where(other, table, -1.0).amax(1)).min()),
        "confidence": float(functions.outputs_SBK.softmax(-1).amax(-1).mean()),
        "map": significant(functions.correlation[few][:, few]),
        "labels": images.targets[few].tolist(),
    }


def scores(recipe: Fitted, data: tb.data.Data, *, scale: float, seed: int) -> dict[str, float]:
    """Return `scale`, `nll`, `accuracy` and `ece` of the test rows, and `train_nll`, of SWAG under one prior."""
    prior, settings = tb.priors.Normal(scale), dict(recipe.settings)
    model = classifier(recipe.network, data.input_shape, data.num_classes, prior=prior, settings=settings)
    posterior = tb.fit(model, data.train, recipe.swag(), seed=seed, callbacks=())

    def metrics(inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
        return tb.evaluate(tb.predict(posterior, inputs, draws=recipe.draws, seed=seed), targets).metrics

    test = metrics(*(rows[: recipe.test_rows] for rows in data.test))
    train_nll = metrics(*data.train)["nll"]
    return {"scale": scale, **{key: test[key] for key in ("nll", "accuracy", "ece")}, "train_nll": train_nll}


def summarise(results: Results) -> Findings:
    drawn, first = tidy(map(_by_prior, results), "network", "α", "metric"), results[0]
    fitted = tidy([{each["scale"]: each for each in result["fitted"]} for result in results], "α", "metric")
    nets = drawn.where(network=[name for name in drawn.names("network") if name != PIXELS])
    parts = [*_alike(nets), *_broad(fitted, *first["broad"])]
    return Findings.of(parts, _tables(drawn, fitted), _pictures(first, nets, fitted))


def _tables(drawn: Rows, fitted: Rows) -> Iterator[Table]:
    yield pivot(
        drawn,
        ("network", "α"),
        "metric",
        keep=CORRELATIONS,
        caption="Mean correlation ρ of outputs over functions drawn from the prior; mean over seeds ± standard "
        "error. Least lead: the correlation within a class less its largest with another, of the class where this "
        "is least. Ratio: 1 − ρ within, over 1 − ρ between. Confidence: mean probability of the likeliest class, "
        "of a single function. The linear model has the cosines of the pixels.",
        digits={"α": "g"},
    )
    yield pivot(
        fitted,
        "α",
        "metric",
        keep=SCORES,
        caption="SWAG under N(0, α² I): mean over seeds ± standard error, NLL in nats.",
        better={"test NLL": "low", "test accuracy": "high", "ECE": "low"},
        digits={"α": "g"},
    )


def _by_prior(result: Mapping[str, Any]) -> dict[str, dict[float, Any]]:
    """Return network -> α -> correlations, with their ratio."""
    priors: dict[str, dict[float, Any]] = {}
    for prior in result["drawn"]:
        ratio = (1 - prior["within"]) / (1 - prior["between"])
        priors.setdefault(prior["network"], {})[prior["scale"]] = prior | {"ratio": ratio}
    return priors


def _alike(nets: Rows) -> Iterator[Part]:
    """Yield what is claimed of correlations: of every scale, and that they fall with it."""
    within, between, lead = (nets.where(metric=name).apart("α") for name in ("within", "between", "nearest"))
    for scale, ends in between.items():
        yield below(f"α = {scale:g}: correlation between classes below that within", ends - within[scale])
        yield below(f"α = {scale:g}: of every class, largest with another below that within", -lead[scale])
    change = between[max(between)] - between[min(between)]
    yield below("correlation between classes of the largest α below that of the smallest", change)


def _broad(fitted: Rows, low: float, high: float) -> Iterator[Part]:
    """Yield what is claimed of the NLL by scale."""
    by_scale = fitted.where(metric="nll").apart("α")
    nll, inside = np.stack([*by_scale.values()]), np.array([low <= scale <= high for scale in by_scale])
    fall, change = nll[0] - nll.min(0), nll[inside].max(0) - nll[inside].min(0)
    span = f"change of the NLL over α from {low:g} to {high:g}, share of its fall from the smallest α"
    yield below(f"NLL at α = {low:g} below that at the smallest α", by_scale[low] - nll[0])
    yield below(span, change / fall, FLAT)
    yield below("lowest NLL in that range below the lowest outside", nll[inside].min(0) - nll[~inside].min(0))


def _pictures(result: Mapping[str, Any], nets: Rows, fitted: Rows) -> Iterator[Picture]:
    def title(prior: Mapping[str, Any]) -> str:
        label = "LeNet" if prior["network"] == "lenet" else prior["network"]
        return "linear model (pixels)" if prior["network"] == PIXELS else f"{label}, α = {prior['scale']:g}"

    priors, labels = {title(prior): prior["map"] for prior in result["drawn"]}, result["drawn"][0]["labels"]
    yield Picture(
        "Which images a prior takes to be alike",
        figures.correlation_maps(priors, labels, label="correlation of logits over functions"),
        "Correlation of the logits at two images over functions drawn from the prior, images ordered by class; first "
        "seed. Lighter squares on the diagonal: images of one class are alike, before any label was seen.",
    )
    drawn = nets.stacked("metric", "α")
    curves = {CORRELATIONS[metric]: drawn[metric] for metric in ("within", "between")}
    yield Picture(
        "Correlations within and between classes",
        figures.measure_curves({"correlation of logits": curves}, [f"α = {scale:g}" for scale in nets.names("α")]),
        "Mean correlation of two images of one class, and of two classes, under each prior.",
    )
    scored, scales = fitted.stacked("metric", "α"), [f"{scale:g}" for scale in fitted.names("α")]
    panels = {
        "test NLL (nats), lower is better": {"SWAG": scored["nll"]},
        "test accuracy, higher is better": {"SWAG": scored["accuracy"]},
    }
    label = "α, standard deviation of the prior of each weight"
    yield Picture(
        "Predictions by the scale of the prior",
        figures.measure_curves(panels, scales, label=label),
        "Test scores of SWAG under N(0, α² I).",
    )


EXPERIMENT = Experiment(
    name="prior_functions",
    claim="Functions of LeNet under N(0, α² I) are more alike for two images of one class than of two, at every α from "
    "0.02 to 1; and the test NLL falls steeply as α grows from too small a value, and then changes little.",
    source="Wilson and Izmailov 2020, Bayesian deep learning and a probabilistic perspective of generalization, "
    "section 5 and its appendix",
    expected="Correlations within a class above those between classes for α = 0.02, 0.1 and 1, slightly lower for "
    "large α; an NLL of SWAG that falls sharply up to about 0.5 and is flat or slightly rises beyond (figures; no "
    "numbers).",
    differences="Correlations are means over the logits, where the paper has one logit. Beside them are those of a "
    "linear model, which are the cosines of the pixels. The small scale draws functions of the paper's LeNet at its "
    "1,000 images, and fits a LeNet of 8 and 16 filters to 4,000 images, so that the same α is a weaker prior in the "
    "paper, which has 60,000.",
    recipes={
        "small": PriorRecipe(),
        "paper": PriorRecipe(fitted=Fitted(settings=(), train_size=None, epochs=50, test_rows=None)),
    },
    cost={
        "small": "about a minute and a half of one core",
        "paper": "eight fits of 50 epochs of 60,000 images: about an hour on one GPU (an estimate); it has not been "
        "run",
    },
    run=run,
    summarise=summarise,
    headline=Headline("test NLL of SWAG, by the scale α of the prior", ("test NLL",), index=("α",)),
)
