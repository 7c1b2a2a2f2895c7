"""Stein variational gradient descent (Liu and Wang 2016): M particles that follow each other's gradients and repel.

    x_i ← x_i + ε φ(x_i),     φ(x_i) = (1/M) Σ_j [ γ k(x_j, x_i) ∇log p(x_j) + ∂k(x_j, x_i)/∂x_j ]

with the gradient of the full log posterior, on minibatches (N/B) Σ_b ∇log p(y_b | x) + ∇log p(x), the kernels of
`torchbayes.methods.particles.kernels`, and an optimiser instead of the plain step. φ is divided by N/T, on the scale
of the mean loss. One particle is MAP. With M → ∞ the particles are draws of the posterior; a few in many dimensions
are not, see `SVGD`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.density.dynamics import Density
from torchbayes.density.plans import BackendName
from torchbayes.methods.optimise.descent import Descent, Trajectory
from torchbayes.methods.optimise.settings import Training
from torchbayes.methods.particles.base import Annealing, Direction, Particles, annealed, heat_of, target_of
from torchbayes.methods.particles.kernels import RBF, Linear, Pairs, are_far, combine_, gram
from torchbayes.methods.protocol import Shelf
from torchbayes.model.model import Batch
from torchbayes.posteriors.point import Point

State = Trajectory


@dataclass(frozen=True)
class SVGD(Training, Particles, Descent):
    """Stein variational gradient descent: an ensemble whose members follow each other's gradients and repel.

    Few particles in many dimensions spread too little. For a normal target, RBF kernel and median heuristic, 50
    particles have 0.94 of its variance in 1 dimension, 0.66 in 5, 0.28 in 10 and 0.04 in 100: in the weights of a
    network the repulsion is next to nothing, and what is left is an ensemble with averaged gradients.

    Members interact, so processes can share the data and not the members.

    Attributes:
        members: M, particles.
        batch_size: rows per step where the data are not batched already; each particle has its own order of them.
        optimizer: update rule and learning rate, on the scale of the mean loss per observation. With the RBF kernel φ
            is about 1/M of the gradient of one network, which Adam makes up for and SGD does not.
        kernel: rbf, exp(−‖x − y‖²/h), or linear, xᵀy + 1, which gives more particles than weights the exact mean and
            covariance of a normal density, and is only for few weights.
        bandwidth: h of rbf, in squared units of the weights; None takes median² / log M of the distances at every
            step.
        annealing: how γ grows to 1 over the run, so that particles first move apart: linear, hyperbolic or cyclic;
            None leaves it at 1.
        plan: how the stack of members is run: auto, native, loop, vmap or compiled.
    """

    members: int = 10
    kernel: Literal["rbf", "linear"] = "rbf"
    bandwidth: float | None = None
    annealing: Annealing | None = None
    plan: BackendName | str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel == "linear" and self.bandwidth is not None:
            raise ValueError(f"`bandwidth` is for kernel='rbf'; got {self.bandwidth:g} for 'linear'. Leave it out.")

    def force(self, density: LogDensity | Density, state: State, batch: Batch | None) -> tuple[Any, Direction]:
        """Return the loss, and φ as the direction."""
        drive, heat = annealed(self.annealing, state.done), heat_of(density)
        kernel = RBF(self.bandwidth) if self.kernel == "rbf" else Linear()

        def direction(weights_MD: Tensor, gradient_MD: Tensor) -> Pairs:
            pairs, count = kernel.pairs(gram(weights_MD, centred=kernel.centred)), len(weights_MD)
            mixing_MM, force_MM = pairs.values_MM * (drive / count), pairs.repulsion_MM * (-heat / count)
            centred = kernel.centred and are_far(pairs, weights_MD)
            combine_(gradient_MD, mixing_MM, force_MM, particles_MD=weights_MD, centred=centred)
            return pairs

        return target_of(density), direction

    def posterior(self, density: LogDensity, state: State, shelf: Shelf | None = None) -> Point:
        """Return the point masses at the particles."""
        return Point(density.model, state.weights_MD.clone(), buffers_M=state.buffers or None, statistics_known=True)
