"""Curve: a path of low loss between two solutions (Garipov et al. 2018; Draxler et al. 2018).

    minimise  E_{t ~ U(0,1)} L(φ_θ(t)),   φ_θ(0) = w₁, φ_θ(1) = w₂ fixed,   L = −(T/N) log p(w, D)

over the bends θ of a Bezier curve or a polygonal chain φ_θ (`CurvePosterior`). A step draws one position t for each
curve and a minibatch, and the gradient of the loss there moves the bends:

    ∂/∂θ_j L(φ(t)) = c_j(t) ∇L(φ(t))

The prior acts on the point φ(t), not on the bends. They start on the straight line. The networks along the curve are
solutions that predict differently, and their average is the posterior's prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.density.plans import BackendName
from torchbayes.health.curves import barriers, same_ends
from torchbayes.methods.curves.base import Between, Joining
from torchbayes.methods.keepers import Following
from torchbayes.methods.noise import uniforms
from torchbayes.methods.optimise.descent import Descent, Trajectory
from torchbayes.methods.optimise.optimizers import Adam
from torchbayes.methods.optimise.sam import AnyOptimizer
from torchbayes.methods.protocol import Shelf
from torchbayes.methods.schedules import Cosine, Schedule
from torchbayes.model.network import Buffers
from torchbayes.posteriors.curves.curve import CurvePosterior, Shape, coefficients
from torchbayes.posteriors.point import Point
from torchbayes.randomness.seeds import Purpose


@dataclass(frozen=True)
class State(Following):
    """What the next step needs."""

    trajectory: Trajectory  # descent of the bends, all those of a curve together, (M, J D)
    first_MD: Tensor  # the first ends
    last_MD: Tensor  # the second ends


@dataclass(frozen=True)
class Curve(Joining, Descent):
    """Curves of low loss between solutions: `fit(model, data, Curve(), start=ensemble)`.

    The start holds the two ends of every curve, one after the other: the 2 M members of a deep ensemble, rows of
    weights, or `Point.of(model, [first, second])` of modules. Without a start, `fit` trains them by
    `MAP(batch_size=…)`. Several curves are independent of each other; three solutions are joined pairwise with
    `start=ensemble.weights_MD[[0, 1, 1, 2, 2, 0]]`.

    Attributes:
        bends: J, control points between the ends.
        shape: "bezier", or "chain" for straight lines from bend to bend.
        epochs: passes over the data. None takes those that held-out rows choose for the networks where `fit` trains
            them, and otherwise 50, or more where these have fewer than 2,000 steps.
        batch_size: rows per step where the data are not batched already.
        optimizer: update rule and learning rate of the bends, on the scale of the mean loss per observation.
        schedule: how the learning rate changes over the run.
        plan: how the stack of curves is run: auto, native, loop, vmap or compiled.
        members: M, curves whose ends are trained where no start is given; with a start, `fit` sets it to half the
            number of networks there.
    """

    first, then = (same_ends,), (barriers,)

    bends: int = 1
    shape: Shape = "bezier"
    epochs: int | None = None
    batch_size: int = 128
    optimizer: AnyOptimizer = field(default_factory=lambda: Adam(3e-3))
    schedule: Schedule = field(default_factory=Cosine)
    plan: BackendName | str = field(default="auto", kw_only=True)
    members: int = field(default=1, kw_only=True)

    @property
    def ends(self) -> int:
        return 2

    def begin(
        self, density: LogDensity, weights_MD: Tensor, buffers: Buffers, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> State:
        """Return the state before the first step, with the bends on straight lines.

        The weights are the ends, (2 M, D), two of each curve one after the other, and so are the buffers.
        """
        first_MD, last_MD = (weights_MD[end::2].clone() for end in (0, 1))
        share_J1 = torch.arange(1, self.bends + 1, dtype=first_MD.dtype, device=first_MD.device).unsqueeze(1)
        bends_MJD = torch.lerp(first_MD.unsqueeze(1), last_MD.unsqueeze(1), share_J1 / (self.bends + 1))
        of_curves = bends_MJD.flatten(1)
        descent = super().begin(
            density,
            of_curves,
            {name: b[::2] for name, b in buffers.items()},
            seeds=seeds,
            steps_per_epoch=steps_per_epoch,
        )
        return State(descent, first_MD, last_MD)

    def target(self, density: LogDensity, state: State) -> Between:
        now = state.trajectory
        t_M = uniforms(now.seeds, Purpose.CURVE_POSITION, now.step)
        shares_MP, ends = coefficients(self.shape, t_M, self.bends + 2), (state.first_MD, state.last_MD)
        return Between(density, ends, shares_MP[:, [0, -1]], shares_MP[:, 1:-1])

    def posterior(self, density: LogDensity, state: State, shelf: Shelf | None = None) -> CurvePosterior:
        """Return the uniform distribution along the curves."""
        first_MD, last_MD = state.first_MD, state.last_MD
        bends_MJD = state.trajectory.weights_MD.unflatten(1, (-1, first_MD.shape[1]))
        points_MPD = torch.cat([first_MD.unsqueeze(1), bends_MJD, last_MD.unsqueeze(1)], dim=1)
        return CurvePosterior(density.model, points_MPD, self.shape, buffers_M=state.trajectory.buffers or None)

    def middle(self, posterior: CurvePosterior) -> Point:
        return posterior.at(0.5)
