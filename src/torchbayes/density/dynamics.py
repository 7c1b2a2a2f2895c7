"""The interface of a density for samplers: value, gradient, and the leapfrog integrator on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from torchbayes.checks import SettingError, check_function, seen
from torchbayes.native.process import as_the_program, differentiable, usable


class Value(NamedTuple):
    """What a density returns.

    Attributes:
        log_density: float64 tensor (M,), in nats, on the full-data scale, tempered.
        gradient: tensor (M, D), d log_density / d weights.
        log_likelihood: float64 tensor (M,), Σ log p(y|f) on the full-data scale, untempered and without the prior.
    """

    log_density: Tensor
    gradient: Tensor
    log_likelihood: Tensor


class ValueOnly(NamedTuple):
    """What a density returns where no gradient is wanted: the same numbers as `Value`.

    Attributes:
        log_density: float64 tensor (M,), as in `Value`.
        log_likelihood: float64 tensor (M,), as in `Value`.
    """

    log_density: Tensor
    log_likelihood: Tensor


class Phase(NamedTuple):
    """A point of phase space, and the density at its position."""

    weights_MD: Tensor
    momentum_MD: Tensor
    value: Value


class Density(Protocol):
    """A log density and its gradient for M members at once: all that a sampler needs of a model."""

    def __call__(self, weights_MD: Tensor, batch: Any = None) -> Value:
        """Return value and gradient of each row."""
        ...

    def value(self, weights_MD: Tensor, batch: Any = None) -> ValueOnly:
        """Return the value of each row as a call does, without the gradient."""
        ...

    def leapfrog(
        self,
        weights_MD: Tensor,
        momentum_MD: Tensor,
        *,
        gradient_MD: Tensor,
        step_size_M: Tensor,
        steps_M: Tensor,
        inverse_mass_MD: Tensor | None = None,
    ) -> Phase:
        """Return the end of leapfrog steps."""
        ...


def leapfrog(
    density: Callable[[Tensor], Value],
    weights_MD: Tensor,
    momentum_MD: Tensor,
    *,
    gradient_MD: Tensor,
    step_size_M: Tensor,
    steps_M: Tensor,
    inverse_mass_MD: Tensor | None = None,
) -> Phase:
    """Move every member by leapfrog steps of the Hamiltonian −log p(w) + ½ vᵀ M⁻¹ v, on any density.

        v ← v + (ε/2) ∇log p(w),   w ← w + ε M⁻¹ v,   v ← v + (ε/2) ∇log p(w)

    The steps are reversible and preserve volume; the energy error is of order ε² (Neal 2011, section 5.2.3). A
    negative step size goes back in time. `gradient_MD` is that of the log density at the start. ε of each member is
    float64, `steps_M` int64, at least 1; members with fewer steps wait for the others. M⁻¹ is as for `velocity`. No
    argument is changed.
    """
    gradient, weights, momentum = gradient_MD, weights_MD, momentum_MD
    value = None
    for moving_M1 in step_sizes(step_size_M, steps_M, int(steps_M.max())).to(weights).unsqueeze(-1):
        momentum = momentum + moving_M1 / 2 * gradient
        weights = weights + moving_M1 * velocity(momentum, inverse_mass_MD)
        value = density(weights)
        gradient = value.gradient
        momentum = momentum + moving_M1 / 2 * gradient
    assert value is not None, "at least one step is taken"
    return Phase(weights, momentum, value)


def step_sizes(step_size_M: Tensor, steps_M: Tensor, length: int) -> Tensor:
    """Return the size of each of `length` steps, (length, M), 0 once a member has taken its own.

    Both arguments are on the CPU with the sampler, so a GPU receives all sizes at once, before the first step.
    """
    return step_size_M * (torch.arange(length, device=steps_M.device).unsqueeze(-1) < steps_M)


def velocity(momentum_MD: Tensor, inverse_mass_MD: Tensor | None) -> Tensor:
    """Return M⁻¹ v of momenta v, (..., M, D).

    `inverse_mass_MD` is the diagonal of M⁻¹, (M, D); for a dense one its lower Cholesky factor R, M⁻¹ = R Rᵀ, (M, D,
    D); None for the identity.
    """
    if inverse_mass_MD is None:
        return momentum_MD
    if inverse_mass_MD.ndim < 3:
        return inverse_mass_MD * momentum_MD
    return displaced(whitened(momentum_MD, inverse_mass_MD), inverse_mass_MD)


def whitened(momentum_MD: Tensor, inverse_mass_MD: Tensor | None) -> Tensor:
    """Return Rᵀ v, (..., M, D), which is N(0, I) if v is N(0, M) and M⁻¹ = R Rᵀ, as for `velocity`."""
    if inverse_mass_MD is None:
        return momentum_MD
    if inverse_mass_MD.ndim < 3:
        return inverse_mass_MD.sqrt() * momentum_MD
    return torch.einsum("mij,...mi->...mj", inverse_mass_MD, momentum_MD)


def displaced(standard_MD: Tensor, inverse_mass_MD: Tensor | None) -> Tensor:
    """Return R z, (..., M, D), which is N(0, M⁻¹) if z is N(0, I) and M⁻¹ = R Rᵀ, as for `velocity`."""
    if inverse_mass_MD is None:
        return standard_MD
    if inverse_mass_MD.ndim < 3:
        return inverse_mass_MD.sqrt() * standard_MD
    return torch.einsum("mij,...mj->...mi", inverse_mass_MD, standard_MD)


def check_value(value: Any) -> None:
    """Raise a TypeError if a function returns anything but a floating tensor for a log density."""
    if not isinstance(value, Tensor):
        raise TypeError(f"the log density must return a tensor; got {seen(value)}. Compute it by operations of torch.")
    if not value.is_floating_point():
        raise TypeError(f"the log density must be of a floating dtype; got {value.dtype}. Convert it with .double().")


class Stepwise(ABC):
    """A density whose trajectories are computed step by step."""

    @abstractmethod
    def __call__(self, weights_MD: Tensor, batch: Any = None) -> Value:
        """Return value and gradient at each row."""

    def leapfrog(
        self,
        weights_MD: Tensor,
        momentum_MD: Tensor,
        *,
        gradient_MD: Tensor,
        step_size_M: Tensor,
        steps_M: Tensor,
        inverse_mass_MD: Tensor | None = None,
    ) -> Phase:
        """Return the end of leapfrog steps, by the function `leapfrog`."""
        return leapfrog(
            self,
            weights_MD,
            momentum_MD,
            gradient_MD=gradient_MD,
            step_size_M=step_size_M,
            steps_M=steps_M,
            inverse_mass_MD=inverse_mass_MD,
        )


class FunctionDensity(Stepwise):
    """Any differentiable log density, weights (M, D) -> (M,), in the place of a `LogDensity`.

    The function should return float64 where its values are large, because samplers use differences and float32 has
    only seven digits.
    """

    def __init__(self, log_density: Callable[[Tensor], Tensor]) -> None:
        """Wrap a function.

        Args:
            log_density: weights (M, D) -> log density (M,), row by row.
        """
        check_function("a function of the weights", log_density=log_density)
        self._function = log_density

    def __call__(self, weights_MD: Tensor, batch: Any = None, **_: Any) -> Value:
        """Return value and gradient at each row; a batch is ignored.

        Raises:
            SettingError: if autograd cannot trace the density back to the weights.
            TypeError: if the function does not return a floating tensor.
        """
        del batch
        with differentiable():
            leaf = usable(weights_MD).detach().requires_grad_()
            with as_the_program():
                value_M = self._function(leaf)
            check_value(value_M)
            gradient_MD = None
            if value_M.requires_grad:
                (gradient_MD,) = torch.autograd.grad(value_M, leaf, torch.ones_like(value_M), allow_unused=True)
            if gradient_MD is None:
                raise SettingError(
                    "the log density has no gradient: PyTorch does not see how it depends on the weights. Compute it "
                    "by operations of torch, outside of inference_mode; to a constant, add 0 * weights.sum(-1)."
                )
        value_M = value_M.detach().double()
        return Value(value_M, gradient_MD, value_M)

    def value(self, weights_MD: Tensor, batch: Any = None) -> ValueOnly:
        """Return the value at each row; a batch is ignored."""
        del batch
        with differentiable(), as_the_program():  # as in a call, because the function may use autograd itself
            value_M = self._function(weights_MD.detach().requires_grad_()).detach().double()
        return ValueOnly(value_M, value_M)
