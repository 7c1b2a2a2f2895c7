"""What samplers share: chains, burn-in, thinning, and the report of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchbayes.density.dynamics import Density, Value
from torchbayes.density.plans import BackendName
from torchbayes.density.precision import refuse_rounding
from torchbayes.health.chains import Sampled
from torchbayes.methods.defaults import Defaults, means_of
from torchbayes.methods.faults import Faults, begun
from torchbayes.methods.keepers import Keeper, Kept, Thinned
from torchbayes.methods.noise import uniforms
from torchbayes.methods.protocol import Needs, Shelf, Visit
from torchbayes.model.network import refuse_by_batch
from torchbayes.posteriors.draws import Draws
from torchbayes.randomness.seeds import Purpose

# an energy error above this is a divergence: the integrator has left the trajectory (Betancourt 2017, section 6.2)
DIVERGENCE = 1000.0


@dataclass(frozen=True)
class Sampler(Kept, Defaults, ABC):
    """Settings of every sampler.

    Attributes:
        chains: M, independent chains.
        steps: length of a chain, burn-in included: each chain retains (steps − burn_in) / thin draws.
        burn_in: steps before draws are retained; step sizes and masses are adapted only in these, a mass only where
            there are 20 or more.
        thin: every `thin`-th step after burn-in is retained as a draw.
        plan: how the stack of chains is run: auto, native, loop, vmap or compiled.
        chunk_size: rows that go through a network at once: the bound on memory.
    """

    chains: int = 4
    steps: int = 1000
    burn_in: int = 200
    thin: int = 1
    plan: BackendName | str = field(default="auto", kw_only=True)
    chunk_size: int = field(default=1024, kw_only=True)

    adapts: ClassVar[bool] = True  # the step size, where there is one and it is not given

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.burn_in >= self.steps:
            raise ValueError(
                f"`burn_in` must lie in 0..{self.steps - 1}, so that something of the {self.steps} steps is kept; "
                f"got {self.burn_in}. Burn-in counts within `steps`: each chain keeps (steps - burn_in) / thin draws."
            )
        if (self.steps - self.burn_in) < self.thin:
            raise ValueError(
                f"`thin` must be at most {self.steps - self.burn_in}, the steps after burn-in; got {self.thin}."
            )

    @property
    def keeper(self) -> Keeper:
        return Thinned(lambda state: self.retains(state.step))

    @abstractmethod
    def begin(
        self, density: Density, weights_MD: Tensor, buffers: Any, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> Any:
        """Return where chains start. Samplers run networks in evaluation mode, and schedules count steps.

        Raises:
            ValueError: if the network has batch norm that is not frozen. With all the data also if the density cannot
                be computed, is not finite or has the wrong shape at the start, or if a setting cannot be derived from
                the prior.
        """

    @abstractmethod
    def move(self, density: Density, state: Any, batch: Any, *, donate: bool = False) -> tuple[Any, Any]:
        """Return every chain one step on, and the report of the step.

        Only samplers on minibatches overwrite the tensors of a state that is donated.

        Raises:
            DivergedError: on minibatches, if the density cannot be computed, or it or its gradient is not finite; the
                weights are then those before the step. Samplers on all the data reject such a proposal.
            ValueError: if the density has the wrong shape.
        """

    @property
    def members(self) -> int:
        """M."""
        return self.chains

    @property
    def needs(self) -> Needs:
        """All the data, any density, a shelf for draws; more steps make the same chain longer."""
        return Needs(chunk_size=self.chunk_size, draws=(self.steps - self.burn_in) // self.thin, chain=True)

    def length(self, steps_per_epoch: int) -> int:
        """Return the number of steps of a chain, burn-in included, whatever the length of an epoch."""
        return self.steps

    def visit(self, state: Any) -> Visit | None:
        """Return a visit to all the data; None when the chain is complete."""
        return Visit("all") if state.step < self.steps else None

    def posterior(self, density: Any, state: Any, shelf: Shelf | None = None) -> Draws:
        """Return the draws on the shelf.

        Raises:
            ValueError: if there are none yet.
        """
        assert shelf is not None, "a sampler puts its draws on a shelf"
        weights_MSD = self.sound(shelf.weights_MSD(), state)
        steps_MS = torch.tensor(retained_steps(self, state.step)).expand(len(weights_MSD), -1)
        return Draws(density.model, weights_MSD, statistics_known=True, sample_stats={"step": steps_MS})

    def sound(self, weights_MSD: Tensor, state: Any) -> Tensor:
        """Return the draws without those that chains took while they diverged.

        By default all, as proposals are rejected.
        """
        return weights_MSD

    def ending(self, posterior: Draws, state: Any) -> Sampled:
        return Sampled(burn_in=self.burn_in)

    def retains(self, step: int) -> bool:
        """Return whether the weights after `step` steps are retained as a draw."""
        return step > self.burn_in and (step - self.burn_in) % self.thin == 0


def retained_steps(method: Any, step: int) -> list[int]:
    """Return those of the first `step` steps of a chain after which it retains a draw."""
    return [number for number in range(1, step + 1) if method.retains(number)]


@dataclass(frozen=True)
class Info:
    """The report of a step on all the data, per chain."""

    log_density_M: Tensor  # tempered, at the new weights, float64, in nats
    log_likelihood_M: Tensor  # Σ log p(y|f) there, untempered
    energy_M: Tensor | None  # −log density + kinetic energy before the step, for E-BFMI; None without momentum
    acceptance_M: Tensor  # probability, mean over the step's proposals
    step_size_M: Tensor
    gradients_M: Tensor  # number of gradient evaluations
    divergent_M: Tensor  # 1.0 where the energy error was above 1000 or not finite
    outside_M: Tensor  # 1.0 where it was not finite: a proposal left the support
    faults: Faults  # proposals that were rejected because the density raised an exception
    saturated_M: Tensor | None = None  # 1.0 where a trajectory of NUTS reached `max_doublings` without turning

    def means(self) -> dict[str, Tensor]:
        """Return what is averaged over an epoch, by name, each (M,)."""
        return {**means_of(self), "failed": self.faults.raised_M.double()}

    def now(self) -> dict[str, Any]:
        """Return the first exception, if there was one."""
        return {"fault": self.faults.first} if self.faults.first else {}


def begin(density: Density, weights_MD: Tensor) -> Value:
    """Return the density and its gradient at the start of chains.

    Raises ValueError if they cannot be computed, have the wrong shape or are not finite, or if the network has batch
    norm that is not frozen, and TypeError if the network computes in less than float32.
    """
    refuse_batch_norm(density)
    model, rows = (getattr(density, name, None) for name in ("model", "data"))
    if model is not None and rows is not None:
        refuse_rounding(model, rows)
    value = begun(density, weights_MD)
    check_shapes(value, weights_MD)
    finite_M = torch.isfinite(value.log_density) & torch.isfinite(value.gradient).all(-1)
    if not finite_M.all():
        chain = int((~finite_M).nonzero()[0])
        raise ValueError(
            f"the log density or its gradient is not finite where chain {chain} starts: "
            f"{value.log_density[chain].item():g}. Look for extreme values in the data, or start elsewhere."
        )
    return value


def check_shapes(value: Value, weights_MD: Tensor) -> None:
    """Raise ValueError unless a density gives one number and one gradient for each row; others would broadcast."""
    rows, shapes = weights_MD.shape[:1], (value.log_density.shape, value.log_likelihood.shape)
    if shapes != (rows, rows) or value.gradient.shape != weights_MD.shape:
        raise ValueError(
            f"the density must return one log density for each row of weights, shape {tuple(rows)}, and a gradient of "
            f"their shape {tuple(weights_MD.shape)}; got {tuple(value.log_density.shape)} and "
            f"{tuple(value.gradient.shape)}. Sum over the last axis, and over no other."
        )


def refuse_batch_norm(density: Density) -> None:
    """Raise ValueError unless the density depends on the weights alone.

    It does not if the network has a batch norm that is not frozen, or one without running statistics.
    """
    model: Any = getattr(density, "model", None)
    if model is None:
        return
    if not model.coupled:
        refuse_by_batch(model.network)
    if model.network.batch_norms:
        raise ValueError(
            f"`{model.network.batch_norms[0]}` is a batch norm, whose outputs depend on the batch, so the weights have "
            f"no fixed density to sample. Use filter response norm or group norm, or freeze it by `random=`."
        )


def acceptance(log_ratio_M: Tensor) -> Tensor:
    """Return the probability of acceptance, min(1, exp(log ratio)), and 0 where the ratio is not finite."""
    # 0 even where the density is infinite, because a chain would stay there for ever
    return log_ratio_M.nan_to_num(nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf).clamp(max=0.0).exp()


def metropolis(log_ratio_M: Tensor, seeds: Any, step: int) -> tuple[Tensor, Tensor]:
    """Return which chains accept, bool (M,), and with what probability, float64 (M,).

    The ratio is target times reverse proposal over target times proposal.
    """
    probability_M = acceptance(log_ratio_M)
    return uniforms(seeds, Purpose.ACCEPT, step).to(probability_M.device) < probability_M, probability_M


def diverged(error_M: Tensor) -> tuple[Tensor, Tensor]:
    """Return 1.0 where the energy error is above 1000 or not finite, else 0.0; and 1.0 where it is not finite."""
    outside_M = ~torch.isfinite(error_M)
    return (outside_M | (error_M > DIVERGENCE)).double(), outside_M.double()


def moved(state: Any, accepted_M: Tensor, weights_MD: Tensor, *, value: Value) -> Any:
    """Return the next state: at the new weights where a chain accepted, unchanged elsewhere.

    `value` is the density at the new weights.
    """
    proposed = weights_MD, value.gradient, value.log_density, value.log_likelihood
    current = state.weights_MD, state.gradient_MD, state.log_density_M, state.log_likelihood_M
    accepted = int(accepted_M.sum())
    if 0 < accepted < len(accepted_M):
        new = [choose(accepted_M, new_rows, old_rows) for new_rows, old_rows in zip(proposed, current, strict=True)]
    else:  # nothing is copied: often all accept, and a single chain gives all or none
        new = proposed if accepted else current
    names = ("weights_MD", "gradient_MD", "log_density_M", "log_likelihood_M")
    return replace(state, **dict(zip(names, new, strict=True)), step=state.step + 1)


def choose(accepted_M: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Return rows of `new` where accepted, of `old` elsewhere, for tensors (M, ...)."""
    return torch.where(accepted_M.view(-1, *(1,) * (new.ndim - 1)), new, old)
