"""bSAM: sharpness-aware minimisation as Bayes (Möllenhoff and Khan 2023).

The worst case of SAM is the tightest convex lower bound of the expected loss under a Gaussian. The same relaxation
with a variance for each weight gives a posterior: every member has q(w) = N(m, 1/(λ s)) with a mean m and a scale s
for each weight, λ = N/T and the normal prior N(μ, 1/(λδ)). With ℓ = −log p(D|w)/N on a minibatch, a step is

    θ = m + z/√(λ s),    g = ∇ℓ(θ),    ε = ρ g/s
    u ← β₁ u + (1 − β₁) (∇ℓ(m + ε) + δ (m − μ))
    m ← m − lr u/s
    s ← β₂ s + (1 − β₂) (√s |g| + δ + damping)

where m moves by the old s, and the second gradient is at m + ε, not θ + ε. ε is not divided by a norm, so uncertain
weights (small s) are moved further. With `parts` a minibatch is split. Each part has its own z and ε, and gradients
and |g| are averaged. There is no correction for the start at u = 0.

s measures how large gradients are, not curvature. Where |g| is a constant c, it goes to
((c + √(c² + 4(δ + damping)))/2)². With all rows, one weight of curvature h and no damping it is about h √(2/(πN)) + δ,
far below the h + δ of a Laplace approximation. So the spread of q belongs to this method and is no reference for a
posterior. A prior that is not normal is part of the loss: −log p(w)/λ where gradients are taken, with δ = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.density.plans import BackendName
from torchbayes.health.descent import Descended
from torchbayes.methods.finite import WORKSPACE, Seen, clone, looked_at, writable
from torchbayes.methods.noise import normals
from torchbayes.methods.optimise.descent import Info
from torchbayes.methods.optimise.sam import Piece, split
from torchbayes.methods.optimise.settings import Runs
from torchbayes.methods.schedules import Cosine, Schedule
from torchbayes.methods.variational.target import Moving, NaturalGradient, Target, narrowed, target_of
from torchbayes.model.model import Batch
from torchbayes.model.network import Buffers
from torchbayes.posteriors.gaussian import Gaussian
from torchbayes.randomness.seeds import Purpose, mix

_ADVICE = "lower the learning rate, or raise `initial_scale`, which makes the first steps smaller"


@dataclass(frozen=True)
class State(Moving):
    """What the next step needs."""

    precision_MD: Tensor = field(metadata={"stored_as": "scale_MD"})  # s > 0
    gradient_MD: Tensor = field(metadata=WORKSPACE, repr=False)  # scratch space for the gradient


@dataclass(frozen=True)
class BSAM(Runs, NaturalGradient):
    """Bayesian sharpness-aware minimisation: a Gaussian with independent weights; with several members, their mixture.

    Attributes:
        epochs: passes over the data; None for 50, or more where these have fewer than 2,000 steps.
        lr: learning rate, a factor on u/s.
        momentum: β₁.
        decay: β₂.
        rho: ρ, the size of the perturbation ρ g/s.
        initial_scale: s₀, the initial s. None takes the limit of s under the gradients of the first minibatch at the
            start, (|g| + √(g² + 4(δ + damping)))²/4, the largest over the weights, and at least 1: a loss with large
            gradients, as under little noise, needs small steps from the first on.
        damping: added to δ, so that s stays away from 0 where the prior is wide.
        parts: parts of a minibatch, each of two rows or more, with a draw and a perturbation of its own.
        schedule: how the learning rate changes over the run.
        plan: how the stack of members is run: auto, native, loop, vmap or compiled.
    """

    lr: float = 0.1
    momentum: float = 0.9
    decay: float = 0.999
    rho: float = 0.01
    initial_scale: float | None = None
    damping: float = 0.1
    parts: int = 1
    schedule: Schedule = field(default_factory=Cosine)
    plan: BackendName | str = "auto"

    state = State

    def precision(self, density: LogDensity, mean_MD: Tensor) -> Tensor:
        return torch.full_like(mean_MD, self.initial_scale or 1.0)

    def scratch(self, mean_MD: Tensor) -> Sequence[Tensor]:
        return (torch.empty_like(mean_MD),)

    def spread(self, density: LogDensity, state: State, scale_MD: Tensor) -> State:
        """Return the state before the first step at trained weights, with s no smaller than their spread asks for.

        Where one of the standard deviations `scale_MD` is 0 or wider than the method's own, the method's own stays.
        """
        wanted_MD = narrowed(density, state.precision_MD, scale_MD)
        return replace(state, precision_MD=wanted_MD.amax(-1, keepdim=True).repeat(1, wanted_MD.shape[-1]))

    def move(self, density: LogDensity, state: State, batch: Batch, *, donate: bool = False) -> tuple[State, Info]:
        now, lr = writable(state, donate=donate), self.lr * self.schedule.factor(state.done)
        target = target_of(density, now.mean_MD)
        if now.step == 0 and self.initial_scale is None:
            _scale(self, density, now, batch)
        slope_MD, size_MD = torch.zeros_like(now.mean_MD), torch.zeros_like(now.mean_MD)
        nll_M = torch.zeros(len(now.seeds), dtype=torch.float64, device=slope_MD.device)
        for piece in split(batch, self.parts, seeds=now.seeds, model=density.model):
            nll_M += piece.share * _piece(self, density, now, piece=piece, sums=(slope_MD, size_MD))
        loc, delta = target.penalty
        pull_MD = now.mean_MD - loc
        loss_M = nll_M + 0.5 * (delta * pull_MD.square()).sum(-1).double()
        health_M = loss_M + torch.linalg.vector_norm(slope_MD, dim=-1) + torch.linalg.vector_norm(size_MD, dim=-1)
        unseen = looked_at(now, batch, Seen(now.step, lr, loss_M, health_M), advice=_ADVICE)
        now.momentum_MD.lerp_(slope_MD.addcmul_(pull_MD, delta), 1 - self.momentum)
        now.mean_MD.addcdiv_(now.momentum_MD, now.precision_MD, value=-lr)
        now.precision_MD.lerp_(size_MD.mul_(now.precision_MD.sqrt()).add_(delta + self.damping), 1 - self.decay)
        return replace(now, step=now.step + 1, unseen=unseen), Info(loss_M, nll_M, lr)

    def ending(self, posterior: Gaussian, state: State) -> Descended:
        why = "they are spread wider than the data bear (raise `initial_scale` or `damping`, or train longer)"
        return Descended(weights_MD=state.mean_MD, buffers=state.buffers, why=why)


def _scale(method: BSAM, density: LogDensity, now: State, batch: Batch) -> None:
    """Raise s to its limit under the gradients at the means, the largest over the weights."""
    target = target_of(density, now.mean_MD)
    _slope(density, target, now.mean_MD, batch, buffers=clone(now.buffers), seeds=now.seeds, out=now.gradient_MD)
    size_MD, floor = now.gradient_MD.abs(), target.penalty.precision + method.damping
    settled_MD = ((size_MD + (size_MD.square() + 4 * floor).sqrt()) / 2).square()
    now.precision_MD.copy_(settled_MD.amax(-1, keepdim=True).maximum(now.precision_MD))


def _piece(method: BSAM, density: LogDensity, now: State, *, piece: Piece, sums: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean loss of each member on a part of the minibatch at a draw; add both gradients to `sums`.

    `sums` are of the gradients at m + ε and of the sizes of those at the draw, each times the share of the part. The
    buffers of `now` become those of the pass at the draw.
    """
    (slope_MD, size_MD), target = sums, target_of(density, now.mean_MD)
    seeds = [mix(Purpose.FLAT_MASKS, seed, now.step) for seed in piece.seeds]
    buffers = clone(now.buffers)
    noise_MD = normals(piece.seeds, Purpose.FLAT_NOISE, now.step, like=now.mean_MD)
    drawn_MD = noise_MD.mul_((now.precision_MD * target.ess).rsqrt_()).add_(now.mean_MD)
    nll_M = _slope(density, target, drawn_MD, piece.rows, buffers=now.buffers, seeds=seeds, out=now.gradient_MD)
    size_MD.add_(now.gradient_MD.abs(), alpha=piece.share)
    there_MD = torch.addcmul(now.mean_MD, now.gradient_MD, method.rho / now.precision_MD)
    _slope(density, target, there_MD, piece.rows, buffers=buffers, seeds=seeds, out=now.gradient_MD)
    slope_MD.add_(now.gradient_MD, alpha=piece.share)
    return nll_M


def _slope(
    density: LogDensity,
    target: Target,
    weights_MD: Tensor,
    rows: Batch,
    *,
    buffers: Buffers,
    seeds: Sequence[int],
    out: Tensor,
) -> Tensor:
    """Return the mean loss of each member on some rows, and write its gradient, that of a non-normal prior included."""
    nll_M = density.nll(weights_MD, rows, buffers=buffers, seeds=seeds, out=out).log_density
    for segment in target.others:
        segment.add_gradient_(out, weights_MD, -target.scale / target.ess)
    return nll_M
