"""Densities that raise exceptions: where one cannot be computed, a proposal is rejected, as in Stan.

A target may fail at weights where no sampler should be, for example at a matrix without a Cholesky factor, or at
parameters that a distribution rejects. The density there is taken to be zero. All chains are evaluated in one call.
After a failure the call is repeated for subsets of the chains, with the others at weights where the density is known,
until it is clear which of them fail. Where no start is given, one is sought at which the density can be computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchbayes.checks import SettingError
from torchbayes.density.dynamics import Density, Phase, Value, leapfrog
from torchbayes.native.processes import LostRankError
from torchbayes.randomness.seeds import Purpose, generator

# RuntimeErrors with another cause than the target: memory, devices, unimplemented operations, other processes
_FATAL = (torch.OutOfMemoryError, torch.AcceleratorError, NotImplementedError, RecursionError, LostRankError)
_FATAL += (SettingError,)  # a ValueError with another cause
_COMPILERS = ("torch._dynamo", "torch._inductor")
RADIUS, ATTEMPTS = 2.0, 100  # of starts, as in Stan


class Faults(NamedTuple):
    """Which chains' proposals raised exceptions."""

    raised_M: Tensor  # bool, on the device of the weights
    first: str  # type and message of the first exception, or empty

    @classmethod
    def none(cls, weights_MD: Tensor) -> Faults:
        """Return no faults."""
        return cls(torch.zeros(len(weights_MD), dtype=torch.bool, device=weights_MD.device), "")


def is_fault(error: Exception, density: Density) -> bool:
    """Return whether an exception only means that a density cannot be computed at some weights.

    Never where ranks share the rows, because the others are waiting for this rank's part of the sum.
    """
    if isinstance(error, _FATAL) or not isinstance(error, ValueError | ArithmeticError | RuntimeError):
        return False
    ranks: Any = getattr(density, "ranks", None)
    if (ranks is not None and ranks.data > 1) or type(error).__module__.startswith(_COMPILERS):
        return False
    return not (isinstance(error, RuntimeError) and "memory" in str(error))  # a CPU raises a plain RuntimeError


def worded(error: Exception) -> str:
    """Return type and first line of an exception, without a full stop."""
    first = (str(error).splitlines() or [""])[0].rstrip(".: ")
    return f"{type(error).__name__.lstrip('_')}: {first}"


def evaluated(
    density: Density, weights_MD: Tensor, *, known_MD: Tensor, gradient: bool = True, batch: Any = None
) -> tuple[Value, Faults]:
    """Return the density at each row, −∞ with a gradient of zero where it raises an exception, and the faults.

    It can be computed at `known_MD`. Without `gradient` the gradient has no columns, (M, 0). `batch` is one minibatch
    per row, or None where the density has all the data.
    """
    evaluate = density if batch is None else partial(density, batch=batch)
    evaluate = evaluate if gradient else partial(_without_gradient, density)
    try:
        return evaluate(weights_MD), Faults.none(weights_MD)
    except Exception as error:
        if not is_fault(error, density):
            raise
        raised = error
    nothing_M = weights_MD.new_full((len(weights_MD),), -torch.inf, dtype=torch.float64)
    gradient_MD = torch.zeros_like(weights_MD if gradient else weights_MD[:, :0])
    value, faults = Value(nothing_M, gradient_MD, nothing_M.clone()), Faults.none(weights_MD)
    fails = partial(is_fault, density=density)
    _fill(value, faults, (evaluate, fails), (weights_MD, known_MD), rows=range(len(weights_MD)))
    return value, faults._replace(first=worded(raised))


def _without_gradient(density: Density, weights_MD: Tensor) -> Value:
    log_density_M, log_likelihood_M = density.value(weights_MD)
    return Value(log_density_M, weights_MD[:, :0], log_likelihood_M)


def _fill(
    value: Value,
    faults: Faults,
    target: tuple[Callable[[Tensor], Value], Callable[[Exception], bool]],
    weights: tuple[Tensor, Tensor],
    *,
    rows: range,
) -> None:
    """Write the density at some rows, of which at least one fails, and mark those that do."""
    evaluate, fails = target
    if len(rows) == 1:
        faults.raised_M[rows] = True
        return
    for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
        mixed_MD = weights[1].clone()
        mixed_MD[half] = weights[0][half]
        try:
            value_there = evaluate(mixed_MD)
        except Exception as error:
            if not fails(error):
                raise
            _fill(value, faults, target, weights, rows=half)
        else:
            for whole, filled in zip(value, value_there, strict=True):
                whole[half] = filled[half].to(whole.dtype)


class Watched:
    """A density that remembers which chains' weights it could not be computed at.

    These wait where it is known, with the density −∞, for the rest of their steps.
    """

    def __init__(self, density: Density, known_MD: Tensor) -> None:
        self._density, self._known_MD = density, known_MD
        self.faults = Faults.none(known_MD)

    def __call__(self, weights_MD: Tensor) -> Value:
        """Return the density at each row."""
        before_M, first = self.faults
        if first:
            weights_MD = torch.where(before_M.unsqueeze(-1), self._known_MD, weights_MD)
        value, new = evaluated(self._density, weights_MD, known_MD=self._known_MD)
        self.faults = Faults(before_M | new.raised_M, first or new.first)
        if not self.faults.first:
            return value
        return value._replace(log_density=value.log_density.masked_fill(self.faults.raised_M, -torch.inf))


def travelled(
    density: Density,
    weights_MD: Tensor,
    momentum_MD: Tensor,
    *,
    gradient_MD: Tensor,
    step_size_M: Tensor,
    steps_M: Tensor,
    inverse_mass_MD: Tensor | None,
) -> tuple[Phase, Faults]:
    """Return where leapfrog steps lead, with density −∞ if a trajectory raised an exception, and the faults.

    The density can be computed at the start, `weights_MD`. Other arguments are as for `Density.leapfrog`.
    """
    try:
        phase = density.leapfrog(
            weights_MD,
            momentum_MD,
            gradient_MD=gradient_MD,
            step_size_M=step_size_M,
            steps_M=steps_M,
            inverse_mass_MD=inverse_mass_MD,
        )
        return phase, Faults.none(weights_MD)
    except Exception as error:
        if not is_fault(error, density):
            raise
    watched = Watched(density, weights_MD)
    phase = leapfrog(
        watched,
        weights_MD,
        momentum_MD,
        gradient_MD=gradient_MD,
        step_size_M=step_size_M,
        steps_M=steps_M,
        inverse_mass_MD=inverse_mass_MD,
    )
    return phase, watched.faults


def begun(density: Density, weights_MD: Tensor) -> Value:
    """Return the density where chains start; if it raises an exception there, a ValueError names the chain."""
    try:
        return density(weights_MD)
    except Exception as error:
        if not is_fault(error, density):
            raise
        where = _first_to_fail(density, weights_MD)
        raise ValueError(
            f"the log density cannot be computed where {where}: {worded(error)}. Mend it, or start elsewhere."
        ) from error


def _first_to_fail(density: Density, weights_MD: Tensor) -> str:
    """Return, in words, which chain starts where the density fails: the first, or all."""
    failed = []
    for chain, weights_D in enumerate(weights_MD):
        try:
            density(weights_D.expand_as(weights_MD).clone())  # keep the number of rows, as each may have its own target
        except Exception:
            failed.append(chain)
    return f"chain {failed[0]} starts" if 0 < len(failed) < len(weights_MD) else "the chains start"


def dispersed(density: Density, size: int, seeds: Sequence[int]) -> Tensor:
    """Return starts uniform on (−2, 2), float64 (M, D), redrawn where the density is not finite.

    As in Stan (reference manual, "Starts"). Raises ValueError if the density or its gradient is finite at none of 100
    points.
    """
    return torch.stack([_one(density, size, seed, chain) for chain, seed in enumerate(seeds)])


def _one(density: Density, size: int, seed: int, chain: int) -> Tensor:
    """Return the start of one chain; ValueError if there is none."""
    random, reason = generator(Purpose.DISPERSED, seed), "it is not finite"
    for _ in range(ATTEMPTS):
        start_D = RADIUS * (2 * torch.rand(size, dtype=torch.float64, generator=random) - 1)
        try:
            value = density(start_D.unsqueeze(0))
        except Exception as error:
            if not is_fault(error, density):
                raise
            reason = worded(error)
            continue
        if torch.isfinite(value.log_density).all() and torch.isfinite(value.gradient).all():
            return start_D
    raise ValueError(
        f"no start for chain {chain}: at {ATTEMPTS} points, uniform on (-{RADIUS:g}, {RADIUS:g}) without constraints, "
        f"the log density or its gradient could not be computed or is not finite (last: {reason}). Give `start_MD`."
    )
