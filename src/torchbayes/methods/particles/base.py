"""What methods with particles share: steps of gradient descent along directions in which members interact.

The direction of a member is a linear combination of the gradients of all members and of the members themselves, by (M,
M) matrices. A single member moves as in `MAP`, bit for bit. Everything is on the scale of the mean loss −(T/N) log p:
the driving term and the repulsion are both divided by N/T, and a learning rate means the same as for `MAP`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.density.dynamics import Density, Value
from torchbayes.health.descent import Descended
from torchbayes.health.kept import one_point
from torchbayes.methods.defaults import Report
from torchbayes.methods.noise import normals
from torchbayes.methods.optimise import descent
from torchbayes.methods.optimise.descent import Scheduled, after, descend
from torchbayes.methods.optimise.optimizers import Optimizer, Slots
from torchbayes.methods.particles.kernels import Pairs, middle
from torchbayes.methods.protocol import Needs
from torchbayes.model.network import Buffers
from torchbayes.posteriors.point import Point
from torchbayes.randomness.seeds import Purpose

Annealing = Literal["linear", "hyperbolic", "cyclic"]
Direction = Callable[[Tensor, Tensor], Pairs]
"""weights (M, D), gradients (M, D) that become the direction -> the kernel of all pairs."""
_CYCLES, _POWER, _SLOPE = 5, 10, 1.3
_APART = 0.01  # initial distance of particles that start as one point, as a share of the size of the weights


def annealed(annealing: Annealing | None, done: float) -> float:
    """Return γ, the factor on the driving term when a share `done` in [0, 1) of the run is complete.

        linear       min(1, t / 0.8)
        hyperbolic   tanh((1.3 t)^10)
        cyclic       (5t − ⌊5t⌋)^10 for t < 0.8, then 1

    Where γ is small the particles move apart. All end with γ = 1, or within 10⁻⁹ of it (D'Angelo and Fortuin 2021,
    "Annealed Stein variational gradient descent").
    """
    if annealing is None:
        return 1.0
    if annealing == "hyperbolic":
        return math.tanh((_SLOPE * done) ** _POWER)
    alone = 1 - 1 / _CYCLES
    if done >= alone:
        return 1.0
    return done / alone if annealing == "linear" else (done * _CYCLES % 1) ** _POWER


@dataclass(frozen=True)
class Info(Report):
    """What a step reports for the log."""

    loss_M: Tensor  # negative log joint density per observation of each member on its batch, in nats
    nll_M: Tensor  # mean negative log likelihood of the batch's rows, a part of it, in nats
    kernel_M: Tensor  # mean of k(x_i, x_j) over the other members j; 0 for one member
    distance_M: Tensor  # median distance to the other members; 0 for one member
    lr: float

    @classmethod
    def of(cls, seen: descent.Info, pairs: Pairs) -> Info:
        """Return the info of a step of descent, with the kernel there."""
        kernel_MO, distance_MO = others(pairs.values_MM), others(pairs.squares_MM.sqrt())
        return cls(seen.loss_M, seen.nll_M, kernel_MO.mean(1), middle(distance_MO), seen.lr)


def others(pairs_MM: Tensor) -> Tensor:
    """Return the elements off the diagonal, (M, M − 1); a zero for one member."""
    count = len(pairs_MM)
    if count == 1:
        return torch.zeros_like(pairs_MM)
    return pairs_MM.flatten()[1:].view(count - 1, count + 1)[:, :-1].reshape(count, count - 1)


class Plain(NamedTuple):
    """A density without data, as a target: its loss is −log p, for N = 1."""

    density: Density
    num_data: int = 1

    def loss(self, weights_MD: Tensor, batch: Any = None, *, out: Tensor, **options: Any) -> Value:
        """Return −log p and its gradient, which is written to `out`."""
        value = self.density(weights_MD)
        torch.neg(value.gradient, out=out)
        return Value(-value.log_density, out, value.log_likelihood)


def target_of(density: LogDensity | Density) -> Any:
    """Return the objective of a descent: the density itself if it has a loss per observation."""
    return density if hasattr(density, "loss") else Plain(density)


def heat_of(density: LogDensity | Density) -> float:
    """Return the factor on the repulsion on the scale of the loss: T/N where T divides the prior too, else 1/N."""
    model: Any = getattr(density, "model", None)
    heat = model.temperature if model is not None and model.tempering == "joint" else 1.0
    return heat / getattr(density, "num_data", 1)


class Coupled:
    """An optimiser that moves along a direction in which members interact."""

    pairs: Pairs  # the kernel of all pairs, once a step is taken

    def __init__(self, optimizer: Optimizer, direction: Direction) -> None:
        """Wrap the optimiser of a step."""
        self._optimizer, self._direction = optimizer, direction

    def update(self, weights_MD: Tensor, gradient_MD: Tensor, slots: Slots, *, lr: float) -> None:
        """Take one step in place; the gradient becomes the direction."""
        self.pairs = self._direction(weights_MD, gradient_MD)
        self._optimizer.update(weights_MD, gradient_MD, slots, lr=lr)


class Particles(Scheduled, ABC):
    """Base of methods with particles: a descent along directions in which members interact, and no draws."""

    members: int
    epochs: int | None
    batch_size: int
    annealing: Annealing | None

    @property
    def needs(self) -> Needs:
        """Minibatches, through a network in training mode; members that stay together."""
        return Needs(batch_size=self.batch_size, network="train", coupled=True)

    @abstractmethod
    def force(self, density: Any, state: Any, batch: Any) -> tuple[Any, Direction]:
        """Return the objective of a step, and a function that turns the gradients of all members into a direction.

        `batch` has one minibatch per member, (M, B, ...); None for a density that brings its own data.
        """

    def begin(
        self, density: Any, weights_MD: Tensor, buffers: Buffers, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> Any:
        """Return the trajectory before its first step.

        Particles that start as one point, as in a subspace or at a trained network, would stay one: there is no force
        between them, and rows that they share do not separate them. They are moved by normal numbers of 1 % of the
        root mean square of the weights, or of 1 where these are all zero.
        """
        if len(weights_MD) > 1 and bool((weights_MD == weights_MD[:1]).all()):
            size = torch.linalg.vector_norm(weights_MD[0]) / math.sqrt(weights_MD.shape[1])
            size = torch.where(size > 0, size, torch.ones_like(size))
            weights_MD = weights_MD + _APART * size * normals(seeds, Purpose.APART, 0, like=weights_MD)
        return descent.start(
            weights_MD, buffers, seeds, optimizer=self.optimizer, epochs=self.epochs, steps_per_epoch=steps_per_epoch
        )

    def move(self, density: Any, state: Any, batch: Any, *, donate: bool = False) -> tuple[Any, Info]:
        """Return all particles one optimiser step on, and the info of the step."""
        target, direction = self.force(density, state, batch)
        update, now = Coupled(self.optimizer, direction), state.trajectory
        moved, info = descend(target, now, batch, optimizer=update, lr=self.rate(now), donate=donate)
        return after(state, moved, Info.of(info, update.pairs))

    def ending(self, posterior: Point, state: Any) -> Descended:
        """Return where the particles ended; they must not be one point."""
        end = state.trajectory
        return Descended(weights_MD=end.weights_MD, buffers=end.buffers, together=True, then=[one_point])
