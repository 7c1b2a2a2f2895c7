"""Repulsive ensembles (D'Angelo and Fortuin 2021): each member climbs its log posterior and moves away from the others.

    x_i ← x_i + ε [ γ ∇log p(x_i) − ∇log q̂(x_i) ]

where q̂ is the density that the members stand for, whose score is estimated from them by kernels
(`torchbayes.methods.particles.scores`). In the space of weights x_i are the weights. In that of functions the bracket
is one of outputs on the batch, pulled back to the weights by the network (`torchbayes.methods.particles.functions`),
except for the prior, whose gradient is taken in the weights unless its score in functions is asked for. The bracket is
divided by N/T, on the scale of the mean loss, and an optimiser replaces the plain step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.density.plans import BackendName
from torchbayes.methods.finite import WORKSPACE
from torchbayes.methods.keepers import Following
from torchbayes.methods.optimise.descent import Descent, Trajectory
from torchbayes.methods.optimise.settings import Training
from torchbayes.methods.particles.base import Annealing, Direction, Info, Particles, annealed, heat_of, target_of
from torchbayes.methods.particles.functions import PLANS, FunctionTarget, PriorOf, Repulsion, check_extra
from torchbayes.methods.particles.kernels import RBF, Pairs, are_far, combine_, gram
from torchbayes.methods.particles.scores import Score, score_matrix
from torchbayes.methods.protocol import Shelf
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers
from torchbayes.posteriors.point import Point
from torchbayes.randomness.seeds import Purpose, mix


@dataclass(frozen=True)
class State(Following):
    """Where the members are."""

    trajectory: Trajectory
    # weights from the prior that functions of this epoch repel from, or (0, D)
    drawn_PD: Tensor = field(metadata=WORKSPACE, repr=False)
    # of these weights, which are made anew where the state is restored
    epoch: tuple[int, ...] = field(default=(), metadata=WORKSPACE, repr=False)


@dataclass(frozen=True)
class RepulsiveEnsemble(Training, Particles, Descent):
    """A deep ensemble whose members repel each other, in the space of weights or of functions.

    Few members spread too little. For a normal target, with kde and the median heuristic, 50 members have 0.84 of its
    variance in 1 dimension, 0.35 in 5, 0.17 in 10 and 0.02 in 100: in the weights of a network the force is next to
    nothing, and what is left is a deep ensemble. Functions repel on the rows of each batch; the force is that of one
    posterior, and fades against N rows of evidence.

    Members interact, so processes can share the data and not the members.

    Attributes:
        members: M.
        batch_size: rows per step where the data are not batched already. In the space of functions all members see the
            rows of the first one; in that of weights each has its own order.
        space: where members repel: weights or functions.
        score: the estimator: kde, sge or ssge.
        bandwidth: h of the kernel exp(−‖x − y‖²/h) of weights or outputs, in their squared units; None takes median² /
            log M of the distances at every step.
        prior: in the space of functions, where the prior acts: "weights", by its own gradient; or "functions", by the
            score estimated from `prior_draws` networks drawn from it, as published. That score fades where functions
            of the posterior lie far from all of the drawn ones, which on many rows is everywhere: members then go to
            the maximum of the likelihood.
        prior_draws: number of networks drawn for "functions", anew for each epoch; a step runs each of them forward.
        extra: rows beside those of each batch at which functions repel too: on lines through pairs of its rows, x + u
            (x′ − x) with u uniform on (−1, 2); for inputs of real numbers, without batch norm.
        annealing: how γ grows to 1 over the run, so that members first move apart: linear, hyperbolic or cyclic; None
            leaves it at 1.
        plan: how the stack of members is run: auto, native, loop, vmap or compiled; in the space of functions by loop
            or vmap, as set or as measured.
    """

    members: int = 10
    space: Literal["weights", "functions"] = "functions"
    score: Score = "kde"
    bandwidth: float | None = None
    prior: PriorOf = "weights"
    prior_draws: int = 10
    extra: int = 0
    annealing: Annealing | None = None
    plan: BackendName | str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.space == "functions" and self.plan not in ("auto", *PLANS):
            raise ValueError(
                f"`plan` of particles in the space of functions must be one of auto, {', '.join(PLANS)}; got "
                f"{self.plan!r}. Set one of these, or space='weights'."
            )

    def check(self, model: Model) -> None:
        super().check(model)
        if self.space == "functions" and model.chunk_size is not None:
            raise ValueError(
                f"functions repel on all rows of a batch at once, and `chunk_size` of the model is {model.chunk_size}. "
                f"Leave it out and lower `batch_size`, or set space='weights'."
            )

    def begin(
        self, density: Any, weights_MD: Tensor, buffers: Buffers, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> State:
        model: Any = getattr(density, "model", None)
        if self.space == "functions" and model is None:
            raise ValueError("`space` 'functions' is for networks, and this density has none. Set space='weights'.")
        if self.space == "functions" and self.prior == "functions":
            model.prior.sample(1)  # raises if the prior is improper or cannot be drawn from
        trajectory = super().begin(density, weights_MD, buffers, seeds=seeds, steps_per_epoch=steps_per_epoch)
        return State(trajectory, weights_MD[:0].clone())

    def move(self, density: Any, state: State, batch: Batch | None, *, donate: bool = False) -> tuple[State, Info]:
        return super().move(density, _with_prior(self, density, state), batch, donate=donate)

    def force(self, density: Any, state: State, batch: Batch | None) -> tuple[Any, Direction]:
        drive = annealed(self.annealing, state.trajectory.done)
        if self.space == "functions":
            return _between_functions(self, density, state, batch, drive=drive)
        heat = heat_of(density)

        def direction(weights_MD: Tensor, gradient_MD: Tensor) -> Pairs:
            pairs = RBF(self.bandwidth).pairs(gram(weights_MD, centred=True))
            mixing_MM = None if drive == 1 else torch.eye(len(weights_MD)).to(pairs.values_MM) * drive
            force_MM = score_matrix(pairs, self.score) * heat
            centred = are_far(pairs, weights_MD)
            combine_(gradient_MD, mixing_MM, force_MM, particles_MD=weights_MD, centred=centred)
            return pairs

        return target_of(density), direction

    def posterior(self, density: LogDensity, state: State, shelf: Shelf | None = None) -> Point:
        """Return the point masses at the members' weights."""
        now = state.trajectory
        return Point(density.model, now.weights_MD.clone(), buffers_M=now.buffers or None, statistics_known=True)


def _between_functions(
    method: RepulsiveEnsemble, density: LogDensity, state: State, batch: Batch | None, *, drive: float
) -> tuple[FunctionTarget, Direction]:
    """Return the loss of functions that repel, and the direction that its gradient already is."""
    drawn_PD = state.drawn_PD if len(state.drawn_PD) else None
    if method.extra and batch is not None and not state.step:
        check_extra(density.model, batch)
    target = FunctionTarget(density, Repulsion(method.score, RBF(method.bandwidth), drive, drawn_PD, method.extra))

    def direction(weights_MD: Tensor, gradient_MD: Tensor) -> Pairs:
        assert target.pairs is not None
        return target.pairs

    return target, direction


def _with_prior(method: RepulsiveEnsemble, density: LogDensity, state: State) -> State:
    """Return the state with the weights from the prior that belong to its epoch, if any are needed."""
    now = state.trajectory
    epoch = now.step // now.steps_per_epoch
    if method.space == "weights" or method.prior == "weights" or state.epoch == (epoch,):
        return state
    seed = mix(Purpose.PRIOR_FUNCTIONS, now.seeds[0], epoch)
    return State(now, density.model.prior.sample(method.prior_draws, seed=seed).to(now.weights_MD), (epoch,))
