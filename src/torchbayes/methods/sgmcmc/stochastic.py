"""What samplers on minibatches share: state, temperature, noise, a running preconditioner, and the report of a step.

A preconditioner is the root of the running mean square of the gradients, and a floor:

    V ← V + (1 − λ)/(1 − λ^(t+1)) (∇log p(w)² − V),     √V + δ,     ε_t ← ε_t min(t/100, 1)

at the step t of a chain, from 0, or of its cycle, which begins near a mode as a start does. So V is the mean of what
the chain has seen and not of one minibatch, whose gradient may be near 0 at a mode by chance. First steps are short,
because V grows when a chain leaves a mode. δ is by default 1/σ with σ the standard deviation of the weight's prior:
however small gradients are, a weight is not moved as if it were known less than before the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from torchbayes.checks import check_object, optional
from torchbayes.density.dynamics import Density, Value
from torchbayes.density.plans import BackendName  # noqa: F401  (jsonargparse evaluates annotations of `Sampler` here)
from torchbayes.health.chains import Sampled
from torchbayes.methods.choices import Choice, PriorScale
from torchbayes.methods.defaults import Report
from torchbayes.methods.faults import evaluated
from torchbayes.methods.finite import WORKSPACE
from torchbayes.methods.noise import normals
from torchbayes.methods.protocol import Needs, Visit
from torchbayes.methods.sampler import check_shapes, refuse_batch_norm, retained_steps
from torchbayes.methods.schedules import Cycles, Decay, Steady, StepSchedule, ramp
from torchbayes.methods.sgmcmc.restarts import MOST, Track, gone_back, mended
from torchbayes.randomness.seeds import Purpose

_FALLING, _STEADY = Decay(500.0, 1.0), Steady()  # where no schedule is given: on minibatches, and on all the data


@dataclass(frozen=True)
class State:
    """Where the chains are."""

    weights_MD: Tensor
    momentum_MD: Tensor  # (M, 0) without one
    squares_MD: Tensor  # V; (M, 0) without preconditioner
    floor_D: Tensor = field(metadata=WORKSPACE, repr=False)  # δ; empty without preconditioner
    seeds: tuple[int, ...]
    step: int
    track: Track  # what a chain that diverges goes back to


@dataclass(frozen=True)
class Stochastic:
    """Settings of every sampler on minibatches; a base beside `Sampler`.

    Attributes:
        steps: length of a chain, burn-in included.
        burn_in: steps before draws are retained.
        thin: thinning interval.
        step_size: ε, on the scale of the full-data log density. None for one that does not depend on how many rows
            there are: rate / N with N rows, or a fixed one where steps are preconditioned; both depend on the class.
        batch_size: rows per step; None for all the data.
        schedule: how ε changes: `Steady`, `Decay` or `Cycles`. None for `Steady()`, but `Decay(500, 1)` on minibatches
            where no step size is given: large steps find the posterior, small ones resolve it where the data have
            little noise.
        preconditioned: whether steps are preconditioned by the root mean square of the gradients; None for minibatches
            where no step size is given.
        decay: λ, of the running mean square.
        floor: δ, added to its root, on the scale of the gradient. None for 1/σ of each weight's prior or, where that
            is flat or not known, for a number that only keeps steps finite.
    """

    # long, because a chain starts at fresh weights and has to find the posterior first, as a training run does
    steps: int = 10000
    burn_in: int = 6000
    thin: int = 10
    step_size: float | None = None
    batch_size: int | None = 128
    schedule: StepSchedule | None = None
    preconditioned: bool | None = None
    decay: float = 0.99
    floor: float | None = None

    adapts: ClassVar[bool] = False
    has_momentum: ClassVar[bool] = True
    single_gradient = True
    rate: ClassVar[float]
    preconditioned_rate: ClassVar[float]
    least_floor: ClassVar[float] = 1e-7

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]  # of `Sampler`
        optional(check_object, ("at", "noisy"), "Cycles()", schedule=self.schedule)
        cycles = self.cycles
        if cycles and not any(self.retains(step) for step in range(self.steps, self.burn_in, -1)):
            raise ValueError(
                f"no cycle of `length` {cycles.length} ends after burn-in within {self.steps} steps, so nothing "
                f"would be kept. Shorten the cycles, or sample longer."
            )

    @property
    def cycles(self) -> Cycles | None:
        """The cycles at whose ends draws are taken, if any."""
        return self.schedule if isinstance(self.schedule, Cycles) else None

    @property
    def needs(self) -> Needs:
        """Minibatches or all the data, any density, a shelf for draws; more steps make the same chain longer."""
        chunk_size: int = self.chunk_size  # type: ignore[attr-defined]  # of `Sampler`
        chunk, cycles = chunk_size if self.batch_size is None else None, self.cycles
        most = (self.steps - self.burn_in) // self.thin
        most = min(most, self.steps // cycles.length * cycles.draws) if cycles else most
        return Needs(batch_size=self.batch_size, chunk_size=chunk, draws=most, chain=True)

    def begin(
        self, density: Density, weights_MD: Tensor, buffers: Any, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> State:
        """Return where chains start, as `Sampler.begin` does; a momentum begins with 0."""
        refuse_batch_norm(density)
        weights_MD = weights_MD.detach().clone()
        nothing_MD = weights_MD[:, :0].clone()
        momentum_MD = torch.zeros_like(weights_MD) if self.has_momentum else nothing_MD
        squares_MD, floor_D = nothing_MD, nothing_MD[0]
        if self.preconditions(density):
            squares_MD, floor_D = torch.zeros_like(weights_MD), _floor(self, density, weights_MD)
        track = Track.of(weights_MD, steps_per_epoch)
        return State(weights_MD, momentum_MD, squares_MD, floor_D, tuple(seeds), 0, track)

    def visit(self, state: State) -> Visit | None:
        """Return the next minibatch, or all the data; None when the chain is complete."""
        if state.step >= self.steps:
            return None
        return Visit("all") if self.batch_size is None else Visit("minibatch", state.step)

    def retains(self, step: int) -> bool:
        """Return whether the weights after `step` steps are retained as a draw."""
        if cycles := self.cycles:
            left = -step % cycles.length  # steps to the end of the cycle
            return step > self.burn_in and left % self.thin == 0 and left // self.thin < cycles.draws
        return step > self.burn_in and (step - self.burn_in) % self.thin == 0

    def sound(self, weights_MSD: Tensor, state: State) -> Tensor:
        """Return draws in which those that chains took while they diverged are replaced: see `restarts`."""
        return mended(weights_MSD, retained_steps(self, state.step), state.track.lost())

    def ending(self, posterior: Any, state: State) -> Sampled:
        """Return how chains that may have diverged are judged."""
        return Sampled(burn_in=self.burn_in, lost=state.track.lost(), most=MOST, noisy=True)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The scale of an open prior, by two chains: on minibatches, if no step size is given."""
        return (PriorScale(members=2),) if self.step_size is None and self.batch_size is not None else ()

    def preconditions(self, density: Density) -> bool:
        """Return whether steps are preconditioned.

        By default those on all the data are not: a preconditioner follows exact gradients, which changes the law of
        the chain. Gradients on minibatches are mostly noise, and it hardly changes.
        """
        return _is_open(self, density) if self.preconditioned is None else self.preconditioned

    def pace(self, density: Density) -> StepSchedule:
        """Return the schedule of ε."""
        return self.schedule or (_FALLING if _is_open(self, density) and not self.adapts else _STEADY)

    def step_size_at(self, step: int, density: Density) -> float:
        """Return ε of a step; where burn-in finds it, the factor on it."""
        size = self.step_size or (1.0 if self.adapts else None)
        if size is None:
            rate, num_data = self.rate, getattr(density, "num_data", 1)
            size = self.preconditioned_rate if self.preconditions(density) else rate / num_data
        return size * self.pace(density).at(step)


@dataclass(frozen=True)
class Info(Report):
    """The report of a step on a minibatch, per chain."""

    log_density_M: Tensor  # estimate of the tempered log density before the step, float64, in nats
    log_likelihood_M: Tensor  # estimate of Σ log p(y|f), untempered
    step_size_M: Tensor
    divergent_M: Tensor  # 1.0 where a chain was seen to have diverged, and has gone back


def _is_open(method: Stochastic, density: Density) -> bool:
    """Return whether the steps are on minibatches and of no given size."""
    return bool(method.choices) and hasattr(density, "num_data")


def temperature(density: Density) -> float:
    """Return T where likelihood and prior are both divided by it, else 1.

    Multiplying by it gives the drift of the untempered density, so that a step size means the same at every T.
    """
    model: Any = getattr(density, "model", None)
    return model.temperature if model is not None and model.tempering == "joint" else 1.0


def _floor(method: Any, density: Any, weights_MD: Tensor) -> Tensor:
    """Return δ of every weight."""
    if method.floor is not None or not hasattr(density, "prior_stds"):
        return torch.full_like(weights_MD[0], method.floor or method.least_floor)
    floor_D = temperature(density) ** 0.5 / density.prior_stds()
    return floor_D.to(weights_MD).clamp_min(method.least_floor)


def copied(state: Any) -> Any:
    """Return a state whose tensors are copies, which a step may overwrite."""
    return replace(state, **{name: value.clone() for name, value in vars(state).items() if isinstance(value, Tensor)})


def by_chain(numbers: Sequence[float], like_MD: Tensor) -> float | Tensor:
    """Return a number for each chain, (M, 1), or a single one if all are the same."""
    return numbers[0] if len(set(numbers)) == 1 else like_MD.new_tensor(numbers).unsqueeze(-1)


def add_(into_MD: Tensor, more_MD: Tensor, factor: float | Tensor) -> None:
    """Add a multiple in place, by a factor from `by_chain`."""
    into_MD.addcmul_(more_MD, factor) if isinstance(factor, Tensor) else into_MD.add_(more_MD, alpha=factor)


def scaled_noise(state: Any, step: int, scale: float | Tensor) -> Tensor:
    """Return normals (M, D) of standard deviation `scale`, from `by_chain`; every chain has its own."""
    return normals(state.seeds, Purpose.DIFFUSION, step, like=state.weights_MD).mul_(scale)


def _preconditioner(now: State, drift_MD: Tensor, decay: float) -> Tensor:
    """Return √V + δ, after adding a gradient to the running mean square V of a state."""
    ages = now.track.ages(now.step)
    weights = [(1 - decay) / (1 - decay ** (age + 1)) for age in ages]
    now.squares_MD.lerp_(drift_MD.square(), by_chain(weights, drift_MD))
    return now.squares_MD.sqrt().add_(now.floor_D)


class Seen(NamedTuple):
    """The density before a step, and the state that the step may overwrite."""

    now: Any
    drift_MD: Tensor  # gradient of the untempered density, which the step may overwrite too
    step_size: float | Tensor  # ε of each chain, from `by_chain`
    noisy: bool  # whether the step adds noise
    mass_MD: Tensor | None  # √V + δ, of this gradient too; None without preconditioner
    value: Value  # the density
    sizes: list[float]  # ε of each chain

    def done(self, now: Any, fresh: Mapping[str, Tensor | float] = MappingProxyType({})) -> tuple[Any, Info]:
        """Return the state after the step and its info, once chains that have diverged have gone back.

        `now` has the number of the step; `fresh` is that of `gone_back`.
        """
        state, divergent_M = gone_back(now, fresh)
        sizes_M = torch.tensor(self.sizes, dtype=torch.float64)  # not on the device, as only the log needs them
        return state, Info(self.value.log_density, self.value.log_likelihood, sizes_M, divergent_M)


def look(method: Any, density: Density, state: Any, *, batch: Any, donate: bool) -> Seen:
    """Return the density before a step and the state that the step may overwrite, which is a copy unless donated.

    Raises DivergedError if every chain has ended, and ValueError if the density has the wrong shape.
    """
    weights_MD, track, number = method.gradient_point(density, state), state.track, state.step
    step_size = method.step_size_at(number, density)
    track.check(method, step_size)
    value, faults = evaluated(density, weights_MD, known_MD=track.sound_MD, batch=batch)
    check_shapes(value, weights_MD)
    track = track.seen(number, weights_MD, value, density=density, fault=faults.first)
    now = replace(state if donate else copied(state), track=track)
    drift_MD = value.gradient.mul_(temperature(density))
    shares, mass_MD = [1.0] * len(track.times), None
    if method.preconditions(density):
        position = number % method.cycles.length if method.cycles else number  # a cycle begins at a mode
        shares = [ramp(min(age, position)) for age in track.ages(number)]
        mass_MD = _preconditioner(now, drift_MD, method.decay)
    sizes = [step_size * factor * share for factor, share in zip(track.factors(), shares, strict=True)]
    noisy = method.pace(density).noisy(number)
    return Seen(now, drift_MD, by_chain(sizes, weights_MD), noisy, mass_MD, value, sizes)
