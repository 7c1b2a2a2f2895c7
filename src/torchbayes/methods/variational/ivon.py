"""IVON: a Gaussian with independent weights, by natural gradients (Shen et al. 2024).

Every member has q(w) = N(m, 1/(λ(h + δ))) with a mean m and a Hessian h of the mean loss ℓ = −log p(D|w)/N for each
weight, λ = N/T and the normal prior N(μ, 1/(λδ)). It maximises the evidence lower bound

    ELBO = −λ E_q ℓ(w) − KL(q ‖ p),     q* :  E_q ∇ℓ + δ (m − μ) = 0,   h = E_q ∇²ℓ

A step draws w = m + z/√(λ(h + δ)) and takes one gradient ĝ of the minibatch's mean loss there. It needs no second
derivative, because E ĝ (w − m) λ(h + δ) is the expected Hessian (Price 1958). With several draws both are averaged:

    ĥ = ĝ z √(λ(h + δ))
    h ← β₂ h + (1 − β₂) ĥ + ½ (1 − β₂)² (h − ĥ)²/(h + δ)
    g ← β₁ g + (1 − β₁) ĝ
    m ← m − lr clip((g/(1 − β₁ᵗ) + δ (m − μ))/(h + δ), ±ξ)

The last term of h keeps h + δ positive: it can at most halve in a step. It also biases h upwards, by about ½ (1 − β₂)
λτ² where minibatches give the gradient a variance τ², which is a share of the curvature near ½ (1 − β₂) N/B. Shen et
al. multiply the learning rate by h₀ + δ, the precision at the start. Here it is the share of a Newton step, so its
meaning does not depend on N, h₀ or the prior.

A prior that is not normal is part of the loss: −log p(w)/λ at the draw, with δ = 0. Price's identity holds for it too,
so the optimum is that of the same ELBO. The same is true of the prior of a learned noise scale, whose logarithm is one
of the weights. Members are independent, and the posterior is their equal mixture. With 6 to 16 members it won the
approximate inference competition of NeurIPS 2021.

By default h is forgotten only three times over a run, as in the published recipes, so q is narrower than at the
optimum. That is on purpose: where there are more weights than data, the optimum of this family under a wide prior is
often the prior itself for most weights, which predicts worse. A `hessian_decay` of 1 − 10/steps nearly reaches the
optimum under a prior that is not wide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.density.plans import BackendName
from torchbayes.health.descent import Descended
from torchbayes.health.spread import as_the_prior
from torchbayes.methods.defaults import Report
from torchbayes.methods.finite import WORKSPACE, Seen, looked_at, writable
from torchbayes.methods.optimise.settings import Runs
from torchbayes.methods.schedules import Cosine, Schedule, ramp
from torchbayes.methods.variational import passes
from torchbayes.methods.variational.objective import check_pairs
from torchbayes.methods.variational.passes import Moments, Rates
from torchbayes.methods.variational.target import Moving, NaturalGradient, Target, narrowed, target_of
from torchbayes.model.model import Batch
from torchbayes.posteriors.gaussian import Gaussian
from torchbayes.randomness.seeds import Purpose, mix

_STEPS = 10_000  # default least length of a run
_TURNS = 3.0  # default number of times that h is forgotten over a run
_STALE = 0.5  # share of the initial h that may be left at the end
_ADVICE = "lower the learning rate, or raise `hessian_init`, which makes the first draws narrower"


@dataclass(frozen=True)
class State(Moving):
    """What the next step needs; the precision is h + δ, and g the momentum."""

    drawn_SMD: Tensor = field(metadata=WORKSPACE, repr=False)  # scratch space for the draws
    gradient_SMD: Tensor = field(metadata=WORKSPACE, repr=False)  # scratch space for the gradients there
    warm: bool = False  # starts at given weights, with shorter steps at first

    @property
    def moments(self) -> Moments:
        """The tensors that the passes over all weights change."""
        return Moments(self.mean_MD, self.precision_MD, self.momentum_MD)


@dataclass(frozen=True)
class Info(Report):
    """What a step reports for the log, about q before the step."""

    loss_M: Tensor  # −ELBO/λ
    nll_M: Tensor  # mean negative log likelihood of a row at the draws, an estimate of E_q ℓ, in nats
    kl_M: Tensor  # KL(q ‖ p) in nats, at the draws if p is not normal; less the constant of a tempered prior p^{1/T}
    elbo_M: Tensor
    lr: float


@dataclass(frozen=True)
class IVON(Runs, NaturalGradient):
    """Variational inference with independent Gaussians by natural gradients; with several members, their mixture.

    Attributes:
        epochs: passes over the data; None for 50, or more where these have fewer than 10,000 steps.
        lr: learning rate, the share of a Newton step that the mean takes.
        momentum: β₁.
        hessian_decay: β₂; None for 1 − 3/steps, which forgets h three times over the run.
        hessian_init: h₀, on the scale of the mean loss: the first draws have the variance 1/(N(h₀ + δ)).
        draws: S, draws of the weights in a step, each with a gradient of its own.
        antithetic: whether draws come in pairs m ± z/√(λ(h + δ)), which makes the mean less noisy and h a little more.
        clip: ξ, largest change of a mean in a step over the learning rate; None for no limit.
        schedule: how the learning rate changes over the run.
        plan: how the stack of members and draws is run: auto, native, loop, vmap or compiled.
    """

    lr: float = 0.1
    momentum: float = 0.9
    hessian_decay: float | None = None
    hessian_init: float = 3.0
    draws: int = 1
    antithetic: bool = False
    clip: float | None = None
    schedule: Schedule = field(default_factory=Cosine)
    plan: BackendName | str = "auto"

    usual_steps = _STEPS
    state = State

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pairs(self.draws, antithetic=self.antithetic)

    @property
    def single_gradient(self) -> bool:  # type: ignore[override]  # unlike that of other methods, it depends on a setting
        """Whether a step takes one gradient: with one draw."""
        return self.draws == 1

    def gradient_point(self, density: LogDensity, state: State) -> Tensor:
        """Return the first draw of the next step, (M, D), where it takes a gradient; in scratch space of the state."""
        _draw(self, state, target_of(density, state.mean_MD))
        return state.drawn_SMD[0]

    def decay(self, total_steps: int) -> float:
        """Return β₂ in a run of `total_steps`."""
        return max(0.0, 1 - _TURNS / total_steps) if self.hessian_decay is None else self.hessian_decay

    def precision(self, density: LogDensity, mean_MD: Tensor) -> Tensor:
        return torch.full_like(mean_MD, self.hessian_init) + target_of(density, mean_MD).penalty.precision

    def scratch(self, mean_MD: Tensor) -> Sequence[Tensor]:
        return [mean_MD.new_empty(self.draws, *mean_MD.shape) for _ in range(2)]

    def spread(self, density: LogDensity, state: State, scale_MD: Tensor) -> State:
        """Return the state before the first step at trained weights, with draws no wider than these bear.

        The first steps are short. Where one of the standard deviations `scale_MD` is 0 or wider than the method's own,
        the method's own stays.
        """
        return replace(state, precision_MD=narrowed(density, state.precision_MD, scale_MD), warm=True)

    def move(self, density: LogDensity, state: State, batch: Batch, *, donate: bool = False) -> tuple[State, Info]:
        now = writable(state, donate=donate)
        target, lr = target_of(density, now.mean_MD), self.lr * self.schedule.factor(state.done)
        if now.warm:
            lr *= ramp(now.step)
        sums_M2 = _draw(self, now, target)
        nll_M = _evaluate(self, density, now, batch=batch)
        for segment in target.others:
            segment.add_gradient_(now.gradient_SMD, now.drawn_SMD, -target.scale / target.ess)
        kl_M = target.divergence(sums_M2, now.drawn_SMD)
        elbo_M = -target.ess * nll_M - kl_M
        loss_M = elbo_M / -target.ess
        finite_M = loss_M + torch.linalg.vector_norm(now.gradient_SMD, dim=(0, 2))
        unseen = looked_at(now, batch, Seen(now.step, lr, loss_M, finite_M), advice=_ADVICE)
        rates = Rates(
            target.ess,
            lr,
            self.momentum,
            1 / (1 - self.momentum ** (now.step + 1)),
            1 - self.decay(now.total_steps),
            math.inf if self.clip is None else self.clip,
        )
        passes.update(now.moments, target.penalty, rates, gradient_SMD=now.gradient_SMD, weights_SMD=now.drawn_SMD)
        return replace(now, step=now.step + 1, unseen=unseen), Info(loss_M, nll_M, kl_M, elbo_M, lr)

    def ending(self, posterior: Gaussian, state: State) -> Descended:
        decay = self.decay(state.total_steps)
        remaining = decay**state.step
        stale = (
            f"the variances are {remaining:.0%} what they began with, as a run of {state.step} steps is short for a "
            f"`hessian_decay` of {decay:g} (lower it, or train longer)"
        )
        return Descended(
            weights_MD=state.mean_MD,
            buffers=state.buffers,
            why="they are spread wider than the data bear (raise `hessian_init`, or train longer)",
            together=True,
            said=[stale] if remaining > _STALE else [],
            then=[as_the_prior],
        )


def _draw(method: IVON, state: State, target: Target) -> Tensor:
    """Write all draws of a step, and return the sums (M, 2) of the first for the divergence."""
    sums = []
    for s in range(method.draws):
        pair, sign = (s // 2, 1 - s % 2 * 2) if method.antithetic else (s, 1)
        stream = mix(Purpose.WEIGHT_NOISE, state.step, pair)
        sums.append(
            passes.draw(
                state.moments,
                target.penalty,
                state.drawn_SMD[s],
                ess=target.ess,
                seeds=state.seeds,
                stream=stream,
                sign=sign,
            )
        )
    return sums[0]


def _evaluate(method: IVON, density: LogDensity, state: State, *, batch: Batch) -> Tensor:
    """Return each member's mean loss over the draws, and write the gradient at each.

    The buffers become their mean over the draws.
    """
    count, members = method.draws, len(state.seeds)
    seeds = [mix(Purpose.NETWORK_AT_DRAW, seed, state.step, s) for s in range(count) for seed in state.seeds]
    buffers = state.buffers
    if count > 1:
        batch = batch.map(lambda t: t.repeat(count, *[1] * (t.ndim - 1)))
        buffers = {name: t.repeat(count, *[1] * (t.ndim - 1)) for name, t in buffers.items()}
    weights, gradient = (t.view(count * members, -1) for t in (state.drawn_SMD, state.gradient_SMD))
    nll = density.nll(weights, batch, buffers=buffers, seeds=seeds, out=gradient).log_density
    if count == 1:
        return nll
    for name, buffer in buffers.items():
        by_draw = buffer.unflatten(0, (count, members))
        state.buffers[name].copy_(by_draw.mean(0) if by_draw.is_floating_point() else by_draw[0])
    return nll.view(count, members).mean(0)
