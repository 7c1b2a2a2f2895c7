"""Double descent over the width, and whether averaging removes it (Wilson and Izmailov 2020, section 7).

Trained to fit labels of which some are wrong, networks of growing width first become better, then worse up to the width
that can just fit every label (the interpolation threshold), and better again beyond it (Belkin et al. 2019; Nakkiran et
al. 2020). A Bayesian model average should improve with flexibility throughout: what makes a network at the threshold
bad is that its one solution is an arbitrary one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from torchbayes_experiments.files import write_whole
from torchbayes_experiments.shared.classifiers import classifier, decay_prior, mean_metrics, metrics_of, shuffled

ONE, ONE_SWAG, ENSEMBLE, MULTISWAG = METHODS = ("SGD", "SWAG", "ensemble", "MultiSWAG")
ALONE = {ENSEMBLE: ONE, MULTISWAG: ONE_SWAG}  # an average of members, and the name of its members taken alone
LABELS = {"error": "test error", "nll": "test NLL"}
# A bump that is not worth the name.
MARGINS = {"error": (0.01, "one percentage point"), "nll": (0.03, "0.03 nats")}
FITTED, NOT_FITTED = 0.01, 0.05  # training errors: at most the first above the threshold, at least the second below it


@dataclass(frozen=True)
class DescentRecipe:
    """Settings of both fits at every width, and of the evaluation.

    `good` and `peak` were chosen on held-out rows of the training set with other seeds, before the seeds of a run.
    """

    data: str = "mnist"
    # `lenet`, whose width w means w and 2w filters and 4w hidden units; `mlp`, with w hidden units; or a residual
    # network by name
    network: str = "lenet"
    widths: tuple[int, ...] = (2, 4, 6, 10, 24)  # in rising order
    good: int = 2  # a width below the interpolation threshold
    peak: int = 6  # the width at which the test error of SGD is expected to be largest
    train_size: int | None = 4000  # N, training rows, drawn anew for each seed; None for all
    share: float = 0.2  # of the training labels that are shuffled
    members: int = 5  # M, of the ensemble and of MultiSWAG
    weight_decay: float = 3e-4  # λ, from which each weight's normal prior has the variance 1/(λN)
    epochs: int = 50
    batch_size: int = 100
    # of both methods; the ensemble's rate falls to 1 % of lr, MultiSWAG's to `averaging_lr`
    optimizer: tb.SGD = tb.SGD(lr=0.05, momentum=0.9)  # noqa: RUF009  (frozen)
    averaging_lr: float = 0.05  # learning rate while SWAG collects
    burn_in: float = 0.5  # share of the epochs before SWAG collects, once per epoch
    rank: int = 20
    draws: int = 5  # number of functions drawn per member of MultiSWAG
    test_rows: int | None = None  # number of test images, the first of the test set; None for all
    # how the members are run; fixed, because a plan chosen by measurement may round differently in each run
    plan: str = "native"

    def __post_init__(self) -> None:
        widths, good, peak = self.widths, self.good, self.peak
        if sorted(set(widths)) != list(widths) or good not in widths or peak not in widths[1:-1]:
            raise ValueError(
                f"`widths` must rise and hold `good` and, not at an end, `peak`; got {widths}, {good} and {peak}."
            )

    def settings(self, width: int) -> dict[str, Any]:
        """Return the settings of the network at a width."""
        if self.network == "lenet":
            return {"channels": (width, 2 * width), "hidden": 4 * width}
        return {"hidden": (width,)} if self.network == "mlp" else {"width": width}

    def ensemble(self) -> tb.MAP:
        return tb.MAP(self.members, self.epochs, self.batch_size, self.optimizer, tb.PiecewiseLinear(), self.plan)

    def multiswag(self) -> tb.SWAG:
        training = (self.members, self.epochs, self.batch_size, self.optimizer, self.averaging_lr, self.burn_in)
        return tb.SWAG(*training, per_epoch=1, rank=self.rank, plan=self.plan)


def run(recipe: DescentRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Return what a seed gives; `so_far.md` says meanwhile which widths are finished, and what came out at them.

    `widths`, `good` and `peak` of the recipe; `wrong`: the share of training labels that are wrong; `weights`: their
    number at each width; `scores`: method -> `train` or `test` -> measure -> one value per width; `averaged`: ensemble
    or MultiSWAG -> measure -> for each width the test values of averages over the first member, the first two, ….
    """
    data = tb.data.load(recipe.data, train_size=recipe.train_size, seed=seed)
    labels = shuffled(data.train.targets, recipe.share, seed=seed)
    pairs = {
        "train": tb.data.Pair(data.train.inputs, labels),
        "test": tb.data.Pair(*(rows[: recipe.test_rows] for rows in data.test)),
    }
    finished: list[dict[str, Any]] = []
    for width in recipe.widths:
        home = directory / f"width_{width}"
        finished.append(
            load_or_compute(home / "scores.json", of_width, recipe, width, pairs, seed=seed, directory=home)
        )
        write_whole(directory / "so_far.md", so_far(finished, recipe.widths).encode())
    return {
        "widths": list(recipe.widths),
        "good": recipe.good,
        "peak": recipe.peak,
        "wrong": float((labels != data.train.targets).double().mean()),
        **{key: gathered([each[key] for each in finished]) for key in ("weights", "scores", "averaged")},
    }


def gathered(each: Sequence[Any]) -> Any:
    """Return nested mappings of the same keys as one, whose leaves are the lists of theirs."""
    if isinstance(each[0], Mapping):
        return {key: gathered([mapping[key] for mapping in each]) for key in each[0]}
    return list(each)


def of_width(
    recipe: DescentRecipe, width: int, pairs: Mapping[str, tb.data.Pair], *, seed: int, directory: Path
) -> dict[str, Any]:
    """Return `width`, and `weights`, `scores` and `averaged` of `run`, of one width; draw s is from member s mod M."""
    train, members = pairs["train"], recipe.members
    prior = decay_prior(recipe.weight_decay, len(train.targets))
    shape, classes = train.inputs.shape[1:], int(pairs["test"].targets.max()) + 1
    model = classifier(recipe.network, shape, classes, prior=prior, settings=recipe.settings(width))
    scores: dict[str, Any] = {name: {} for name in (ENSEMBLE, ONE, MULTISWAG, ONE_SWAG)}
    averaged: dict[str, Any] = {}
    for name, method in ((ENSEMBLE, recipe.ensemble()), (MULTISWAG, recipe.multiswag())):
        posterior = tb.fit(model, train, method, seed=seed, directory=directory / name.lower(), resume=True)
        functions = posterior.functions(members * (recipe.draws if name == MULTISWAG else 1), seed=seed)
        for rows, pair in pairs.items():
            inputs, targets = (tensor.to(model.network.device) for tensor in pair)
            average = tb.predict(functions, inputs)
            member = torch.arange(average.draws) % members
            scores[name][rows] = _scores(average, targets, slice(None))
            scores[ALONE[name]][rows] = mean_metrics([_scores(average, targets, member == m) for m in range(members)])
            if rows == "test":
                averaged[name] = gathered([_scores(average, targets, member <= m) for m in range(members)])
    return {"width": width, "weights": model.layout.size, "scores": scores, "averaged": averaged}


def _scores(average: tb.Predictive, targets: torch.Tensor, draws: slice | torch.Tensor) -> dict[str, float]:
    metrics = metrics_of(average, targets, draws)
    return {"error": 1 - metrics["accuracy"], "nll": metrics["nll"]}


def bump(curve: Sequence[float] | np.ndarray) -> float:
    """Return how far a curve rises and falls again: 0 for one that only falls, only rises, or falls before it rises.

    max over inner places w of  curve(w) − max(min over places before w, min over places after w),  at least 0.
    """
    values = np.asarray(curve, dtype=np.float64)
    before, after = np.minimum.accumulate(values), np.minimum.accumulate(values[::-1])[::-1]
    return max(0.0, float(np.max(values[1:-1] - np.maximum(before[:-2], after[2:]))))


def _bumps(values: np.ndarray) -> np.ndarray:
    """Return the bump of each column of values (widths, repeats)."""
    return np.array([bump(curve) for curve in values.T])


def summarise(results: Results) -> Findings:
    rows = tidy([result["scores"] for result in results], "method", "rows", "measure", lists=("width",))
    test, train = (rows.where(rows=of).only(method=METHODS) for of in ("test", "train"))
    curves = {measure: test.where(measure=measure).stacked("method", "width") for measure in LABELS}  # (widths, seeds)
    training = train.where(measure="error").stacked("method", "width")
    pictures = _pictures(results, curves, training)
    return Findings.of(_parts(results[0], curves, training[ONE]), _tables(results, test, train), pictures)


def _parts(
    first: Mapping[str, Any], curves: Mapping[str, Mapping[str, np.ndarray]], training: np.ndarray
) -> Iterator[Part]:
    widths, low, high = first["widths"], first["good"], first["peak"]
    good, peak = widths.index(low), widths.index(high)
    yield below(f"training error of SGD at width {widths[-1]} below 1 %", training[-1], FITTED, precondition=True)
    unfitted = NOT_FITTED - training[good]
    yield below(f"training error of SGD at width {low} above 5 %", unfitted, precondition=True)
    for measure, label in LABELS.items():
        sgd, multiswag = (curves[measure][name] for name in (ONE, MULTISWAG))
        bumps, (margin, said) = {name: _bumps(values) for name, values in curves[measure].items()}, MARGINS[measure]
        yield below(f"{label} of SGD at width {low} below that at {high}", sgd[good] - sgd[peak])
        yield below(f"{label} of SGD at width {widths[-1]} below that at {high}", sgd[-1] - sgd[peak])
        yield below(f"bump in the {label} of SWAG below that of SGD", bumps[ONE_SWAG] - bumps[ONE])
        for name in (ENSEMBLE, MULTISWAG):
            yield below(f"bump in the {label} of {name} below {said}", bumps[name], margin)
        statement = f"{label} of MultiSWAG at width {widths[-1]} below that at {low}"
        yield below(statement, multiswag[-1] - multiswag[good])


def _tables(results: Results, test: Rows, train: Rows) -> Iterator[Table]:
    names = {place: str(width) for place, width in enumerate(results[0]["widths"])}
    digits: dict[str, str] = dict.fromkeys(METHODS, ".4f")
    for measure, label in LABELS.items():
        yield pivot(
            test.where(measure=measure),
            "width",
            "method",
            keep=("weights", *METHODS),
            labels=names,
            digits=digits,
            beside={"weights": lambda place: results[0]["weights"][place]},
            caption=f"{label[0].upper()}{label[1:]} by width, by the true labels: mean over seeds ± standard error. "
            "SGD and SWAG are means over the members of ensemble and MultiSWAG, each taken alone.",
        )
    wrong = 100 * float(np.mean([result["wrong"] for result in results]))
    caption = f"Training error by width, by the labels trained on, {wrong:.1f} % of which are wrong: mean over seeds."
    errors = train.where(measure="error")
    yield pivot(errors, "width", "method", keep=METHODS, labels=names, digits=digits, caption=caption)
    columns = {measure: f"bump in the {label}" for measure, label in LABELS.items()}
    yield pivot(
        tidy(_bumps_of(test), "method", "measure"),
        "method",
        "measure",
        labels=columns,
        better="low",
        digits=".4f",
        caption="Height of the highest bump: by how much the value at a width exceeds the lowest at narrower ones and "
        "the lowest at wider ones, whichever is higher; mean over seeds ± standard error.",
    )


def _bumps_of(test: Rows) -> Iterator[dict[str, dict[str, float]]]:
    """Yield method -> measure -> bump of each seed."""
    for seed in test.names("seed"):
        curves = test.where(seed=seed).apart("method", "measure", over="width")
        yield {name: {measure: bump(curve) for measure, curve in of.items()} for name, of in curves.items()}


def _pictures(
    results: Results, test: Mapping[str, Mapping[str, np.ndarray]], train: Mapping[str, np.ndarray]
) -> Iterator[Picture]:
    widths = results[0]["widths"]
    fitted = np.flatnonzero(train[ONE].mean(1) < FITTED)
    threshold = widths[fitted[0]] if len(fitted) else None  # the narrowest width that fits, in the mean over seeds
    drawn = figures.measure_curves(
        {**{LABELS[measure]: values for measure, values in test.items()}, "training error": train},
        [str(width) for width in widths],
        label="width of the network",
        percent=[LABELS["error"], "training error"],
        mark=None if threshold is None else ("interpolation threshold of SGD", str(threshold)),
    )
    where = "no width fits them" if threshold is None else f"width {threshold} is the first"
    yield Picture(
        "Error against width, with wrong training labels",
        drawn,
        "Test error and test NLL by the true labels, and training error by the labels trained on, against the width. "
        "The interpolation threshold is where SGD makes less than 1 % mistakes on its training labels: "
        f"{where}.",
    )

    def bumps(name: str, measure: str) -> np.ndarray:  # of averages over the first 1 to M members, (M, seeds)
        return np.array([_bumps(np.asarray(result["averaged"][name][measure])) for result in results]).T

    panels = {
        f"bump in the {label}": {name: bumps(name, measure) for name in (ENSEMBLE, MULTISWAG)}
        for measure, label in LABELS.items()
    }
    places = [str(count + 1) for count in range(len(results[0]["averaged"][ENSEMBLE]["error"][0]))]
    yield Picture(
        "Bump against the number of members",
        figures.measure_curves(panels, places, label="members averaged", percent=["bump in the test error"]),
        "Height of the highest bump in the curve over widths, of averages over the first members: one member of the "
        "ensemble is one SGD solution, one of MultiSWAG is SWAG.",
    )


def so_far(finished: Sequence[Mapping[str, Any]], widths: Sequence[int]) -> str:
    """Return what is known of a seed when only some widths are finished, as Markdown."""
    left = ", ".join(str(width) for width in widths[len(finished) :])
    rows = [
        [
            str(each["width"]),
            each["scores"][ONE]["train"]["error"],
            *(each["scores"][name]["test"][measure] for measure in LABELS for name in METHODS),
        ]
        for each in finished
    ]
    columns = [f"{name}, {label}" for label in LABELS.values() for name in METHODS]
    said = f"Not finished: widths {left}; there is no verdict." if left else "All widths are finished."
    caption = f"{len(finished)} of {len(widths)} widths are finished. {said}"
    return Table(["width", f"{ONE}, training error", *columns], rows, caption).markdown() + "\n"


EXPERIMENT = Experiment(
    name="double_descent",
    claim="With wrong training labels the test error and NLL of SGD have a bump at the interpolation threshold, that "
    "of SWAG is smaller, and MultiSWAG and deep ensembles have none.",
    source="Wilson and Izmailov 2020, Bayesian deep learning and a probabilistic perspective of generalization, "
    "section 7; the phenomenon: Nakkiran et al. 2020, Deep double descent",
    expected="For ResNet-18 of growing width on CIFAR-100 with 20 % of the labels shuffled, error and NLL of SGD rise "
    "and fall again, those of SWAG less, and those of MultiSWAG fall throughout (the paper's figures; it prints no "
    "table).",
    differences="SGD is that with momentum. The small and the quick scale have LeNet of width w, with w and 2w filters "
    "and 4w hidden units, on 4,000 MNIST images; without augmentation, and without early stopping. SWAG goes on at the "
    "learning rate it was trained with. The paper scale has PreResNet-20 on CIFAR-10, and only a guess of where the "
    "threshold is.",
    recipes={
        "small": DescentRecipe(widths=(1, 2, 3, 4, 5, 6, 8, 10, 16, 24, 32), members=10),
        "quick": DescentRecipe(),
        "paper": DescentRecipe(
            data="cifar10",
            network="preresnet20",
            widths=(2, 4, 6, 8, 10, 12, 16, 24, 32, 48, 64),
            good=4,
            peak=10,
            train_size=None,
            members=10,
            epochs=300,
            batch_size=128,
            optimizer=tb.SGD(lr=0.1, momentum=0.9),
            plan="loop",
        ),
    },
    cost={
        "small": "an hour of one core",
        "quick": "six minutes of one core",
        "paper": "11 widths of 2 × 10 networks of 300 epochs: several days on one GPU (an estimate)",
    },
    run=run,
    summarise=summarise,
    headline=Headline("highest bump in the test error (a share of the images)", ("bump in the test error",)),
)
