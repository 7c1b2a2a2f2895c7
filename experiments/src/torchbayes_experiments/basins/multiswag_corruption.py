"""MultiSWAG under corruption: averaging within basins as well as over them (Wilson and Izmailov 2020, section 4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

import torchbayes as tb
from torchbayes.report import Picture, Table, figures
from torchbayes_experiments import Experiment, Findings, Headline, Results, Rows, below, pivot, tidy
from torchbayes_experiments.shared.classifiers import METRICS, classifier, mean_metrics, metrics_of
from torchbayes_experiments.tables import BETTER

METHODS = ("single", "SWAG", "ensemble", "MultiSWA", "MultiSWAG")
STRONG = [4, 5]  # severities


@dataclass(frozen=True)
class CorruptionRecipe:
    """Settings of both fits and of the evaluation."""

    data: str = "fashion_mnist"
    network: str = "lenet"
    train_size: int | None = None  # number of training rows, drawn with seed 0; None for all
    members: int = 5  # M, number of basins of the ensemble and of MultiSWAG
    # standard deviation of every weight's normal prior; s² = 1/(λN) for weight decay λ on N rows
    prior_scale: float = 0.2
    epochs: int = 8  # passes over the data, the same for both methods
    batch_size: int = 128
    # of both methods; the ensemble's rate falls to 1 % of lr, MultiSWAG's to `averaging_lr`
    optimizer: tb.SGD = tb.SGD(lr=0.05, momentum=0.9)  # noqa: RUF009  (frozen)
    averaging_lr: float = 0.02  # learning rate while SWAG collects
    burn_in: float = 0.5  # share of the epochs before SWAG collects
    per_epoch: int = 5  # snapshots per epoch
    rank: int = 20  # of SWAG's covariance
    draws: int = 6  # number of functions drawn per member of MultiSWAG
    test_rows: int | None = None  # number of test images of the clean evaluation; None for all
    corrupted_rows: int = 1000  # number of test images that are corrupted, the first of the test set
    corruptions: tuple[str, ...] = tuple(tb.data.CORRUPTIONS)
    # how the members are run; fixed, because a plan chosen by measurement may round differently in each run
    plan: str = "native"

    def ensemble(self) -> tb.MAP:
        return tb.MAP(self.members, self.epochs, self.batch_size, self.optimizer, tb.PiecewiseLinear(), self.plan)

    def multiswag(self) -> tb.SWAG:
        averaging = (self.averaging_lr, self.burn_in, self.per_epoch, self.rank)
        return tb.SWAG(self.members, self.epochs, self.batch_size, self.optimizer, *averaging, plan=self.plan)


def run(recipe: CorruptionRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Fit ensemble and MultiSWAG from the same seed, and score them on clean and on corrupted images.

    `clean`: method -> metric -> value; `corrupted`: corruption -> one such mapping per severity from 1 to 5. The
    corrupted images are the same for every seed.
    """
    data = tb.data.load(recipe.data, train_size=recipe.train_size)
    prior = tb.priors.Normal(recipe.prior_scale)
    model = classifier(recipe.network, data.input_shape, data.num_classes, prior=prior)
    ensemble = tb.fit(model, data.train, recipe.ensemble(), seed=seed, directory=directory / "ensemble", resume=True)
    swag = tb.fit(model, data.train, recipe.multiswag(), seed=seed, directory=directory / "multiswag", resume=True)
    assert isinstance(swag, tb.Gaussian)
    means = tb.Point(model, swag.mean_MD, buffers_M=swag.buffers_M, calibration=swag.calibration)
    functions = {
        "ensemble": ensemble.functions(),
        "MultiSWA": means.functions(),
        "MultiSWAG": swag.functions(recipe.members * recipe.draws, seed=seed),
    }

    def severities(name: str) -> list[dict[str, dict[str, float]]]:
        pairs = (tb.data.corrupt_data(data, name, severity, limit=recipe.corrupted_rows) for severity in range(1, 6))
        return [_scores(functions, inputs, targets, recipe.members) for inputs, targets in pairs]

    inputs, targets = (part[: recipe.test_rows] for part in data.test)
    return {
        "clean": _scores(functions, inputs, targets, recipe.members),
        "corrupted": {name: severities(name) for name in recipe.corruptions},
    }


def _scores(
    functions: Mapping[str, tb.Functions], inputs: Tensor, targets: Tensor, members: int
) -> dict[str, dict[str, float]]:
    """Return the metrics of every average, and their mean and standard deviation over its members alone."""
    scores = {}
    for name, drawn in functions.items():
        average = tb.predict(drawn, inputs.to(drawn.model.network.device))
        scores[name] = metrics_of(average, targets)
        if alone := {"ensemble": "single", "MultiSWAG": "SWAG"}.get(name):  # draw s is from member s mod M
            each = [metrics_of(average, targets, slice(m, None, members)) for m in range(members)]
            scores[alone] = mean_metrics(each)
            scores[alone] |= {f"{key}_std": float(np.std([metrics[key] for metrics in each])) for key in METRICS}
    return scores


def summarise(results: Results) -> Findings:
    """Severity 0 is that of clean images; numbers of a severity are means over corruptions."""
    seeds = [
        {"clean": {0: result["clean"]}} | {kind: dict(enumerate(s, 1)) for kind, s in result["corrupted"].items()}
        for result in results
    ]
    rows = tidy(seeds, "kind", "severity", "method", "metric").only(method=METHODS)
    nll, accuracy = rows.where(metric="nll"), rows.values(severity=0, method="single", metric="accuracy")
    clean, strong, at = nll.where(severity=0).apart("method"), nll.where(severity=STRONG), "at severities 4 and 5"
    parts = [
        below("the single network's error on clean images is at most 10 %", 1 - accuracy, 0.1, precondition=True),
        below("clean NLL: ensemble / single network below 0.9", clean["ensemble"] / clean["single"], 0.9),
        below(f"NLL {at}: ensemble below single network", strong.less("method", "ensemble", "single")),
        below(f"NLL {at}: MultiSWAG below ensemble", strong.less("method", "MultiSWAG", "ensemble")),
    ]
    pictures = (
        Picture(
            f"{label} under corruption",
            figures.severity_curves(rows.where(metric=metric).stacked("method", "severity"), label, over="seeds"),
            f"{label} on clean images and, averaged over corruptions, at severities 1 to 5.",
        )
        for metric, label in {"nll": "NLL", "accuracy": "Accuracy", "ece": "ECE"}.items()
    )
    return Findings.of(parts, _tables(rows.where(severity=0), nll), pictures)


def _tables(clean: Rows, nll: Rows) -> Iterator[Table]:
    def spread(method: str) -> float | None:
        spreads = clean.values(method=method, metric="nll_std")
        return float(np.mean(spreads)) if spreads.size else None

    severities = {severity: f"severity {severity}" for severity in range(1, 6)}
    yield pivot(
        clean,
        "method",
        "metric",
        keep=METRICS,
        beside={"spread of NLL": spread},
        better=BETTER,
        digits=dict.fromkeys(("accuracy", "NLL", "ECE", "spread of NLL"), ".4f"),
        caption="Clean test images: mean over seeds ± standard error. A single network is the mean over the ensemble's "
        "members taken alone, SWAG the mean over MultiSWAG's, and the spread their standard deviation; MultiSWA "
        "averages the means of MultiSWAG's Gaussians.",
    )
    corrupted = nll.only(severity=[*severities])
    caption = "NLL under corruption, mean over corruptions; mean over seeds ± standard error."
    yield pivot(corrupted, "method", "severity", labels=severities, better="low", caption=caption)
    pairs = [("ensemble", "single"), ("MultiSWAG", "ensemble"), ("MultiSWAG", "MultiSWA")]
    yield pivot(
        nll.minus("method", pairs),
        "severity",
        "method",
        heads=["images"],
        labels={0: "clean"} | severities,
        digits=".4f",
        caption="Paired differences of NLL, mean over corruptions; mean over seeds ± standard error. Below zero the "
        "first of the two is better.",
    )
    strong = nll.where(severity=STRONG)  # to show which corruptions order the means
    spaced = {kind: kind.replace("_", " ") for kind in strong.names("kind")}
    caption = "NLL of each corruption, mean over severities 4 and 5 and over seeds."
    yield pivot(strong, "kind", "method", over="metric", heads=["corruption"], labels=spaced, caption=caption)


EXPERIMENT = Experiment(
    name="multiswag_corruption",
    claim="Under strong corruption MultiSWAG has a lower NLL than a deep ensemble, and the ensemble a lower one than a "
    "single network.",
    source="Wilson and Izmailov 2020, Bayesian deep learning and a probabilistic perspective of generalization",
    expected="For PreResNet-20 on CIFAR-10-C: NLL of MultiSWAG ≤ MultiSWA < deep ensemble < single network, the more "
    "so the stronger the corruption (the paper's figures; it prints no table).",
    differences="Twelve corruptions instead of sixteen, made here from the published constants where there are any; "
    "no data augmentation. The small scale has Fashion-MNIST and LeNet in the place of CIFAR-10 and PreResNet-20.",
    recipes={
        "small": CorruptionRecipe(),
        "paper": CorruptionRecipe(
            data="cifar10",
            network="preresnet20",
            members=10,
            prior_scale=(3e-4 * 50_000) ** -0.5,
            epochs=300,
            optimizer=tb.SGD(lr=0.1, momentum=0.9),
            averaging_lr=0.01,
            burn_in=161 / 300,
            per_epoch=1,
            draws=20,
            corrupted_rows=10_000,
            plan="loop",
        ),
    },
    cost={
        "small": "twenty minutes of one core for a seed",
        "paper": "2 × 10 networks of 300 epochs and 200 draws with batch-norm recalibration: about a day on one GPU "
        "(an estimate)",
    },
    run=run,
    summarise=summarise,
    headline=Headline(
        "test NLL at severity 5",
        ("severity 5",),
        rows=("single", "SWAG", "ensemble", "MultiSWAG"),
    ),
)
