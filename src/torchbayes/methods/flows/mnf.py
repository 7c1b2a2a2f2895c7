"""Multiplicative normalising flows (Louizos and Welling 2017): normal weights whose means share random multipliers.

    q(W) = ∫ q(W | z) q(z) dz,    q(W | z) = Π N(z M, σ²),    q(z) a masked RealNVP from a normal distribution

with one multiplier for each input of a dense layer and for each filter of a convolution; other weights are normal. The
marginal has no density, so an auxiliary r(z | W) replaces q(z | W), and

    minimise  −L = E[−Σ_n log p(y_n | x_n, W)] + β E[KL(q(W | z) ‖ p(W)) + log q(z) − log r(z | W)]

which is the bound of q(W) less β E KL(q(z | W) ‖ r(z | W)). Every draw for a step is one z for all rows and one W, so
that it is a function, unless layers take the weights given z as distributions (`estimator`). The divergence of W given
z is closed where the prior's expectation is. `torchbayes.posteriors.flows.multipliers` has the distributions, and says
where they differ from the paper's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.density.plans import BackendName
from torchbayes.methods.flows.fitted import Draws, Fitted, parts_of
from torchbayes.methods.optimise.settings import Training
from torchbayes.methods.protocol import Shelf
from torchbayes.methods.variational.objective import Fitting, State
from torchbayes.methods.variational.weighting import Weighting
from torchbayes.model.model import Model
from torchbayes.posteriors.flows.multipliers import Multipliers, multiplied
from torchbayes.posteriors.flows.posterior import MNFPosterior


@dataclass(frozen=True)
class MNFFamily:
    """Normal weights with random multipliers."""

    multipliers: Multipliers  # of all layers
    scale: float  # initial standard deviation of the multipliers before their flow

    @property
    def noise_size(self) -> int:
        """Number of standard normals for one draw."""
        return self.multipliers.noise_size

    @property
    def num_parameters(self) -> int:
        """Number of parameters of q(z) and r(z | W)."""
        return self.multipliers.layout.size

    def start(self, noise_MP: Tensor) -> Tensor:
        """Return parameters with multipliers around 1, and r(z | W) = q(z)."""
        return self.multipliers.start(noise_MP, self.scale)

    def draw(self, mean_MD: Tensor, log_scale_MD: Tensor, rest_MP: Tensor, *, noise_MSE: Tensor) -> Draws:
        """Return w = z ∘ M + σ ∘ ε, and the entropy of w given z, with log r(z | W) − log q(z)."""
        scale_MD = log_scale_MD.exp()
        drawn = self.multipliers.draw(mean_MD, scale_MD, rest_MP, noise_MSE=noise_MSE)
        constant = 0.5 * mean_MD.shape[1] * math.log(2 * math.pi * math.e)
        scales_M1 = log_scale_MD.sum(-1, keepdim=True, dtype=torch.float64)
        variance_MSD = scale_MD.square().unsqueeze(1).expand_as(drawn.mean_MSD)
        normal = (drawn.mean_MSD, variance_MSD)
        return Draws(drawn.weights_MSD, drawn.free_MS + scales_M1 + constant, normal)


@dataclass(frozen=True)
class MNF(Training, Fitted, Fitting):
    """Variational inference with multiplicative normalising flows.

    Attributes:
        epochs: passes over the data; None for 50, or as many as make 5,000 steps.
        layers: steps of each flow, of q(z) and of r(z | W).
        hidden: units of each step.
        draws: S, draws for each step.
        estimator: of the gradient: "weights" draws z and W; the others draw z, and layers take the weights given z as
            normal distributions, with noise for each example, as in `VI`. The paper's is "local".
        initial_scale: initial standard deviation of every weight given the multipliers.
        multiplier_scale: initial standard deviation of the multipliers before their flow.
        kl_weight: β: a number, `Halving()` or `WarmUp()`. None lets held-out rows choose a number of at most 1: see
            `torchbayes.selection.lowered`.
        plan: how the stack of members is run: auto, native, loop, vmap or compiled.
    """

    layers: int = 2
    hidden: int = 50
    draws: int = 1
    estimator: Literal["weights", "auto", "local", "flipout"] = "weights"
    initial_scale: float = 0.02
    multiplier_scale: float = 0.1
    kl_weight: float | Weighting | None = None
    plan: BackendName | str = "auto"

    def family(self, model: Model) -> MNFFamily:
        """Return the distributions over the weights of a model.

        Raises:
            ValueError: if it has no dense or convolutional layer with random weights.
        """
        layers = multiplied(model)
        return MNFFamily(Multipliers(layers, model.layout.size, self.layers, self.hidden), self.multiplier_scale)

    def posterior(self, density: LogDensity, state: State, shelf: Shelf | None = None) -> MNFPosterior:
        """Return the mixture of the members' distributions."""
        return MNFPosterior(
            density.model,
            *parts_of(state),
            layers=self.layers,
            hidden=self.hidden,
            buffers_M=state.trajectory.buffers or None,
        )
