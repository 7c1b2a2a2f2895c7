"""What samplers on minibatches share: temperature, noise, a running preconditioner, and what a step reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchbayes.checks import check_flags, check_object, given
from torchbayes.density.density import LogDensity
from torchbayes.density.dynamics import Density, Value
from torchbayes.density.plans import BackendName  # noqa: F401  (jsonargparse evaluates annotations of `Sampler` here)
from torchbayes.methods.checks import check_counts, check_positive, check_share
from torchbayes.methods.faults import is_fault, worded
from torchbayes.methods.finite import Seen, due, first_unsound
from torchbayes.methods.noise import Purpose, normals
from torchbayes.methods.protocol import Chosen, DivergedError, Fold
from torchbayes.methods.sampler import check_shapes
from torchbayes.methods.schedules import Decay, Steady, StepSchedule
from torchbayes.methods.sgmcmc.search import choose_scale


@dataclass(frozen=True)
class Stochastic:
    """Settings of every sampler on minibatches; a base beside `Sampler`.

    Attributes:
        steps: length of a chain, burn-in included.
        burn_in: steps, of those, before draws are retained.
        thin: thinning interval.
        step_size: ε, on the scale of the full-data log density. None for one that does not depend on how many rows
            there are: rate / N with N rows, or a fixed one where steps are preconditioned; both are of the class.
        batch_size: rows per step; None for all the data.
        schedule: how ε changes: `Steady`, `Decay` or `Cycles`. None for `Steady()`, but `Decay(500, 1)` on minibatches
            where no step size is given: large steps find the posterior, small ones resolve it where the data have
            little noise.
        preconditioned: whether steps are, by the root mean square of the gradients; None for minibatches where no step
            size is given.
        decay: λ, of the running mean square.
        floor: δ, added to its root; on the scale of the gradient.
    """

    # a chain starts at fresh weights and has to find the posterior first, as a training run does
    steps: int = 10000
    burn_in: int = 6000
    thin: int = 10
    step_size: float | None = None
    batch_size: int | None = 128
    schedule: StepSchedule | None = None
    preconditioned: bool | None = None
    decay: float = 0.99
    floor: float = 1e-7

    rate: ClassVar[float]
    preconditioned_rate: ClassVar[float]

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]  # of `Sampler`
        check_positive(**given(step_size=self.step_size))
        check_counts(**given(batch_size=self.batch_size))
        check_object(("at", "noisy"), "Cycles()", **given(schedule=self.schedule))
        check_flags(**given(preconditioned=self.preconditioned))
        check_share(decay=self.decay)
        check_positive(floor=self.floor)

    @property
    def searches(self) -> bool:
        """Whether held-out rows choose the scale of a prior that is open: where nothing is said of the steps."""
        return self.step_size is None and self.batch_size is not None

    def chosen(self, density: LogDensity, folds: Sequence[Fold], **begin: Any) -> Chosen:
        """Return what held-out rows choose: see `choose_scale`."""
        return choose_scale(self, density, folds, **begin)

    def is_open(self, density: Density) -> bool:
        """Return whether the steps are on minibatches and of no given size."""
        return self.searches and hasattr(density, "num_data")

    def preconditions(self, density: Density) -> bool:
        """Return whether steps are preconditioned.

        By default those on all the data are not: a preconditioner follows exact gradients, which changes the law of the
        chain. Of gradients on minibatches most is noise, and it hardly changes.
        """
        return self.is_open(density) if self.preconditioned is None else self.preconditioned

    def pace(self, density: Density) -> StepSchedule:
        """Return how ε changes."""
        return self.schedule or (Decay(500.0, 1.0) if self.is_open(density) else Steady())

    def step_size_at(self, step: int, density: Density) -> float:
        """Return ε of a step."""
        size = self.step_size
        if size is None:
            rate, num_data = self.rate, getattr(density, "num_data", 1)
            size = self.preconditioned_rate if self.preconditions(density) else rate / num_data
        return size * self.pace(density).at(step)


@dataclass(frozen=True)
class Info:
    """What a step on a minibatch reports, per chain.

    Attributes:
        log_density_M: estimate of the tempered log density before the step, float64, in nats.
        log_likelihood_M: estimate of Σ log p(y|f), untempered.
        step_size_M: ε of the step.
    """

    log_density_M: Tensor
    log_likelihood_M: Tensor
    step_size_M: Tensor

    def means(self) -> dict[str, Tensor]:
        """Return what is averaged over an epoch, by name, each (M,)."""
        return {
            "log_density": self.log_density_M,
            "log_likelihood": self.log_likelihood_M,
            "step_size": self.step_size_M,
        }

    def now(self) -> dict[str, float]:
        """Return what is true of the last step of an epoch."""
        return {}


def temperature(density: Density) -> float:
    """Return T where likelihood and prior are both divided by it, else 1.

    Multiplying by it gives the drift of the untempered density, so that a step size means the same at every T.
    """
    model: Any = getattr(density, "model", None)
    return model.temperature if model is not None and model.tempering == "joint" else 1.0


def copied(state: Any) -> Any:
    """Return a state whose tensors are copies, which a step may overwrite."""
    return replace(state, **{name: part.clone() for name, part in vars(state).items() if isinstance(part, Tensor)})


def scaled_noise(state: Any, step: int, scale: float) -> Tensor:
    """Return normals of standard deviation `scale`, (M, D); every chain has its own."""
    return normals(state.seeds, Purpose.DIFFUSION, step, like=state.weights_MD).mul_(scale)


def preconditioner(now: Any, drift_MD: Tensor, *, step: int, decay: float, floor: float) -> Tensor:
    """Return √V + δ, after the running mean square V of a state has taken in a gradient."""
    now.squares_MD.lerp_(drift_MD.square(), 1 - decay if step else 1.0)  # the first step has no average yet
    return now.squares_MD.sqrt().add_(floor)


def evaluate_finite(
    density: Density, state: Any, batch: Any, *, method: Any, step_size: float
) -> tuple[Value, Info, tuple[Seen, ...]]:
    """Return the density before a step, after checking that it is finite, and the info of the step.

    Args:
        density: the target.
        state: the state before the step.
        batch: rows of the step.
        method: the method, for its length.
        step_size: ε of the step.

    Returns:
        The density, the info, and the steps that are still to be looked at.

    Raises:
        DivergedError: if the density cannot be computed, or it or its gradient is not finite. On a CPU the weights are
            then those before the step; on other devices the latter is found up to 49 steps later.
        ValueError: if it has the wrong shape.
    """
    try:
        value = density(state.weights_MD, batch)
    except Exception as error:
        if not is_fault(error, density):
            raise
        raise DivergedError(
            f"the log density cannot be computed at step {state.step} of {method.steps}: {worded(error)}. A chain on "
            f"minibatches has no proposals to reject, so it ends there; lower the step size of {step_size:g}, or mend "
            f"the density."
        ) from error
    check_shapes(value, state.weights_MD)
    unseen = (*state.unseen, Seen.of(state.step, step_size, value_M=value.log_density, gradient_MD=value.gradient))
    if due(unseen, last=state.step + 1 == method.steps):
        if (bad := first_unsound(unseen)) is not None:
            raise DivergedError(
                f"the chain diverged at step {bad.step} of {method.steps}: the log density of chain {bad.member} is "
                f"{bad.value:g} or its gradient is not finite, at step size {bad.rate:g}. Lower the step size, or look "
                f"for extreme values in the data."
            )
        unseen = ()
    info = Info(value.log_density, value.log_likelihood, torch.full_like(value.log_density, step_size))
    return value, info, unseen
