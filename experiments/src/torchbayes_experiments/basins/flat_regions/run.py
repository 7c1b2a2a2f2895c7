"""Settings of `flat_regions`, and what it computes for one seed.

Settings were chosen with seed 1000, which is none of the seeds that are run; errors are those of 5,000 training images
that were not trained on. SGD at 0.05 does not fit 1,000 clean rows beside as many poisoned ones; at 0.02 and 0.01 it
fits them all, and 0.01 was taken. Stopped at the first epoch below the level, losses on the clean rows differ by a
factor of two, so the last layer is scaled after that. SAM without poison: error 11.5, 11.2 and 10.4 % at ρ = 0.05, 0.1
and 0.2, against 12.0 % of SGD. By width Adam with a constant rate was taken; a cosine with a tenth of the labels
shuffled gave the same order of effective dimensions and a lower peak of the test loss (2.2 nats against 4.3).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, cross_entropy

import torchbayes as tb
from torchbayes.data import Pair
from torchbayes.geometry import Plane, Spectrum, basin, learning_coefficient, spectrum, surface
from torchbayes_experiments.files import load_or_compute, significant
from torchbayes_experiments.shared.classifiers import shuffled
from torchbayes_experiments.streams import Purpose, generator

PLAIN, FLATTER = "SGD", "SAM"
RAW, FILTERS = "sphere", "filters"
GRID = tuple(-2.0 + 0.05 * step for step in range(141))  # log₁₀ of eigenvalues at which their density is taken
END, MATCHED = "end", "matched"  # networks after the whole training, and at equal training loss
_KERNEL = 0.12  # width of the kernels by which a density of eigenvalues is smoothed, in decades


@dataclass(frozen=True)
class Solutions:
    """Networks that fit the same rows, with and without poison."""

    clean: int = 1000  # N, rows with true labels
    # rows with wrong labels that are trained on as well, in units of N; 0 first
    shares: tuple[float, ...] = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)
    hidden: tuple[int, ...] = (64, 64)
    # mean loss on the clean rows, in nats, below which training ends, once none of them is misclassified, and to which
    # the last layer is then scaled
    level: float = 0.01
    # how they are trained; `epochs` is the most
    method: tb.MAP = tb.MAP(1, 600, 64, tb.SGD(lr=0.01, momentum=0.9), tb.Constant(), "native")  # noqa: RUF009
    rho: float = 0.2  # radius of SAM
    threshold: float = 0.1  # rise of the mean loss on the clean rows that ends a basin, in nats
    directions: int = 64  # in which radii are found
    # steps, probes: of Lanczos
    steps: int = 80
    probes: int = 4
    precision: float = 1.0  # α of the effective dimension
    # chains, localisation: by which the local learning coefficient is found, and its γ
    chains: tb.SGLD = tb.SGLD(chains=2, steps=1000, burn_in=500, thin=1, batch_size=128)  # noqa: RUF009
    localisation: float = 1.0
    points: int = 25  # of each axis of a loss surface

    def trained(self) -> list[tuple[str, float]]:
        """Return the networks: how each is trained, and its share of poison."""
        return [*((PLAIN, share) for share in self.shares), (FLATTER, self.shares[0])]


@dataclass(frozen=True)
class Widths:
    """Networks of many widths on rows with noisy labels."""

    rows: int = 500  # N, training rows
    noise: float = 0.2  # share of the labels that are shuffled
    pool: int = 4  # side of the squares over which pixels are averaged
    units: tuple[int, ...] = (2, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256)  # widths of the one hidden layer
    method: tb.MAP = tb.MAP(1, 1500, 100, tb.Adam(3e-3), tb.Constant(), "native")  # noqa: RUF009
    level: float = 0.01  # mean training loss at which the networks are compared once more, in nats
    precisions: tuple[float, ...] = (1.0, 0.1, 10.0)  # α of the effective dimension; the first is that of the verdict
    # steps, probes: of Lanczos
    steps: int = 60
    probes: int = 4


@dataclass(frozen=True)
class FlatRecipe:
    """Both parts of the experiment."""

    data: str = "mnist"
    test_rows: int | None = None  # test images, the first; None for all
    solutions: Solutions = Solutions()  # good and bad networks
    widths: Widths = Widths()  # narrow and wide networks


SMALL = FlatRecipe()

_LONG = tb.SGLD(chains=4, steps=10_000, burn_in=5000, thin=1, batch_size=512)
_SHARES = (*SMALL.solutions.shares, 4.0)
PAPER = FlatRecipe(
    solutions=Solutions(10_000, _SHARES, (512, 512), directions=1000, chains=_LONG, points=51),
    widths=Widths(rows=4000, pool=2, units=tuple(round(2 ** (step / 2)) for step in range(4, 23)), probes=10),
)


def run(recipe: FlatRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Return `solutions`, of all shares and last of SAM, `surfaces` and `widths`, and α: `precision`, `precisions`."""
    poisoned, by_width = recipe.solutions, recipe.widths

    def rows(count: int) -> tuple[Pair, Pair]:
        data = tb.data.load(recipe.data, train_size=count, seed=seed)
        return data.train, Pair(*(tensor[: recipe.test_rows] for tensor in data.test))

    train, test = rows(round(poisoned.clean * (1 + max(poisoned.shares))))
    fitted = partial(solution, poisoned, train, test, seed=seed)
    solutions = [
        load_or_compute(directory / f"{name}_{share:g}.json", fitted, name=name, share=share)
        for name, share in poisoned.trained()
    ]
    planes = load_or_compute(directory / "surfaces.json", surfaces, poisoned, train, seed=seed)
    fitted = partial(width, by_width, *rows(by_width.rows), seed=seed)
    widths = [load_or_compute(directory / f"width_{n}.json", fitted, units=n) for n in by_width.units]
    precisions = {"precision": poisoned.precision, "precisions": list(by_width.precisions)}
    return {"solutions": solutions, "surfaces": planes, "widths": widths, **precisions}


def solution(recipe: Solutions, rows: Pair, test: Pair, *, name: str, share: float, seed: int) -> dict[str, Any]:
    """Train one network, and return its scores; `basins`, shape -> `volume`; `curvature`; and learning coefficient.

    Loss, basin, curvature and learning coefficient are those of the clean rows alone, whatever it was trained on.
    """
    clean, poison = divided(recipe, rows, share, seed=seed)
    model = _model(rows, int(rows.targets.max()) + 1, recipe.hidden)
    point, epochs = trained(recipe, model, clean, poison=poison, name=name, seed=seed)
    missed = 1 - tb.evaluate(point, poison).metrics["accuracy"] if len(poison.targets) else 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tb.ProblemWarning)  # of volumes from few directions, which differences remove
        basins = {shape: volume(recipe, point, clean, shape=shape, seed=seed) for shape in (RAW, FILTERS)}
        local = learning_coefficient(
            model, clean, point, localisation=recipe.localisation, method=recipe.chains, seed=seed
        )
    trained_as = {"name": name, "share": share, "epochs": epochs}
    scores = {**_scores(point, clean, test), "poison_error": missed, "norm": float(point.weights_MD.norm())}
    shape = {"basins": basins, "curvature": curvature(recipe, point, clean, seed=seed)}
    return {**trained_as, **scores, **shape, "coefficient": local.value, "coefficient_error": local.error}


def divided(recipe: Solutions, rows: Pair, share: float, *, seed: int) -> tuple[Pair, Pair]:
    """Return the clean rows, and rows with a wrong label each, drawn evenly from the other classes.

    The rows of a smaller share are among those of a larger one, with the same labels.
    """
    source = generator(Purpose.POISON, seed)
    order = torch.randperm(len(rows.targets), generator=source)
    classes = int(rows.targets.max()) + 1
    moved = (rows.targets + 1 + torch.randint(classes - 1, rows.targets.shape, generator=source)) % classes
    clean, wrong = order[: recipe.clean], order[recipe.clean : recipe.clean + round(share * recipe.clean)]
    return Pair(rows.inputs[clean], rows.targets[clean]), Pair(rows.inputs[wrong], moved[wrong])


def trained(
    recipe: Solutions, model: tb.Model, clean: Pair, *, poison: Pair, name: str, seed: int
) -> tuple[tb.Point, int]:
    """Return a network that fits the clean rows at the wanted loss, and the number of epochs.

    It is that of the first epoch after which the loss is at most the level and no row is misclassified, with its last
    layer scaled down so that the loss is the level itself; if there is no such epoch, it is the last one as it is.
    """
    epochs = 0

    def fits(event: tb.Event) -> bool:
        nonlocal epochs
        epochs = event.epoch
        metrics = tb.evaluate(tb.Point(model, event.state.weights_MD), clean).metrics
        return metrics["nll"] <= recipe.level and metrics["accuracy"] == 1

    method, rows = recipe.method, tuple(torch.cat(tensors) for tensors in zip(clean, poison, strict=True))
    if name == FLATTER:
        method = replace(method, optimizer=tb.SAM(method.optimizer.rule, rho=recipe.rho))
    point = tb.fit(model, rows, method, seed=seed, callbacks=(fits,))
    return scaled(point, clean, level=recipe.level), epochs


def scaled(point: tb.Point, clean: Pair, *, level: float) -> tb.Point:
    """Return a network whose linear last layer is scaled down to a mean loss in nats; as it is if no scale has it.

    Where no row is misclassified the loss falls as the scale grows, so that one scale has the level.
    """
    outputs, targets = point.functions()(clean.inputs)[0].double(), clean.targets.to(point.weights_MD.device)

    def loss(scale: float) -> float:
        return float(cross_entropy(scale * outputs, targets))

    if bool((outputs.argmax(1) != targets).any()) or loss(1.0) > level:
        return point
    low, high = 0.0, 1.0
    while high - low > 1e-7:
        middle = (low + high) / 2
        low, high = (middle, high) if loss(middle) > level else (low, middle)
    layout, weights_D = point.model.layout, point.weights_MD[0].clone()
    for name in layout.names[-2:]:  # weights and biases of the last layer
        layout.split(weights_D)[name].mul_(high)
    return tb.Point(point.model, weights_D[None])


def volume(recipe: Solutions, point: tb.Point, clean: Pair, *, shape: Any, seed: int) -> dict[str, Any]:
    """Return radii of a basin, and its volume in units of the ball of radius one.

    `orders` is log₁₀ E[r^D], as the paper takes it, and `typical` D E[log₁₀ r], of the typical direction.
    """
    among = partial(basin, threshold=recipe.threshold, directions=recipe.directions, shape=shape, seed=seed)
    around = among(point.model, clean, point)
    size, log_K = around.size, around.radii_K.log10()
    orders = float((size * around.radii_K.log()).logsumexp(0) - math.log(len(log_K))) / math.log(10)
    error = size * float(log_K.std()) / math.sqrt(len(log_K))
    numbers = {"orders": orders, "typical": size * float(log_K.mean()), "typical_error": error}
    return {**numbers, "radii": significant(around.radii_K), "capped": around.capped}


def curvature(recipe: Solutions, point: tb.Point, clean: Pair, *, seed: int) -> dict[str, Any]:
    """Return effective dimension, trace, largest Ritz value and density of the clean rows' Gauss-Newton matrix."""
    ggn = _spectrum(recipe, point, clean, seed=seed)
    effective = ggn.effective_dimension(recipe.precision)
    numbers = {"effective": effective.value, "effective_error": effective.error, "trace": ggn.trace.value}
    return {**numbers, "top": float(ggn.values_PK.max()), "density": significant(per_decade(ggn))}


def per_decade(ggn: Spectrum) -> Tensor:
    """Return the number of eigenvalues per decade at `GRID`, smoothed by normal kernels."""
    nodes_PK1 = ggn.values_PK.clamp_min(1e-12).log10().unsqueeze(-1)
    kernels = torch.exp(-0.5 * ((torch.tensor(GRID, dtype=torch.float64) - nodes_PK1) / _KERNEL) ** 2)
    kernels = kernels / (_KERNEL * math.sqrt(2 * math.pi))
    return ggn.size * (ggn.weights_PK.unsqueeze(-1) * kernels).sum(1).mean(0)


def surfaces(recipe: Solutions, rows: Pair, *, seed: int) -> dict[str, Any]:
    """Return `nll`, the loss on the clean rows over a plane at `x` and `y`, for the least and most of the `shares`."""
    planes: dict[str, Any] = {"shares": [min(recipe.shares), max(recipe.shares)], "nll": []}
    model = _model(rows, int(rows.targets.max()) + 1, recipe.hidden)
    for share in planes["shares"]:
        clean, poison = divided(recipe, rows, share, seed=seed)
        point, _ = trained(recipe, model, clean, poison=poison, name=PLAIN, seed=seed)
        loss = surface(model, clean, Plane.random(model, point, seed=seed), points=recipe.points)
        planes |= {"x": loss.x_P.tolist(), "y": loss.y_Q.tolist()}
        planes["nll"].append(significant(loss.nll_QP))
    return planes


def width(recipe: Widths, rows: Pair, test: Pair, *, units: int, seed: int) -> dict[str, Any]:
    """Train a network of one width, and return scores and effective dimensions, one for each precision.

    `end` is after the whole training, and `matched` after the first epoch at which the mean training loss is at most
    `recipe.level`, None where none is.
    """
    train, test = pooled(rows, test, recipe.pool)
    train = Pair(train.inputs, shuffled(train.targets, recipe.noise, seed=seed))
    model = _model(train, 10, (units,))
    early: list[tb.Point] = []

    def watch(event: tb.Event) -> None:
        if not early and event.record["nll"][0] <= recipe.level:
            reached = tb.Point(model, event.state.weights_MD.clone())
            if tb.evaluate(reached, train).metrics["nll"] <= recipe.level:
                early.append(reached)

    def judged(point: tb.Point) -> dict[str, Any]:
        ggn = _spectrum(recipe, point, train, seed=seed)
        sizes = [ggn.effective_dimension(precision) for precision in recipe.precisions]
        effective = {"effective": [size.value for size in sizes], "effective_error": [size.error for size in sizes]}
        return {**_scores(point, train, test), **effective}

    point = tb.fit(model, train, recipe.method, seed=seed, callbacks=(watch,))
    matched = judged(early[0]) if early else None
    return {"units": units, "weights": point.weights_MD.shape[1], END: judged(point), MATCHED: matched}


def pooled(train: Pair, test: Pair, side: int) -> tuple[Pair, Pair]:
    """Return images averaged over squares, in units of the standard deviation of the training images."""
    small = [avg_pool2d(pair.inputs, side) for pair in (train, test)]
    scale = small[0].std()
    return Pair(small[0] / scale, train.targets), Pair(small[1] / scale, test.targets)


def _model(rows: Pair, classes: int, hidden: tuple[int, ...]) -> tb.Model:
    network = tb.networks.mlp(tuple(rows.inputs.shape[1:]), classes, hidden=hidden)
    return tb.Model(network, tb.likelihoods.Categorical(), tb.priors.Flat())


def _scores(point: tb.Point, train: Pair, test: Pair) -> dict[str, float]:
    near, far = (tb.evaluate(point, pair).metrics for pair in (train, test))
    scores = {"loss": near["nll"], "error": 1 - near["accuracy"]}
    return scores | {"test_nll": far["nll"], "test_error": 1 - far["accuracy"]}


def _spectrum(recipe: Solutions | Widths, point: tb.Point, rows: Pair, *, seed: int) -> Spectrum:
    return spectrum(point.model, rows, point, matrix="ggn", steps=recipe.steps, probes=recipe.probes, seed=seed)
