r"""How long to train: chosen by a first run of one member, on rows that other rows are held out of.

A network that is trained too long interpolates the training rows: its noise scale goes to zero, its probabilities to
zero and one. The first run has a constant learning rate. After an epoch e the held-out rows have the mean negative
log likelihood v_e, in nats a target, and

    e* = min { e : v_e ≤ min_e' v_e' + 0.02 },    epochs = max(4, 2 e*)

are those of the run itself, which has all rows and a learning rate that falls: at half the rate on average, 2 e*
epochs cover the same distance. The first run ends where v has not fallen for 0.3 e epochs, 10 epochs and
300 steps, or after 50 epochs or 8,000 steps, whichever is more. Where few rows are held out there are several such
runs, each without rows of its own, and v is their mean. A network with ten rows or more for each weight cannot
interpolate them, and trains for the usual length at least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.methods.constant import num_targets
from torchbayes.methods.flat.sam import AnyOptimizer
from torchbayes.methods.optimise.descent import USUAL_EPOCHS, Trajectory, descend, epochs_of, start
from torchbayes.methods.optimise.health import log_likelihoods
from torchbayes.methods.optimise.learned import asked
from torchbayes.methods.protocol import Chosen, DivergedError, Fold
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers
from torchbayes.model.rows.sources import Source
from torchbayes.posteriors.point import Point

FACTOR, _SHORTEST = 2, 4  # epochs at least: SWAG needs two snapshots in the second half of them
_ROWS = 10  # for each weight: fewer weights interpolate nothing, and a shorter run would only miss the mode
_EQUAL = 0.02  # nats: an earlier epoch that is as good to within this is preferred
_LONGEST = 8000  # steps of the first run
_NEXT = 1.05  # ratio of the epochs after which held-out rows are looked at: each of the first twenty, then fewer
_PATIENCE = {"epochs": 10, "steps": 300, "share": 0.3}


class Trained(Protocol):
    """Settings of a method that descends."""

    @property
    def epochs(self) -> int | None:
        """Passes over the data; None where they are to be chosen."""
        ...

    @property
    def optimizer(self) -> AnyOptimizer:
        """Update rule and learning rate."""
        ...


def choose_epochs(
    method: Trained,
    density: LogDensity,
    folds: Sequence[Fold],
    *,
    weights_MD: Tensor,
    buffers: Buffers,
    seeds: Sequence[int],
    told: Callable[[int, int, float], object] = lambda *_: None,
) -> Chosen:
    """Return the epochs that held-out rows choose; at most those of the method, where these are set.

    Args:
        method: the settings.
        density: the target of the rows that are not held out, in training mode.
        folds: rows to train on with those held out, a first run for each; all train on equally many.
        weights_MD: where they begin, (1, D).
        buffers: the network's buffers there.
        seeds: of the member, one.
        told: called after each epoch with their number, the largest there can be, and the negative log likelihood of
            the held-out rows when it was last looked at.

    Returns:
        `epochs`, and a record of the first runs: their epochs, the best one, and the mean negative log likelihood of
        the held-out rows there, in nats a target. Where they diverged at once nothing is chosen.
    """
    per_epoch = folds[0].rows.steps_per_epoch
    most = method.epochs or max(USUAL_EPOCHS, -(-_LONGEST // per_epoch))
    optimizer, epoch, seen, best = method.optimizer, 0, dict[int, float](), list[Point]()
    first = start(weights_MD, buffers, seeds, optimizer=optimizer, epochs=most, steps_per_epoch=per_epoch)
    # they take turns at one gradient, and hold weights and slots of their own
    runs = [first, *(replace(first.clone(), gradient_MD=first.gradient_MD) for _ in folds[1:])]
    try:
        while epoch < most and not _out_of_patience(seen, per_epoch):
            runs = [_epoch(density, run, fold.rows, optimizer) for run, fold in zip(runs, folds, strict=True)]
            epoch += 1
            if epoch >= max(seen, default=0) * _NEXT + 1 or epoch == most:
                points = [_point(density.model, run) for run in runs]
                seen[epoch] = _nll(points, folds)
                best = points if seen[epoch] == min(seen.values()) else best
            told(epoch, most, seen[max(seen)])
    except DivergedError:  # what was seen before stands; a run that diverges again says so itself
        pass
    if not seen or not math.isfinite(least := min(seen.values())):
        return Chosen({}, {})
    early = next(epoch for epoch, nll in seen.items() if nll <= least + _EQUAL)
    record = {"first_run": epoch, "best_epoch": early, "nll": seen[early]}
    learned_P = asked(best, folds)
    few = density.model.layout.size * _ROWS <= folds[0].rows.num_data
    shortest = epochs_of(None, per_epoch) if few else _SHORTEST
    settings = {"epochs": min(most, max(shortest, FACTOR * early))}
    return Chosen(settings, record, learned=None if learned_P is None else learned_P.tolist())


def _out_of_patience(seen: Mapping[int, float], steps_per_epoch: int) -> bool:
    """Return whether the first run has not become better for long."""
    if not seen:
        return False
    best = min(seen, key=seen.__getitem__)
    waits = (_PATIENCE["epochs"], _PATIENCE["steps"] / steps_per_epoch, _PATIENCE["share"] * best)
    return max(seen) - best >= max(waits)


def _epoch(density: LogDensity, run: Trajectory, rows: Source, optimizer: AnyOptimizer) -> Trajectory:
    """Return the trajectory one epoch on, at a constant learning rate."""
    target, rule = optimizer.objective(density), optimizer.rule
    for batch in rows.epoch(run.seeds, run.step // rows.steps_per_epoch):
        run, _ = descend(target, run, batch, optimizer=rule, lr=optimizer.lr, donate=True)
    return run


def _point(model: Model, run: Trajectory) -> Point:
    """Return the network of a run as it is now."""
    return Point(model, run.weights_MD.clone(), buffers_M=run.buffers or None, statistics_known=True)


def _nll(points: Sequence[Point], folds: Sequence[Fold]) -> float:
    """Return the mean negative log likelihood of all held-out rows, in nats a target; ∞ where it is not finite."""
    total = sum(float(log_likelihoods(p, fold.held_out).sum()) for p, fold in zip(points, folds, strict=True))
    return -total / sum(num_targets(points[0].model, fold.held_out) for fold in folds)
