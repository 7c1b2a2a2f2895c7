"""Methods that the driver has not met, one for each seam: members that see each other, sites, plain densities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import torchbayes as tb
from torchbayes.methods.defaults import Defaults
from torchbayes.methods.protocol import Needs, Shelf, Visit


@dataclass(frozen=True)
class Seen:
    """What a step reports: the log density of every member."""

    log_density_M: Tensor

    def means(self) -> dict[str, Tensor]:
        return {"log_density": self.log_density_M}

    def now(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Particles:
    """Where the particles of SVGD are."""

    weights_MD: Tensor
    step: int


@dataclass(frozen=True)
class SVGD(Defaults):
    """Stein variational gradient descent (Liu and Wang 2016) with the kernel k(x, y) = xᵀy + 1, on minibatches.

    x_i ← x_i + (ε/M) Σ_j [k(x_j, x_i) ∇log p(x_j) + ∂k(x_j, x_i)/∂x_j]
    """

    members: int = 4
    steps: int = 20
    batch_size: int = 6
    step_size: float = 1e-2
    plan = "loop"

    @property
    def needs(self) -> Needs:
        return Needs(batch_size=self.batch_size, coupled=True)

    def length(self, steps_per_epoch: int) -> int:
        return self.steps

    def init(
        self, density: Any, weights_MD: Tensor, buffers: Any, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> Particles:
        return Particles(weights_MD.clone(), 0)

    def visit(self, state: Particles) -> Visit | None:
        return Visit("minibatch", state.step) if state.step < self.steps else None

    def step(self, density: Any, state: Particles, batch: Any, *, donate: bool = False) -> tuple[Particles, Seen]:
        value, here_MD = density(state.weights_MD, batch), state.weights_MD
        kernel_MM = here_MD @ here_MD.T + 1
        move_MD = (kernel_MM @ value.gradient + len(here_MD) * here_MD) / len(here_MD)
        return Particles(here_MD + self.step_size * move_MD, state.step + 1), Seen(value.log_density)

    def posterior(self, density: Any, state: Particles, shelf: Shelf | None = None) -> tb.Point:
        return tb.Point(density.model, state.weights_MD)


@dataclass(frozen=True)
class Averages:
    """The gradient that every site gave last."""

    weights_MD: Tensor
    gradients_MKD: Tensor
    seeds: tuple[int, ...]
    step: int


@dataclass(frozen=True)
class SAG(Defaults):
    """Stochastic average gradient (Le Roux et al. 2012): the mode, by the gradients that all sites gave last.

    A site is drawn at random; its gradient replaces the one it gave before, and w ← w + ε · mean of all of them.
    """

    members: int = 2
    sweeps: int = 5
    batch_size: int = 6
    step_size: float = 1e-2
    plan = "loop"

    @property
    def needs(self) -> Needs:
        return Needs(batch_size=self.batch_size)

    def length(self, steps_per_epoch: int) -> int:
        return self.sweeps * steps_per_epoch

    def init(
        self, density: Any, weights_MD: Tensor, buffers: Any, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> Averages:
        members, size = weights_MD.shape
        return Averages(weights_MD.clone(), weights_MD.new_zeros(members, steps_per_epoch, size), tuple(seeds), 0)

    def visit(self, state: Averages) -> Visit | None:
        sites = state.gradients_MKD.shape[1]
        return Visit("site", _site(state.step, sites)) if state.step < self.length(sites) else None

    def step(self, density: Any, state: Averages, batch: Any, *, donate: bool = False) -> tuple[Averages, Seen]:
        value, gradients_MKD = density(state.weights_MD, batch), state.gradients_MKD.clone()
        gradients_MKD[:, _site(state.step, gradients_MKD.shape[1])] = value.gradient
        weights_MD = state.weights_MD + self.step_size * gradients_MKD.mean(1)
        new = replace(state, weights_MD=weights_MD, gradients_MKD=gradients_MKD, step=state.step + 1)
        return new, Seen(value.log_density)

    def posterior(self, density: Any, state: Averages, shelf: Shelf | None = None) -> tb.Point:
        return tb.Point(density.model, state.weights_MD)


def _site(step: int, sites: int) -> int:
    """Return the site of a step: those of a sweep are a random permutation."""
    order = torch.randperm(sites, generator=torch.Generator().manual_seed(1000 + step // sites))
    return int(order[step % sites])


@dataclass(frozen=True)
class Walkers:
    """Where the walkers are."""

    weights_MD: Tensor
    log_density_M: Tensor
    step: int


@dataclass(frozen=True)
class Stretch(Defaults):
    """The affine invariant ensemble sampler (Goodman and Weare 2010): walkers move along lines to each other.

    x' = y + z (x − y) for y of the other half, z ∝ 1/√z on [1/2, 2], accepted with min(1, z^(D−1) p(x')/p(x))
    """

    chains: int = 4
    steps: int = 24
    burn_in: int = 10
    plan = "loop"

    @property
    def members(self) -> int:
        return self.chains

    @property
    def needs(self) -> Needs:
        return Needs(chunk_size=1024, draws=self.steps - self.burn_in, chain=True, coupled=True)

    def length(self, steps_per_epoch: int) -> int:
        return self.steps

    def init(
        self, density: Any, weights_MD: Tensor, buffers: Any, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> Walkers:
        return Walkers(weights_MD.clone(), density(weights_MD).log_density, 0)

    def visit(self, state: Walkers) -> Visit | None:
        return Visit("all") if state.step < self.steps else None

    def step(self, density: Any, state: Walkers, batch: Any, *, donate: bool = False) -> tuple[Walkers, Seen]:
        weights_MD, log_density_M, half = state.weights_MD.clone(), state.log_density_M.clone(), self.chains // 2
        source = torch.Generator().manual_seed(state.step)
        for mine, others in ((slice(0, half), slice(half, None)), (slice(half, None), slice(0, half))):
            stretch = (0.5**0.5 + 0.5**0.5 * torch.rand(half, 1, generator=source, dtype=torch.float64)) ** 2
            partner = weights_MD[others][torch.randperm(half, generator=source)]
            proposal_MD = weights_MD.clone()
            proposal_MD[mine] = partner + stretch.to(partner) * (weights_MD[mine] - partner)
            value_M = density(proposal_MD).log_density
            ratio = (weights_MD.shape[-1] - 1) * stretch[:, 0].log() + value_M[mine] - log_density_M[mine]
            accepted = torch.rand(half, generator=source, dtype=torch.float64).log() < ratio
            weights_MD[mine] = torch.where(accepted[:, None], proposal_MD[mine], weights_MD[mine])
            log_density_M[mine] = torch.where(accepted, value_M[mine], log_density_M[mine])
        return Walkers(weights_MD, log_density_M, state.step + 1), Seen(log_density_M)

    def draw(self, state: Walkers) -> Tensor | None:
        return state.weights_MD if state.step > self.burn_in else None

    def posterior(self, density: Any, state: Walkers, shelf: Shelf | None = None) -> tb.Draws:
        assert shelf is not None
        return tb.Draws(density.model, shelf.weights_MSD())
