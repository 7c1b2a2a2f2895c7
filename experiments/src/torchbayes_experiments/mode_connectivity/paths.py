"""Networks along paths between two solutions: their losses, how they differ, and what their averages are worth.

A path is a `CurvePosterior` of one curve; the straight line is one without bends. Networks on several paths between the
same ends share these, which are evaluated once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbayes.geometry import Plane, surface
from torchbayes.metrics import accuracy, nll
from torchbayes.posteriors import Point
from torchbayes.posteriors.curves.curve import CurvePosterior
from torchbayes.predictive.predict import predict

Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Judged:
    """One network on a path.

    Attributes:
        nll: mean negative log likelihood of the training rows, in nats.
        decay: ½ λ |w|², the part of the prior in the loss of a row, in nats.
        probs_NK: class probabilities of the test rows, float64.
    """

    nll: float
    decay: float
    probs_NK: Tensor


def straight(curve: CurvePosterior) -> CurvePosterior:
    """Return the straight line between the ends of a curve."""
    return replace(curve, points_MPD=curve.points_MPD[:, [0, -1]], shape="chain")


def judged(network: Point, train: Rows, test: Tensor, *, decay: float) -> Judged:
    """Return what one network makes of training and test rows; its batch-norm statistics are recalibrated.

    Args:
        network: of one member.
        train: training inputs and classes.
        test: test inputs.
        decay: λ, weight decay for the mean loss of a row.

    Returns:
        Loss and probabilities.
    """
    functions = network.functions()
    model = functions.model
    nll = -predict(functions, train[0]).log_prob(model.place(train[1])).double().mean()
    probs_NK = predict(functions, test).probs.double().cpu()
    return Judged(float(nll), 0.5 * decay * float(network.weights_MD.double().square().sum()), probs_NK)


def along(
    paths: Mapping[str, CurvePosterior], train: Rows, test: Rows, *, positions: Sequence[float], decay: float
) -> dict[str, dict[str, Any]]:
    """Return the scores of networks along paths that have their ends in common.

    Args:
        paths: name -> path.
        train: training inputs and classes.
        test: test inputs and classes.
        positions: t, evenly spaced from 0 to 1.
        decay: λ, weight decay for the mean loss of a row.

    Returns:
        name -> what `scores` returns, with `loss` (NLL of the training rows + ½ λ |w|², in nats) and `nll` (the first
        of both) at every position.
    """
    first = next(iter(paths.values()))
    ends = [judged(first.at(t), train, test[0], decay=decay) for t in (positions[0], positions[-1])]
    found = {}
    for name, path in paths.items():
        inner = [judged(path.at(t), train, test[0], decay=decay) for t in positions[1:-1]]
        each = [ends[0], *inner, ends[1]]
        probs_TNK = torch.stack([one.probs_NK for one in each])
        losses = {"loss": [one.nll + one.decay for one in each], "nll": [one.nll for one in each]}
        found[name] = {**losses, **scores(probs_TNK, test[1].cpu())}
    return found


def scores(probs_TNK: Tensor, targets: Tensor) -> dict[str, Any]:
    """Return how networks along a path do on test rows, alone and averaged.

    Args:
        probs_TNK: class probabilities of the networks at T positions, evenly spaced with both ends.
        targets: classes (N,).

    Returns:
        `error` and `test_nll` of each network; `differs`: share of rows whose class differs from that at t = 0;
        `pair_error` and `pair_nll`: of the average of the networks at 0 and t; `averages`: number K of networks, evenly
        spaced with both ends -> `error` and `nll` of their average, for every K that the positions allow.
    """
    alone = [_error_and_nll(probs_NK, targets) for probs_NK in probs_TNK]
    pairs = [_error_and_nll((probs_TNK[0] + probs_NK) / 2, targets) for probs_NK in probs_TNK]
    classes_TN = probs_TNK.argmax(-1)
    averages = {str(k): _error_and_nll(probs_TNK[::step].mean(0), targets) for k, step in spacings(len(probs_TNK))}
    return {
        "error": [error for error, _ in alone],
        "test_nll": [nll for _, nll in alone],
        "differs": (classes_TN != classes_TN[0]).double().mean(1).tolist(),
        "pair_error": [error for error, _ in pairs],
        "pair_nll": [nll for _, nll in pairs],
        "averages": {k: {"error": error, "nll": nll} for k, (error, nll) in averages.items()},
    }


def spacings(positions: int) -> list[tuple[int, int]]:
    """Return (K, step) for every number K ≥ 2 of evenly spaced positions, both ends among them."""
    steps = [step for step in range(positions - 1, 0, -1) if (positions - 1) % step == 0]
    return [((positions - 1) // step + 1, step) for step in steps]


def _error_and_nll(probs_NK: Tensor, targets: Tensor) -> tuple[float, float]:
    """Return the share of rows whose most probable class is not the target, and the mean NLL in nats."""
    own_N = probs_NK.gather(1, targets[:, None])[:, 0]
    return float(1 - accuracy(probs_NK, targets)), float(nll(own_N.log()))


def in_its_plane(path: CurvePosterior, train: Rows, *, points: int, positions: int, decay: float) -> dict[str, Any]:
    """Return the loss over the plane of a curve with one bend, and the curve in it.

    Args:
        path: the curve.
        train: training inputs and classes.
        points: of each coordinate of the grid.
        positions: of the curve that is drawn.
        decay: λ, weight decay for the mean loss of a row.

    Returns:
        `x` (P,), `y` (P,), `loss` (P, P), NLL + ½ λ |w|² in nats, `marks` (3, 2): first end, second end and bend; and
        `curve` (T, 2).
    """
    first_D, bend_D, last_D = path.points_MPD[0]
    plane = Plane.through(path.model, torch.stack([first_D, last_D, bend_D]))

    def penalty(network: Point) -> float:
        return 0.5 * decay * float(network.weights_MD.double().square().sum())

    found = surface(path.model, train, plane, points=points, measure=penalty)
    assert found.own_QP is not None
    curve_TD = path.weights(torch.linspace(0, 1, positions, dtype=torch.float64))[:, 0]
    curve_T2 = (curve_TD - plane.origin_D).double() @ plane.axes_2D.double().T
    named = {"x": found.x_P, "y": found.y_Q, "loss": found.nll_QP + found.own_QP, "marks": found.marks_K2}
    return {key: np.round(tensor.cpu().numpy(), 6).tolist() for key, tensor in (named | {"curve": curve_T2}).items()}
