"""Simplex: a volume of low loss around a solution, or between several (Benton et al. 2021).

    minimise  E_φ L(φ) − (λ/K) Σ_k log V_k,   φ uniform over the simplexes,   L = −(T/N) log p(w, D)

over R vertices θ_1 … θ_R. Simplex k, of volume V_k, has them and mode w_k, which stays where it is: one mode (ESPRO of
the paper) lies in a simplex of low loss, and several (SPRO) are connected by their simplexes. A step draws one point
φ(b) of each complex and a minibatch:

    ∂/∂θ_j = b_j ∇L(φ(b)) − (λ/K) Σ_k n_jk/h_jk

with h_jk the altitude of θ_j over the other vertices of simplex k, and n_jk its direction. All vertices move together,
where the paper adds one after the other. They start near the mean of the modes, in random directions.

The volume costs loss: at the minimum over the size of a simplex, E L lies λ R/2 above L at its mode, if L is quadratic
with its minimum there. With λ = T/N the objective is the divergence of the uniform distribution over the simplex from
the posterior in its plane, up to a constant. That posterior has R dimensions of D, so larger λ are usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.density.dynamics import Value
from torchbayes.density.plans import BackendName
from torchbayes.health.curves import inside, same_modes
from torchbayes.methods.curves.base import Between, Joining
from torchbayes.methods.keepers import Following
from torchbayes.methods.noise import normals, uniforms
from torchbayes.methods.optimise.descent import Descent, Trajectory
from torchbayes.methods.optimise.optimizers import Adam
from torchbayes.methods.optimise.sam import AnyOptimizer
from torchbayes.methods.protocol import Shelf
from torchbayes.methods.schedules import Cosine, Schedule
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers
from torchbayes.posteriors.curves.simplex import SimplexPosterior, barycentric, in_complex
from torchbayes.posteriors.curves.volumes import add_slopes, grams, inverses, log_volumes
from torchbayes.posteriors.point import Point
from torchbayes.randomness.seeds import Purpose

_START = 0.01  # initial distance of a vertex from the mean of the modes, relative to their size


@dataclass(frozen=True)
class State(Following):
    """What the next step needs."""

    trajectory: Trajectory  # descent of the vertices that move, all together, (M, R D)
    modes_MKD: Tensor


@dataclass(frozen=True)
class Simplex(Joining, Descent):
    """Simplexes of low loss around solutions: `fit(model, data, Simplex(), start=network)`.

    The start holds the K modes of every complex, one after the other: with `modes=1` each member of a deep ensemble,
    or of `Point.of(model, modules)`, has a simplex of its own. Without a start, `fit` trains them by
    `MAP(batch_size=…)`.

    Attributes:
        vertices: R, trained vertices; a simplex has as many dimensions.
        modes: K, solutions that a complex connects; each has a simplex with the trained vertices.
        volume_weight: λ, nats per observation that a log volume counts.
        epochs: passes over the data. None takes those that held-out rows choose for the networks where `fit` trains
            them, and otherwise 50, or more where these have fewer than 2,000 steps.
        batch_size: rows per step where the data are not batched already.
        optimizer: update rule and learning rate of the vertices, on the scale of the mean loss per observation.
        schedule: how the learning rate changes over the run.
        plan: how the stack of members is run: auto, native, loop, vmap or compiled.
        members: M, complexes whose modes are trained where no start is given; with a start, `fit` sets it to the
            number of networks there over K.
    """

    first, then = (same_modes,), (inside,)

    vertices: int = 3
    modes: int = 1
    volume_weight: float = 0.03
    epochs: int | None = None
    batch_size: int = 128
    optimizer: AnyOptimizer = field(default_factory=lambda: Adam(3e-3))
    schedule: Schedule = field(default_factory=Cosine)
    plan: BackendName | str = field(default="auto", kw_only=True)
    members: int = field(default=1, kw_only=True)

    @property
    def ends(self) -> int:
        return self.modes

    def begin(
        self, density: LogDensity, weights_MD: Tensor, buffers: Buffers, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> State:
        """Return the state before the first step, with the vertices in random directions from the mean of the modes.

        The weights are the modes, (K M, D), those of each complex one after the other, and so are the buffers.

        Raises:
            ValueError: if there are more vertices than weights.
        """
        modes_MKD = weights_MD.unflatten(0, (-1, self.modes)).clone()
        size = modes_MKD.shape[-1]
        if self.vertices > size:
            raise ValueError(
                f"`vertices` must be at most the {size} random weights of the network, which a simplex of more "
                f"dimensions does not fit in; got {self.vertices}."
            )
        mean_MD, wide_MKD = modes_MKD.mean(1), modes_MKD.double()
        step_M1 = _START * wide_MKD.square().mean((1, 2)).sqrt().unsqueeze(1)
        step_M1 = step_M1.where(step_M1 > 0, _START)
        vertices_MV = mean_MD.repeat(1, self.vertices)
        noise_MV = normals(seeds, Purpose.SIMPLEX_START, 0, like=vertices_MV)
        vertices_MV = vertices_MV.addcmul_(noise_MV, step_M1.to(noise_MV))
        descent = super().begin(
            density,
            vertices_MV,
            {n: b[:: self.modes] for n, b in buffers.items()},
            seeds=seeds,
            steps_per_epoch=steps_per_epoch,
        )
        return State(descent, modes_MKD)

    def target(self, density: LogDensity, state: State) -> Between | _Spread:
        now, modes = state.trajectory, self.modes
        uniform_M = uniforms(now.seeds, Purpose.SIMPLEX_POSITION, now.step, count=self.vertices + 1)
        number_M = (uniform_M[:, 0] * modes).long()
        shares_MP = in_complex(barycentric(uniform_M[:, 1:]), number_M, modes)
        inside = Between(density, state.modes_MKD.unbind(1), shares_MP[:, :modes], shares_MP[:, modes:])
        return _Spread(inside, state.modes_MKD, self.volume_weight) if self.volume_weight > 0 else inside

    def posterior(self, density: LogDensity, state: State, shelf: Shelf | None = None) -> SimplexPosterior:
        """Return the uniform distribution over the simplexes."""
        shared_MRD = state.trajectory.weights_MD.unflatten(1, (self.vertices, -1))
        vertices_MPD = torch.cat([state.modes_MKD, shared_MRD], dim=1)
        return SimplexPosterior(density.model, vertices_MPD, self.modes, buffers_M=state.trajectory.buffers or None)

    def middle(self, posterior: SimplexPosterior) -> Point:
        """Return the network in the middle of the first simplex of each complex."""
        centre = torch.full((self.vertices + 1,), 1 / (self.vertices + 1), dtype=torch.float64)
        return posterior.at(in_complex(centre, torch.tensor(0), self.modes))


@dataclass(frozen=True)
class _Spread:
    """The loss at a point of each complex, less the logarithms of its volumes."""

    inside: Between  # the loss as a function of the vertices
    modes_MKD: Tensor
    weight: float  # λ

    @property
    def model(self) -> Model:
        """The model."""
        return self.inside.model

    @property
    def num_data(self) -> int:
        """N."""
        return self.inside.num_data

    def loss(self, vertices: Tensor, batch: Batch, *, buffers: Buffers, seeds: Sequence[int], out: Tensor) -> Value:
        """Return the loss, and write its gradient in the vertices to `out` (M, R D); infinite where a volume is 0."""
        value = self.inside.loss(vertices, batch, buffers=buffers, seeds=seeds, out=out)
        shape, modes = (-1, self.modes_MKD.shape[-1]), self.modes_MKD.shape[1]
        others_MRD = vertices.unflatten(1, shape)
        gram_MKRR = grams(self.modes_MKD, others_MRD)
        add_slopes(
            out.unflatten(1, shape),
            self.modes_MKD,
            others_MRD,
            inverse_MKRR=inverses(gram_MKRR),
            scale=-self.weight / modes,
        )
        return value._replace(log_density=value.log_density - self.weight * log_volumes(gram_MKRR).mean(1))
