"""Variational inference: a normal q(w) fitted by gradient descent (Graves 2011, Blundell et al. 2015).

    minimise  −ELBO = E_q[−Σ_n log p(y_n | x_n, w)] + β KL(q ‖ p)

with β = 1 for Bayes. The weights w_s = t(θ, ε_s) of a step are drawn from the family (families.py) by standard normals
ε_s. The gradient by its parameters θ is that of log p(y | w_s) by the weights, pulled back (Kingma and Welling 2014).
The KL divergence is exact where the prior's expectation has a closed form (`torchbayes.model.priors.expected`).
Elsewhere log p(w_s) takes the place of the expectation, and the entropy of q is still exact.

On the scale of the mean loss per observation, as for all optimisers here, and with the temperature T of the model,

    loss = (1/S) Σ_s nll(w_s) − (β T/N) (c E_q log p(w) + H(q))

with c = 1/T where likelihood and prior are both tempered, and 1 where only the likelihood is. With M members q is a
mixture of M normals, each fitted independently from its own start.

With α > 0 the data's part is that of black-box α (Hernández-Lobato et al. 2016) in the form of Li and Gal (2017):

    minimise  −(1/α) Σ_n log E_q[p(y_n | x_n, w)^α] + β KL(q ‖ p)

whose limit at α → 0 is the objective above. α = 1 asks for good predictions of the rows, and is close to expectation
propagation. In between, a larger α covers more of the posterior. The expectation is the mean over the S draws of a
step, row by row; its logarithm is biased by O(1/S). A row of weight a (`likelihoods.Weighted`) counts a times. With a
temperature, p^(1/T) takes the place of p, and T times its term enters the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.density.layers.uses import has_layers
from torchbayes.density.plans import BackendName
from torchbayes.health.descent import Descended
from torchbayes.health.ending import Check
from torchbayes.health.spread import unmoved
from torchbayes.methods.choices import WEIGHTS, Choice, Lowered
from torchbayes.methods.noise import normals
from torchbayes.methods.optimise.descent import Trajectory
from torchbayes.methods.optimise.optimizers import Adam, Optimizer
from torchbayes.methods.protocol import Needs, Onward, Shelf
from torchbayes.methods.schedules import Cosine, Schedule
from torchbayes.methods.variational import mean_field
from torchbayes.methods.variational.families import DenseFamily, DiagonalFamily, Family, LowRankFamily, RadialFamily
from torchbayes.methods.variational.objective import (
    Drawing,
    Fitting,
    State,
    Terms,
    Update,
    by_autograd,
    check_pairs,
)
from torchbayes.methods.variational.weighting import Weighting
from torchbayes.model.layout import Layout
from torchbayes.model.model import Batch, Model
from torchbayes.posteriors.gaussian import Gaussian
from torchbayes.posteriors.layers.radial import RadialPosterior
from torchbayes.randomness.seeds import Purpose

_SMALLEST = 1e-8  # smallest scale that is relative to its weight
_ALPHA_DRAWS = 10  # as in the papers; with fewer draws the logarithm of the mean is more biased


@dataclass(frozen=True)
class VI(Fitting):
    """Variational inference with normal distributions; with structure="diagonal" mean field, or Bayes by backprop.

    Attributes:
        structure: of the covariance: diagonal, low_rank (with a diagonal) or dense; or radial, for a random direction
            and radius of each parameter instead of a normal distribution (`RadialPosterior`).
        members: M, independent fits, whose mixture is the posterior.
        epochs: passes over the data; None for 50, or as many as make 5,000 steps.
        batch_size: rows per step where the data are not batched already.
        optimizer: update rule and learning rate, on the scale of the mean loss per observation.
        schedule: how the learning rate changes over the run.
        estimator: of the gradient: "weights" draws all weights, in one stack of networks; "local" and "flipout" go
            layer by layer, with noise for each example, which makes the gradient less noisy. "auto" takes exact local
            noise where a layer has it, else flipout; it draws weights with another structure than "diagonal", with
            antithetic draws, and in a network without such layers. See `torchbayes.density.layers.passes`; `uses.how`
            says what each parameter gets.
        alpha: α ≥ 0, of the divergence: 0 is variational inference, 1 near to expectation propagation.
        draws: S, draws for each step; None for 1, or 10 where `alpha` is positive, which needs 2 at least.
        antithetic: whether draws come in pairs ±ε, which cancels the noise in the gradient by the means that is odd in
            ε.
        rank: R, of structure="low_rank".
        initial_scale: standard deviation of every weight at first.
        relative_scale: δ, for initial standard deviations δ|μ| instead, around the weights of a trained network
            (MOPED; Krishnan et al. 2020).
        kl_weight: β: a number, `Halving()` or `WarmUp()`. None lets held-out rows choose a number of at most 1: see
            `torchbayes.selection.lowered`.
        plan: how the stack of networks is run: auto, native, loop, vmap or compiled; noise in the layers is drawn by
            the kernel or in a loop, and has no other plan.
    """

    structure: Literal["diagonal", "low_rank", "dense", "radial"] = "diagonal"
    members: int = 1
    epochs: int | None = None
    batch_size: int = 128
    optimizer: Optimizer = field(default_factory=lambda: Adam(3e-3))
    schedule: Schedule = field(default_factory=Cosine)
    estimator: Literal["auto", "weights", "local", "flipout"] = "auto"
    alpha: float = 0.0
    draws: int | None = None
    antithetic: bool = False
    rank: int = 10
    initial_scale: float = 0.02
    relative_scale: float | None = None
    kl_weight: float | Weighting | None = None
    plan: BackendName | str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.estimator in {"local", "flipout"} and (self.structure != "diagonal" or self.antithetic):
            raise ValueError(
                f"`estimator` {self.estimator!r} is for independent weights with noise in the layers; got structure "
                f"{self.structure!r}, antithetic {self.antithetic}. Give structure='diagonal' and no antithetic draws, "
                f"or estimator='auto'."
            )
        check_pairs(_draws(self), antithetic=self.antithetic)
        if self.alpha and _draws(self) < 2:
            raise ValueError(
                f"`alpha` {self.alpha} needs draws to compare, 2 at least; got `draws` {_draws(self)}. Give more, such "
                f"as {_ALPHA_DRAWS}, or alpha=0."
            )

    @property
    def needs(self) -> Needs:
        return Needs(batch_size=self.batch_size, network="train", spread=self.structure != "radial")

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (Lowered("kl_weight", WEIGHTS),) if self.kl_weight is None else ()

    @property
    def onward(self) -> Onward:
        """The method with β = 1: held-out rows of one task would choose how much all earlier tasks count."""
        method = replace(self, kl_weight=1.0) if self.kl_weight is None else self
        return Onward(method, "nothing" if self.structure == "radial" else "prior")

    def check(self, model: Model) -> None:
        """Check only a radial structure: under a normal posterior the divergence from any prior is finite."""
        if self.structure == "radial":
            super().check(model)

    def family(self, layout: Layout) -> Family:
        """Return the family of distributions over the weights of a layout."""
        if self.structure == "radial":
            return RadialFamily(layout.sizes)
        if self.structure == "low_rank":
            return LowRankFamily(self.rank)
        return DiagonalFamily() if self.structure == "diagonal" else DenseFamily()

    def parameters(self, density: LogDensity, weights_MD: Tensor, *, seeds: Sequence[int]) -> Tensor:
        return _begun(self, density, weights_MD, _scales(self, weights_MD), seeds=seeds)

    def spread(self, density: LogDensity, state: State, scale_MD: Tensor) -> State:
        """Return the state before the first step with the standard deviations `scale_MD` where these are narrower.

        Weights wider than a start bears would drown the others in noise until they have become narrow again. Scales
        that are set relative to trained weights stay, and so do those where `scale_MD` is 0.
        """
        if self.relative_scale is not None:
            return state
        now = state.trajectory
        mean_MD = now.weights_MD[:, : state.size]
        usual_MD = _scales(self, mean_MD)
        scale_MD = torch.where(scale_MD > 0, torch.minimum(scale_MD.to(mean_MD), usual_MD), usual_MD)
        parameters_MP = _begun(self, density, mean_MD, scale_MD, seeds=now.seeds)
        return replace(state, trajectory=replace(now, weights_MD=parameters_MP))

    def objective(
        self, density: LogDensity, now: Trajectory, batch: Batch, *, kl_weight: float
    ) -> tuple[Terms, Tensor, Update]:
        family, normal = self.family(density.model.layout), self.structure != "radial"
        estimator = _estimator(self, density, batch)
        drawing = Drawing(family, estimator, _draws(self), self.antithetic, normal, self.alpha)
        if mean_field.takes(drawing, density, now):
            terms, slope = mean_field.evaluate(density, now, batch, drawing=drawing, kl_weight=kl_weight)
            return terms, slope.health_MX, partial(mean_field.update, self.optimizer, now, slope)
        return by_autograd(self.optimizer, density, now, batch=batch, drawing=drawing, kl_weight=kl_weight)

    def posterior(self, density: LogDensity, state: State, shelf: Shelf | None = None) -> Gaussian | RadialPosterior:
        """Return the mixture of the members' distributions."""
        parameters_MP = state.trajectory.weights_MD
        mean_MD = parameters_MP[:, : state.size].clone()
        model, buffers = density.model, state.trajectory.buffers or None
        if self.structure == "radial":
            return RadialPosterior(model, mean_MD, parameters_MP[:, state.size :].exp(), buffers_M=buffers)
        return Gaussian(model, mean_MD, self.family(model.layout).covariance(parameters_MP), buffers_M=buffers)

    def ending(self, posterior: Any, state: State) -> Descended:
        then: list[Check] = []
        if self.relative_scale is None:
            scale_MD = self.family(posterior.model.layout).variance(state.trajectory.weights_MD).sqrt()
            then.append(lambda _: unmoved(scale_MD, self.initial_scale))
        return Descended(
            weights_MD=state.trajectory.weights_MD[:, : state.size],
            buffers=state.trajectory.buffers,
            averaged=True,
            why="they are spread wider than the data bear (lower `kl_weight`, or train longer)",
            together=True,
            then=then,
        )


def _draws(method: VI) -> int:
    """Return S."""
    return (_ALPHA_DRAWS if method.alpha else 1) if method.draws is None else method.draws


def _scales(method: VI, weights_MD: Tensor) -> Tensor:
    """Return the method's initial standard deviations around some weights, (M, D)."""
    if method.relative_scale is None:
        return torch.full_like(weights_MD, method.initial_scale)
    return (method.relative_scale * weights_MD.abs()).clamp_min_(_SMALLEST)


def _begun(method: VI, density: LogDensity, mean_MD: Tensor, scale_MD: Tensor, *, seeds: Sequence[int]) -> Tensor:
    """Return parameters (M, P) of these means and standard deviations."""
    family = method.family(density.model.layout)
    return family.start(mean_MD, scale_MD, lambda like: normals(seeds, Purpose.FACTOR, 0, like=like))


def _estimator(method: VI, density: LogDensity, batch: Batch) -> Literal["auto", "weights", "local", "flipout"]:
    """Return the estimator of the gradient for minibatches (M, B, ...)."""
    if method.estimator != "auto":
        return method.estimator
    alone = method.structure == "diagonal" and not method.antithetic
    return "auto" if alone and has_layers(density, batch) else "weights"
