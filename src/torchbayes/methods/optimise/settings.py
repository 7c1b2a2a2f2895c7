"""Settings that methods share which take steps on minibatches."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchbayes.methods.optimise.optimizers import Adam, Optimizer
from torchbayes.methods.schedules import Cosine, Schedule


@dataclass(frozen=True)
class Runs:
    """Independent runs, and how long each of them is.

    Attributes:
        members: M, independent runs, whose mixture is the posterior.
        epochs: passes over the data; None lets the method, or held-out rows, choose them: see `fit`.
        batch_size: rows per step where the data are not batched already.
    """

    members: int = 1
    epochs: int | None = None
    batch_size: int = 128


@dataclass(frozen=True)
class Training(Runs):
    """The same, with the rule by which a step is taken.

    Attributes:
        optimizer: update rule and learning rate, on the scale of the mean loss per observation.
        schedule: how the learning rate changes over the run.
    """

    optimizer: Optimizer = field(default_factory=lambda: Adam(3e-3))
    schedule: Schedule = field(default_factory=Cosine)
