"""MultiSWAG under corruption: averaging within basins as well as over them (Wilson and Izmailov 2020, section 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

import torchbayes as tb
from torchbayes.report import Picture, Table, figures
from torchbayes_experiments import Experiment, Findings, Rows, Verdict, below, tidy
from torchbayes_experiments.shared.classifiers import METRICS, classifier, metrics_of
from torchbayes_experiments.tables import pivot
from torchbayes_experiments.verdicts import mean_and_error

METHODS = ("single", "SWAG", "ensemble", "MultiSWA", "MultiSWAG")
STRONG = [4, 5]  # severities


@dataclass(frozen=True)
class CorruptionRecipe:
    """Settings of both fits and of the evaluation.

    Attributes:
        train_size: number of training rows, drawn with seed 0; None for all.
        members: M, number of basins of the ensemble and of MultiSWAG.
        prior_scale: standard deviation of every weight's normal prior; s² = 1/(λN) for weight decay λ on N rows.
        epochs: passes over the data, the same for both methods.
        optimizer: of both methods; the ensemble's rate falls to 1 % of lr, MultiSWAG's to `averaging_lr`.
        averaging_lr: learning rate while SWAG collects.
        burn_in: share of the epochs before SWAG collects.
        per_epoch: snapshots per epoch.
        rank: of SWAG's covariance.
        draws: number of functions drawn per member of MultiSWAG.
        test_rows: number of test images of the clean evaluation; None for all.
        corrupted_rows: number of test images that are corrupted, the first of the test set.
        plan: how the members are run; fixed, because a plan chosen by measurement may round differently in each run.
    """

    data: str = "fashion_mnist"
    network: str = "lenet"
    train_size: int | None = None
    members: int = 5
    prior_scale: float = 0.2
    epochs: int = 8
    batch_size: int = 128
    optimizer: tb.SGD = tb.SGD(lr=0.05, momentum=0.9)  # noqa: RUF009  (frozen)
    averaging_lr: float = 0.02
    burn_in: float = 0.5
    per_epoch: int = 5
    rank: int = 20
    draws: int = 6
    test_rows: int | None = None
    corrupted_rows: int = 1000
    corruptions: tuple[str, ...] = tuple(tb.data.CORRUPTIONS)
    plan: str = "loop"

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
        device = drawn.model.network.device
        average, labels = tb.predict(drawn, inputs.to(device)), targets.to(device)
        scores[name] = metrics_of(average, labels)
        alone = {"ensemble": "single", "MultiSWAG": "SWAG"}.get(name)
        if alone:  # draw s is from member s mod M
            parts = [replace(average, outputs_SBK=average.outputs_SBK[m::members]) for m in range(members)]
            each = [metrics_of(part, labels) for part in parts]
            scores[alone] = {key: float(np.mean([metrics[key] for metrics in each])) for key in METRICS}
            scores[alone] |= {f"{key}_std": float(np.std([metrics[key] for metrics in each])) for key in METRICS}
    return scores


# --- what came out


def summarise(results: Sequence[dict[str, Any]]) -> Findings:
    """Severity 0 is that of clean images; numbers of a severity are means over corruptions."""
    seeds = [
        {"clean": {0: result["clean"]}} | {kind: dict(enumerate(s, 1)) for kind, s in result["corrupted"].items()}
        for result in results
    ]
    rows = tidy(seeds, "kind", "severity", "method", "metric").only(method=METHODS)
    nll, accuracy = rows.where(metric="nll"), rows.values(severity=0, method="single", metric="accuracy")
    clean, strong = (nll.where(severity=severities).apart("method") for severities in (0, STRONG))
    fair, at = "the single network's error on clean images is at most 10 %", "at severities 4 and 5"
    verdict = Verdict.of([
        below(fair, 1 - accuracy, 0.1, precondition=True),
        below("clean NLL: ensemble / single network below 0.9", clean["ensemble"] / clean["single"], 0.9),
        below(f"NLL {at}: ensemble below single network", strong["ensemble"] - strong["single"]),
        below(f"NLL {at}: MultiSWAG below ensemble", strong["MultiSWAG"] - strong["ensemble"]),
    ])
    pictures = tuple(
        Picture(
            f"{label} under corruption",
            figures.severity_curves(_curves(rows.where(metric=metric)), label, over="seeds"),
            f"{label} on clean images and, averaged over corruptions, at severities 1 to 5.",
        )
        for metric, label in {"nll": "NLL", "accuracy": "Accuracy", "ece": "ECE"}.items()
    )
    return Findings(verdict, (*_score_tables(rows, nll), *_nll_tables(nll)), pictures)


def _curves(rows: Rows) -> dict[str, np.ndarray]:
    """Return method -> values (6, R) by severity and seed."""
    apart = rows.apart("method", "severity")
    return {name: np.stack(list(by_severity.values())) for name, by_severity in apart.items()}


def _score_tables(rows: Rows, nll: Rows) -> tuple[Table, Table]:
    clean = rows.where(severity=0)

    def spread(method: str) -> float | None:
        spreads = clean.values(method=method, metric="nll_std")
        return float(np.mean(spreads)) if spreads.size else None

    scores = pivot(
        clean,
        "method",
        "metric",
        keep=METRICS,
        labels={"nll": "NLL", "ece": "ECE"},
        beside={"spread of NLL": spread},
        better={"accuracy": "high", "NLL": "low", "ECE": "low"},
        digits=dict.fromkeys(("accuracy", "NLL", "ECE", "spread of NLL"), ".4f"),
        caption="Clean test images: mean over seeds ± standard error. A single network is the mean over the ensemble's "
        "members taken alone, SWAG the mean over MultiSWAG's, and the spread their standard deviation; MultiSWA "
        "averages the means of MultiSWAG's Gaussians.",
    )
    corrupted = pivot(
        nll.where(severity=list(range(1, 6))),
        "method",
        "severity",
        labels={severity: f"severity {severity}" for severity in range(1, 6)},
        better="low",
        caption="NLL under corruption, mean over corruptions; mean over seeds ± standard error.",
    )
    return scores, corrupted


def _nll_tables(nll: Rows) -> tuple[Table, Table]:
    """Return paired differences, and the NLL of each corruption, to show which corruptions order the means."""
    means, pairs = _curves(nll), (("ensemble", "single"), ("MultiSWAG", "ensemble"), ("MultiSWAG", "MultiSWA"))
    columns = {f"{first} − {second}": means[first] - means[second] for first, second in pairs}
    images = ("clean", *(f"severity {severity}" for severity in range(1, 6)))
    compared = Table(
        ["images", *columns],
        [[text, *(mean_and_error(values[s]) for values in columns.values())] for s, text in enumerate(images)],
        "Paired differences of NLL, mean over corruptions; mean over seeds ± standard error. Below zero the first of "
        "the two is better.",
        formats=dict.fromkeys(columns, ".4f"),
    )
    strong = nll.where(severity=STRONG)
    body = [
        [kind.replace("_", " "), *(float(strong.values(kind=kind, method=name).mean()) for name in METHODS)]
        for kind in strong.names("kind")
    ]
    caption = "NLL of each corruption, mean over severities 4 and 5 and over seeds."
    return compared, Table(["corruption", *METHODS], body, caption)


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
        ),
    },
    cost={
        "small": "about a quarter of an hour on 2 cores",
        "paper": "2 × 10 networks of 300 epochs and 200 draws with batch-norm recalibration: about a day on one GPU "
        "(an estimate)",
    },
    run=run,
    summarise=summarise,
)
