"""Online evidence: training in which the prior, and the noise of a regression, are chosen by the Laplace evidence.

Epochs of descent on the log joint density alternate with a pass over the data, which computes the curvature at the
current weights and moves the factors d_g on the prior's precision to the maximum of

    log p(D | d) ≈ log p(D|w) + log p(w|d) + (D/2) log 2π − ½ log det (H + P(d))

This is the evidence of the network linearised at w, whether or not w is a mode (Immer et al. 2021, who take some steps
of Adam towards it; here Newton's method goes all the way). No validation data are needed, and the last pass gives the
posterior.

Where the length of the training is open, rows that are held out of first runs choose it, and a factor on the prior
precision of the posterior. Under the evidence alone the posterior of a network that fits its training rows closely is
often too wide (on the digits the NLL is 0.26, that of the network alone 0.04).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Literal

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.density.plans import BackendName
from torchbayes.health.ending import Ended
from torchbayes.health.mode import off_mode, too_wide
from torchbayes.health.residuals import unexplained
from torchbayes.methods.choices import Choice, Epochs, Strength
from torchbayes.methods.defaults import Defaults, Report
from torchbayes.methods.finite import writable
from torchbayes.methods.keepers import Kept
from torchbayes.methods.laplace import curvature_pass
from torchbayes.methods.laplace.curvature_pass import (
    CurvatureName,
    CurvaturePass,
    CurvatureSettings,
    Sharing,
    StructureName,
)
from torchbayes.methods.laplace.tuning import tune
from torchbayes.methods.optimise import descent
from torchbayes.methods.optimise.descent import Trajectory
from torchbayes.methods.optimise.optimizers import Adam, Optimizer
from torchbayes.methods.optimise.seeker import seeker
from torchbayes.methods.protocol import Needs, Shelf, Visit
from torchbayes.methods.schedules import Cosine, Schedule, epochs_of
from torchbayes.model.model import Batch
from torchbayes.model.network import Buffers
from torchbayes.model.priors.univariate import Normal
from torchbayes.model.probes.functions import refuse_coupled
from torchbayes.posteriors.laplace import LaplacePosterior
from torchbayes.posteriors.point import Point

PriorName = Literal["model", "scalar", "layer", "weight"]

_MOST_OUTPUTS = 50  # of a row: each takes a backward pass, in each of the about twenty passes of a run


@dataclass(frozen=True)
class State:
    """What the next step needs."""

    trajectory: Trajectory
    # the pass over the data that is under way, or the last one
    last_pass: CurvaturePass = field(metadata={"stored_as": "survey"})
    strength_MD: Tensor  # d, factor on the precision of the model's prior
    noise_M: Tensor  # factor on the noise scale of a regression
    step: int  # batches seen, in training and in passes


@dataclass(frozen=True)
class Info(Report):
    """What a step reports for the log."""

    nll_M: Tensor  # mean negative log likelihood of the batch's rows, in nats
    lr: float  # 0 in a pass
    prior_factor: float  # geometric mean of d
    noise_factor: float  # factor on the noise scale


@dataclass(frozen=True)
class Reweighted:
    """An optimiser on β (gradient of the data) + d ∘ (gradient of the model's prior)."""

    optimizer: Optimizer
    prior_MD: Tensor  # gradient of the model's prior in the loss
    strength_MD: Tensor  # d
    beta: float  # β

    @property
    def lr(self) -> float:
        """Learning rate of the update rule."""
        return self.optimizer.lr

    def slots(self, weights_MD: Tensor) -> dict[str, Tensor]:
        """Return the initial slots of the update rule."""
        return self.optimizer.slots(weights_MD)

    def update(self, weights_MD: Tensor, gradient_MD: Tensor, slots: dict[str, Tensor], *, lr: float) -> None:
        """Take one step in place, with the gradient reweighted by the factors."""
        changed_MD = self.beta * (gradient_MD - self.prior_MD) + self.strength_MD * self.prior_MD
        self.optimizer.update(weights_MD, changed_MD, slots, lr=lr)


@dataclass(frozen=True)
class OnlineLaplace(Kept, Defaults):
    """Training with prior and noise chosen by the evidence; gives a Laplace posterior whose model has both.

    Attributes:
        structure: of the curvature: "diagonal", "kronecker", "ekfac", "dense", "low_rank".
        curvature: "ggn", "fisher" or "empirical", or "auto": "ggn" where a row has up to 50 outputs, else "fisher".
        prior: which factors on the model's prior precision are free: "scalar", "layer", "weight" (only diagonal), or
            none, "model".
        noise: whether the noise scale of a regression with a fixed one is free. The model's scale is the initial
            value: choose about the standard deviation of the targets, because from a far smaller one the descent may
            end at a lower evidence.
        epochs_of_descent: passes over the data that train; None for 50, or as many as make 2,000 steps, unless
            held-out rows choose fewer: see `validation` of `fit`.
        every: epochs of descent between passes that choose prior and noise; None for a twentieth of them, or 5.
        burn_in: share of the descent before the first such pass.
        batch_size: rows per step where the data are not batched already.
        optimizer: update rule and learning rate, on the scale of the mean loss per observation.
        schedule: how the learning rate changes over the descent.
        samples: targets drawn for each row by "fisher".
        sharing: as in `Laplace`.
        joint_bias: as in `Laplace`.
        chunk: as in `Laplace`.
        factor: multiplies the prior precision of the posterior, after the evidence has chosen it; 1 keeps to the
            evidence. Where `epochs_of_descent` is open, held-out rows choose both.
        check_mode: report weights that are no mode under the chosen prior.
        plan: how the descent is run: auto, native, loop, vmap or compiled.
    """

    structure: StructureName = "kronecker"
    curvature: CurvatureName = "auto"
    prior: PriorName = "layer"
    noise: bool = False
    epochs_of_descent: int | None = None
    every: int | None = None
    burn_in: float = 0.1
    batch_size: int = 128
    optimizer: Optimizer = field(default_factory=lambda: Adam(0.01))
    schedule: Schedule = field(default_factory=Cosine)
    samples: int = field(default=1, kw_only=True)
    sharing: Sharing = field(default="expand", kw_only=True)
    joint_bias: bool = field(default=True, kw_only=True)
    chunk: int = field(default=2**24, kw_only=True)
    factor: float = field(default=1.0, kw_only=True)
    check_mode: bool = field(default=True, kw_only=True)
    plan: BackendName | str = field(default="auto", kw_only=True)

    members = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.curvature_settings

    @property
    def curvature_settings(self) -> CurvatureSettings:
        """What a pass adds up."""
        return CurvatureSettings.of(self, check_mode=True, exact=self.noise, most_outputs=_MOST_OUTPUTS)

    @property
    def needs(self) -> Needs:
        """Minibatches, through a network in training mode, of rows that are the same in every pass."""
        return Needs(batch_size=self.batch_size, network="train", fixed_rows=True)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """How long to train, and a factor beside the evidence.

        Both the epochs that suit training under the model's own prior, and those set or usual, are tried, because
        longer training may be better under a prior that the evidence chooses.
        """
        training = seeker(epochs=self.epochs_of_descent, optimizer=self.optimizer, plan=self.plan)
        length = Epochs(training, settings=("epochs_of_descent",), known={"check_mode": False})
        beside = ({"epochs_of_descent": self.epochs_of_descent},)
        return length, Strength("factor", {}, beside, open=length.open)

    def order(self, steps_per_epoch: int) -> tuple[bool, ...]:
        """Return for every epoch of the run whether it trains; the others are passes for the curvature."""
        epochs = epochs_of(self.epochs_of_descent, steps_per_epoch)
        every = self.every or max(5, epochs // 20)
        return _order(epochs, round(self.burn_in * epochs), every, self.curvature_settings.sums.passes)

    @property
    def epochs(self) -> int | None:
        """Passes over the data, in training and for the curvature; None if they depend on the data."""
        return None if self.epochs_of_descent is None else len(self.order(1))

    def length(self, steps_per_epoch: int) -> int:
        """Return the number of steps of a run, in training and for the curvature."""
        return len(self.order(steps_per_epoch)) * steps_per_epoch

    def begin(
        self, density: LogDensity, weights_MD: Tensor, buffers: Buffers, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> State:
        model = density.model
        refuse_coupled(model)
        if model.temperature != 1:
            raise ValueError(f"the evidence is that of T = 1; the model has temperature {model.temperature}.")
        size = model.network.layout.size  # learned parameters of the likelihood keep their prior
        if not all(isinstance(s.prior, Normal) for s in model.prior.segments if s.where.start < size):
            raise ValueError("the online evidence changes the precision of a normal prior. Use priors.Normal.")
        trajectory = descent.start(
            weights_MD,
            buffers,
            seeds,
            optimizer=self.optimizer,
            epochs=self.epochs_of_descent,
            steps_per_epoch=steps_per_epoch,
        )
        curvature_pass.check_held(self.curvature_settings, weights_MD)
        current_pass = curvature_pass.begin(weights_MD, buffers, seeds=seeds, steps_per_epoch=steps_per_epoch)
        noise_M = torch.ones(len(weights_MD), dtype=torch.float64, device=weights_MD.device)
        return State(trajectory, current_pass, torch.ones_like(weights_MD), noise_M, 0)

    def visit(self, state: State) -> Visit | None:
        """Return the next minibatch, of training or of a pass; None when the run is over."""
        return Visit("minibatch", state.step) if state.step < self.length(state.last_pass.steps_per_epoch) else None

    def move(self, density: LogDensity, state: State, batch: Batch, *, donate: bool = False) -> tuple[State, Info]:
        per_epoch = state.last_pass.steps_per_epoch
        order, (epoch, position) = self.order(per_epoch), divmod(state.step, per_epoch)
        if order[epoch]:
            now, nll_M, lr = _descend(self, density, state, batch=batch, donate=donate)
        else:
            begins = position == 0 and order[epoch - 1]
            current_pass = _begun(state) if begins else writable(state.last_pass, donate=donate)
            current_pass, nll_M = curvature_pass.add(self.curvature_settings, density, current_pass, batch=batch)
            now, lr = replace(state, last_pass=current_pass, step=state.step + 1), 0.0
            if current_pass.step == self.curvature_settings.sums.passes * current_pass.steps_per_epoch:
                tuned = _tuned(self, density, current_pass)
                noise_M = torch.full_like(state.noise_M, tuned.noise_scale)
                now = replace(now, strength_MD=tuned.strength_D.unsqueeze(0), noise_M=noise_M)
        return now, Info(nll_M, lr, float(now.strength_MD.log().mean().exp()), float(now.noise_M[0]))

    def posterior(self, density: LogDensity, state: State, shelf: Shelf | None = None) -> LaplacePosterior:
        """Return the Gaussian at the weights of the last pass, under the prior and noise chosen there.

        Raises:
            ValueError: if the run ended within a pass.
        """
        posterior = _tuned(self, density, state.last_pass)
        problems = off_mode(posterior, state.last_pass.gradient_MD) if self.check_mode else []
        posterior = posterior if self.factor == 1 else posterior.with_strength(posterior.strength_D * self.factor)
        return posterior.with_problems(problems)

    def ending(self, posterior: LaplacePosterior, state: State) -> Ended:
        mean = Point(posterior.model, posterior.mean_MD, buffers_M=posterior.buffers_M, statistics_known=True)
        remedy = "leave `epochs_of_descent` open, so that held-out rows choose `factor`, keep more by another structure"
        return Ended(then=[lambda case: unexplained(mean, case.source), partial(too_wide, remedy=remedy)])


def _descend(
    method: OnlineLaplace, density: LogDensity, state: State, *, batch: Batch, donate: bool
) -> tuple[State, Tensor, float]:
    lr, weights_MD = method.optimizer.lr * method.schedule.factor(state.trajectory.done), state.trajectory.weights_MD
    prior_MD = torch.zeros_like(weights_MD)
    density.model.prior.add_gradient_(prior_MD, weights_MD, -1 / density.num_data)
    optimizer = Reweighted(method.optimizer, prior_MD, state.strength_MD, float(state.noise_M[0]) ** -2)
    trajectory, info = descent.descend(density, state.trajectory, batch, optimizer=optimizer, lr=lr, donate=donate)
    return replace(state, trajectory=trajectory, step=state.step + 1), info.nll_M, lr


def _begun(state: State) -> CurvaturePass:
    trajectory = state.trajectory
    fresh = curvature_pass.begin(
        trajectory.weights_MD, trajectory.buffers, seeds=trajectory.seeds, steps_per_epoch=trajectory.steps_per_epoch
    )
    return replace(fresh, layer_support=state.last_pass.layer_support)


def _tuned(method: OnlineLaplace, density: LogDensity, current_pass: CurvaturePass) -> LaplacePosterior:
    return tune(
        curvature_pass.finish(method.curvature_settings, density, current_pass),
        prior=method.prior,
        noise=method.noise,
    )


@lru_cache
def _order(epochs: int, first: int, every: int, passes: int) -> tuple[bool, ...]:
    trains = []
    for epoch in range(1, epochs + 1):
        trains.append(True)
        if epoch == epochs or (epoch >= max(first, 1) and (epoch - first) % every == 0):
            trains += [False] * passes
    return tuple(trains)
