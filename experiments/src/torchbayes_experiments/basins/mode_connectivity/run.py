"""Settings of `mode_connectivity`, and what it computes for one seed: paths between networks, and aligned networks.

Settings of the small scale were chosen by loss and error along the paths on training images that were left over, with a
seed of their own; loss and error halfway against the worse end:

    LeNet           SGD at 0.05, 15 epochs    Bezier curve 0.255 (0.200), 10.2 % (9.8 %); chain 0.227, 10.4 %
                    the same, 36 epochs       Bezier curve 0.168, 9.0 %; chain 0.122, 9.4 %
                    SGD at 0.1                the chain diverges
    PreResNet-20    SGD at 0.05, 8 epochs     Bezier curve 1.58 (1.37), 54.8 % (51.5 %)
                    SGD at 0.1, 16 epochs     Bezier curve 1.12, 51.0 %

36 epochs are three times those of the ends, as VGG-16 has them in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import torchbayes as tb
from torchbayes.geometry import Plane, align, barrier, surface
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.shared.classifiers import classifier, decay_prior

IMAGES, RESIDUAL, ALIGNMENT = "images", "residual", "alignment"
SEGMENT, BEZIER, CHAIN = "straight line", "Bezier curve", "chain"
CURVES = (BEZIER, CHAIN)
BEFORE, BY_WEIGHTS, BY_ACTIVATIONS = "as trained", "units matched by weights", "units matched by activations"
MATCHED = (BY_WEIGHTS, BY_ACTIVATIONS)

Rows = tuple[Tensor, Tensor]  # inputs and classes


@dataclass(frozen=True, kw_only=True)
class Task:
    """A data set, a network and how two networks are trained."""

    data: str
    network: str
    hidden: tuple[int, ...] | None = None  # widths of the hidden layers of `mlp`; None for other networks
    train_size: int | None  # number of training rows, drawn by the seed; None for all
    test_rows: int | None  # number of test images that are scored, the first ones; None for all
    decay: float  # λ, weight decay for the mean loss of a row: the normal prior has the variance 1/(λN)
    ends: tb.MAP  # how the two networks are trained
    points: int  # positions on a path, evenly spaced with both ends


@dataclass(frozen=True, kw_only=True)
class Connection(Task):
    """Two networks that are joined by curves."""

    bends: tb.Curve  # how a curve is trained; `shape` is set for each
    surface_points: int = 0  # of each coordinate of the loss surfaces; 0 for none
    surface_rows: int = 1000  # number of training rows of the surfaces, the first ones

    def curves(self) -> dict[str, tb.Curve]:
        """Return how each curve is trained, by its name."""
        return {BEZIER: replace(self.bends, shape="bezier"), CHAIN: replace(self.bends, shape="chain")}


@dataclass(frozen=True, kw_only=True)
class Alignment(Task):
    """Two perceptrons whose hidden units are matched."""

    barrier_rows: int | None  # number of training rows of the loss, the first ones; None for all
    activation_rows: int  # number of training rows over which activations are compared


@dataclass(frozen=True, kw_only=True)
class ModeConnectivityRecipe:
    """The tasks, None to leave one out."""

    images: Connection | None  # curves between plain convolutional networks
    residual: Connection | None  # curves between residual networks with batch norm
    alignment: Alignment | None  # straight lines between perceptrons
    surface_seed: int = 0  # the seed of which loss surfaces are computed


SMALL = ModeConnectivityRecipe(
    images=Connection(
        data="fashion_mnist",
        network="lenet",
        train_size=10_000,
        test_rows=None,
        decay=5e-4,
        ends=tb.MAP(members=2, epochs=12, optimizer=tb.SGD(0.05)),
        bends=tb.Curve(epochs=36, optimizer=tb.SGD(0.05)),
        points=13,
        surface_points=17,
    ),
    residual=Connection(
        data="cifar10",
        network="preresnet20",
        train_size=2000,
        test_rows=3000,
        decay=5e-4,
        ends=tb.MAP(members=2, epochs=12, batch_size=50, optimizer=tb.SGD(0.1), plan="loop"),
        bends=tb.Curve(epochs=16, batch_size=50, optimizer=tb.SGD(0.1), plan="loop"),
        points=7,
    ),
    alignment=Alignment(
        data="mnist",
        network="mlp",
        hidden=(512, 512, 512),
        train_size=20_000,
        test_rows=None,
        decay=1e-4,
        ends=tb.MAP(members=2, epochs=10, optimizer=tb.Adam(1e-3)),
        points=13,
        barrier_rows=10_000,
        activation_rows=2000,
    ),
)


_on_all_rows: Any = partial(replace, train_size=None, test_rows=None)
PAPER = ModeConnectivityRecipe(
    images=_on_all_rows(
        SMALL.images,
        ends=tb.MAP(members=2, epochs=100, optimizer=tb.SGD(0.05)),
        bends=tb.Curve(epochs=200, optimizer=tb.SGD(0.05)),
        points=61,
        surface_points=41,
        surface_rows=10_000,
    ),
    residual=_on_all_rows(
        SMALL.residual,
        ends=tb.MAP(members=2, epochs=200, optimizer=tb.SGD(0.1), plan="loop"),
        bends=tb.Curve(epochs=200, optimizer=tb.SGD(0.03), plan="loop"),
        decay=3e-4,
        points=61,
        surface_points=21,
        surface_rows=5000,
    ),
    alignment=_on_all_rows(
        SMALL.alignment,
        ends=tb.MAP(members=2, epochs=100, optimizer=tb.Adam(1e-3)),
        decay=1e-5,
        points=25,
        barrier_rows=None,
        activation_rows=10_000,
    ),
)


def run(recipe: ModeConnectivityRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Return task -> what `on_paths` or `on_alignment` returns; each task writes a file, and its fits continue."""
    tasks: dict[str, tuple[Any, Any]] = {name: (on_paths, getattr(recipe, name)) for name in (IMAGES, RESIDUAL)}
    if seed != recipe.surface_seed:
        tasks = {name: (score, task and replace(task, surface_points=0)) for name, (score, task) in tasks.items()}
    tasks[ALIGNMENT] = (on_alignment, recipe.alignment)
    return {
        name: load_or_compute(directory / f"{name}.json", lambda s=score, t=task, n=name: s(t, seed, directory / n))
        for name, (score, task) in tasks.items()
        if task is not None
    }


def _two_ends(task: Task, seed: int, home: Path) -> tuple[tb.Point, Rows, Rows]:
    """Return two networks that are trained from different initialisations, training rows, and test rows to score."""
    data = tb.data.load(task.data, train_size=task.train_size, seed=seed)
    prior = decay_prior(task.decay, len(data.train.targets))
    model = classifier(task.network, data.input_shape, data.num_classes, prior=prior, hidden=task.hidden)
    ends = tb.fit(model, data.train, task.ends, seed=seed, directory=home / "ends", resume=True, callbacks=())
    test = data.test.inputs[: task.test_rows], data.test.targets[: task.test_rows]
    return ends, (data.train.inputs, data.train.targets), test


def on_paths(task: Connection, seed: int, home: Path) -> dict[str, Any]:
    """Train two networks and the curves between them, and score networks along these and along the straight line.

    `positions` (T,); `paths`: name -> `along`; `surfaces`: name of a curve -> `in_its_plane`, empty without surfaces.
    """
    ends, train, test = _two_ends(task, seed, home)
    fit = partial(tb.fit, ends.model, train, start=ends, seed=seed, resume=True, callbacks=())
    curves = {name: fit(method, directory=home / method.shape) for name, method in task.curves().items()}
    bezier = curves[BEZIER]
    straight = replace(bezier, points_MPD=bezier.points_MPD[:, [0, -1]], shape="chain")
    positions = torch.linspace(0, 1, task.points, dtype=torch.float64).tolist()
    paths = along({SEGMENT: straight, **curves}, train, test, positions=positions, decay=task.decay)
    some = train[0][: task.surface_rows], train[1][: task.surface_rows]
    drawn = curves if task.surface_points else {}
    planes = {n: in_its_plane(c, some, points=task.surface_points, decay=task.decay) for n, c in drawn.items()}
    return {"positions": positions, "paths": paths, "surfaces": planes}


def _penalty(network: tb.Point, decay: float) -> float:
    """Return ½ λ |w|², the part of the prior in the mean loss of a row, in nats."""
    return 0.5 * decay * float(network.weights_MD.double().square().sum())


def along(
    paths: Mapping[str, tb.CurvePosterior], train: Rows, test: Rows, *, positions: Sequence[float], decay: float
) -> dict[str, dict[str, Any]]:
    """Return the scores of networks at positions on paths that have their ends in common: name -> score -> values.

    They are `loss` (NLL of training rows + ½ λ |w|², in nats), `nll` (the first of both), and what `scores` returns.
    Batch-norm statistics of every network are recalibrated.
    """

    def judged(network: tb.Point) -> tuple[float, float, Tensor]:
        functions = network.functions()
        nll = float(-tb.predict(functions, train[0]).log_prob(functions.model.place(train[1])).double().mean())
        return nll + _penalty(network, decay), nll, tb.predict(functions, test[0]).probs.double().cpu()

    first = next(iter(paths.values()))
    start, end = (judged(first.at(t)) for t in (positions[0], positions[-1]))
    scored = {}
    for name, path in paths.items():
        loss, nll, probs = zip(start, *(judged(path.at(t)) for t in positions[1:-1]), end, strict=True)
        scored[name] = {"loss": list(loss), "nll": list(nll), **scores(torch.stack(probs), test[1].cpu())}
    return scored


def scores(probs_TNK: Tensor, targets: Tensor) -> dict[str, Any]:
    """Return how networks at T evenly spaced positions, both ends among them, do on test rows, alone and averaged.

    `error` and `test_nll` of each network; `differs`: share of rows whose class differs from that at t = 0;
    `pair_error` and `pair_nll`: of the average of the networks at 0 and t; `averages`: number K of networks, evenly
    spaced with both ends -> `error` and `nll` of their average, for every K that the positions allow.
    """

    def errors_and_nlls(probs_XNK: Sequence[Tensor] | Tensor) -> tuple[list[float], list[float]]:
        errors = [float(1 - tb.metrics.accuracy(probs_NK, targets)) for probs_NK in probs_XNK]
        right_XN = [probs_NK.gather(1, targets[:, None])[:, 0] for probs_NK in probs_XNK]
        return errors, [float(tb.metrics.nll(right_N.log())) for right_N in right_XN]

    counts, steps = zip(*spacings(len(probs_TNK)), strict=True)
    (error, nll), (pair_error, pair_nll) = map(errors_and_nlls, (probs_TNK, (probs_TNK[0] + probs_TNK) / 2))
    averages = zip(counts, *errors_and_nlls([probs_TNK[::step].mean(0) for step in steps]), strict=True)
    classes_TN = probs_TNK.argmax(-1)
    return {
        "error": error,
        "test_nll": nll,
        "differs": (classes_TN != classes_TN[0]).double().mean(1).tolist(),
        "pair_error": pair_error,
        "pair_nll": pair_nll,
        "averages": {str(count): {"error": error, "nll": nll} for count, error, nll in averages},
    }


def spacings(positions: int) -> list[tuple[int, int]]:
    """Return (K, step) for every number K ≥ 2 of evenly spaced positions, both ends among them."""
    steps = [step for step in range(positions - 1, 0, -1) if (positions - 1) % step == 0]
    return [((positions - 1) // step + 1, step) for step in steps]


def in_its_plane(path: tb.CurvePosterior, train: Rows, *, points: int, decay: float) -> dict[str, Any]:
    """Return the loss over the plane of a curve with one bend, and the curve in it.

    `x` (P,), `y` (P,), `loss` (P, P), `marks` (3, 2): first end, second end and bend; and `curve` (T, 2).
    """
    first_D, bend_D, last_D = path.points_MPD[0]
    plane = Plane.through(path.model, torch.stack([first_D, last_D, bend_D]))
    over = surface(path.model, train, plane, points=points, measure=lambda network: _penalty(network, decay))
    assert over.own_QP is not None
    curve_TD = path.weights(torch.linspace(0, 1, 101, dtype=torch.float64))[:, 0]
    curve_T2 = (curve_TD - plane.origin_D).double() @ plane.axes_2D.double().T
    tensors = {"x": over.x_P, "y": over.y_Q, "loss": over.nll_QP + over.own_QP, "marks": over.marks_K2}
    return {key: np.round(tensor.cpu().numpy(), 6).tolist() for key, tensor in (tensors | {"curve": curve_T2}).items()}


def on_alignment(task: Alignment, seed: int, home: Path) -> dict[str, Any]:
    """Train two perceptrons, match the hidden units of one to those of the other, and score the straight lines.

    `positions` (T,); `lines`: how units were matched -> `nll` of the training rows, `error` of the test rows at every
    position, and `height` and `excess` of the barrier of the former, in nats.
    """
    ends, train, test = _two_ends(task, seed, home)
    some = train[0][: task.activation_rows], train[1][: task.activation_rows]
    rows = train[0][: task.barrier_rows], train[1][: task.barrier_rows]
    pairs = {
        BEFORE: ends,
        BY_WEIGHTS: align(ends.model, ends, seed=seed),
        BY_ACTIVATIONS: align(ends.model, ends, method="activations", data=some, seed=seed),
    }
    lines: dict[str, Any] = {}
    positions: list[float] = []
    for name, pair in pairs.items():
        first, second = pair.weights_MD
        near, far = (barrier(ends.model, each, first, second=second, points=task.points) for each in (rows, test))
        positions, scored = list(near.positions), {"nll": list(near.nll), "error": list(far.error or ())}
        lines[name] = {**scored, "height": near.height, "excess": near.excess}
    return {"positions": positions, "lines": lines}
