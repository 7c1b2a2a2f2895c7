"""Normalising flows (Rezende and Mohamed 2015): w = μ + σ ∘ f(ε), ε ~ N(0, I), with f invertible and learned.

    log q(w) = log N(ε; 0, I) − Σ log σ − log |det ∂f/∂ε|

The determinant is that by the input of each map; `torchbayes.posteriors.flows` has the maps. The distribution begins
as a normal one of independent weights, with f the identity, and can become correlated, skewed, curved or multimodal.
The entropy of ε is exact, so the only noise of a step is that of log p(D, w_s) and of the determinant.

The random weights are one vector of D numbers: of a small network, of the part of one that `random=` names, or of a
subspace, `fit(..., space=Subspace(...))`, whose coordinates are few.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.density.plans import BackendName
from torchbayes.methods.flows.fitted import Draws, Fitted, parts_of
from torchbayes.methods.optimise.optimizers import Adam, Optimizer
from torchbayes.methods.protocol import Shelf
from torchbayes.methods.schedules import Cosine, Schedule
from torchbayes.methods.variational.objective import Fitting, State
from torchbayes.methods.variational.weighting import Weighting
from torchbayes.model.model import Model
from torchbayes.posteriors.flows.neural import check_installed
from torchbayes.posteriors.flows.posterior import SIMPLE, FlowPosterior, Transform, flow_of
from torchbayes.posteriors.flows.simple import Flow


@dataclass(frozen=True)
class FlowFamily:
    """The laws of μ + σ ∘ f(ε)."""

    flow: Flow  # f
    noise_size: int  # D

    @property
    def num_parameters(self) -> int:
        """Number of parameters of f."""
        return self.flow.layout.size

    def start(self, noise_MP: Tensor) -> Tensor:
        """Return parameters of the identity."""
        return self.flow.start(noise_MP)

    def draw(self, mean_MD: Tensor, log_scale_MD: Tensor, rest_MP: Tensor, *, noise_MSE: Tensor) -> Draws:
        """Return w = μ + σ ∘ f(ε), and E[−log N(ε)] + Σ log σ + log |det|."""
        points_MSD, log_det_MS = self.flow.forward(rest_MP, noise_MSE)
        weights_MSD = torch.addcmul(mean_MD.unsqueeze(1), log_scale_MD.exp().unsqueeze(1), points_MSD)
        constant = 0.5 * self.noise_size * math.log(2 * math.pi * math.e)
        scales_M1 = log_scale_MD.sum(-1, keepdim=True, dtype=torch.float64)
        return Draws(weights_MSD, log_det_MS.double() + scales_M1 + constant)


@dataclass(frozen=True)
class NormalizingFlow(Fitted, Fitting):
    """Variational inference with a normalising flow over all random weights.

    Attributes:
        transform: maps of the flow: "planar" or "radial" (a few numbers for each weight), or, with the extra
            `torchbayes[flows]`, "realnvp", "iaf" or "spline", whose networks see all weights.
        members: M, independent fits, whose mixture is the posterior.
        epochs: passes over the data; None for 50, or as many as make 5,000 steps.
        batch_size: rows per step where the data are not batched already.
        optimizer: update rule and learning rate, on the scale of the mean loss per observation.
        schedule: how the learning rate changes over the run.
        layers: maps, one after the other.
        hidden: units in each of the two hidden layers of a network of "realnvp", "iaf" or "spline".
        bins: of a "spline".
        draws: S, draws for each step.
        initial_scale: initial σ of every weight.
        kl_weight: β: a number, `Halving()` or `WarmUp()`. None lets held-out rows choose a number of at most 1: see
            `torchbayes.selection.lowered`.
        plan: how the stack of members is run: auto, native, loop, vmap or compiled.
    """

    transform: Transform = "planar"
    members: int = 1
    epochs: int | None = None
    batch_size: int = 128
    optimizer: Optimizer = field(default_factory=lambda: Adam(3e-3))
    schedule: Schedule = field(default_factory=Cosine)
    layers: int = 8
    hidden: int = 32
    bins: int = 8
    draws: int = 1
    initial_scale: float = 0.02
    kl_weight: float | Weighting | None = None
    plan: BackendName | str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.transform not in SIMPLE:
            check_installed(self.transform)

    def family(self, model: Model) -> FlowFamily:
        """Return the flows over the weights of a model.

        Raises:
            ValueError: if there are no such flows over so many weights.
        """
        size = model.layout.size
        return FlowFamily(flow_of(self.transform, size, layers=self.layers, hidden=self.hidden, bins=self.bins), size)

    def posterior(self, density: LogDensity, state: State, shelf: Shelf | None = None) -> FlowPosterior:
        """Return the mixture of the members' flows."""
        buffers = state.trajectory.buffers or None
        return FlowPosterior(
            density.model,
            *parts_of(state),
            transform=self.transform,
            layers=self.layers,
            hidden=self.hidden,
            bins=self.bins,
            buffers_M=buffers,
        )
