"""Named parameters with constraints, and the one vector without constraints that samplers move.

With the bijection T from the real numbers to the support of a parameter, the density of x = T⁻¹(θ) is

    log p(x) = log p(θ) + log |det dT/dx|,   θ = T(x)

The bijections are those of `torch.distributions.biject_to`, and that of `ordered`: θ₁ = x₁, θₖ = θₖ₋₁ + exp xₖ, with
log |det| = Σₖ₌₂ xₖ (Stan reference manual, "Ordered vector").
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Transform, biject_to, constraints

from torchbayes.checks import as_numbers, is_whole, seen
from torchbayes.model.layout import Layout


class _Ordered(constraints.Constraint):
    """Vectors whose entries increase."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        """Return which vectors on the last axis increase."""
        return (value.diff(dim=-1) > 0).all(-1)


class _Increasing(Transform):
    """x₁, then steps exp xₖ up from it."""

    domain, codomain, bijective = constraints.real_vector, _Ordered(), True

    def _call(self, x: Tensor) -> Tensor:
        return torch.cat([x[..., :1], x[..., 1:].exp()], -1).cumsum(-1)

    def _inverse(self, y: Tensor) -> Tensor:
        return torch.cat([y[..., :1], y.diff(dim=-1).log()], -1)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x[..., 1:].sum(-1)


ordered = _Ordered()
"""The constraint of vectors whose entries increase, which torch.distributions lacks."""
biject_to.register(_Ordered, lambda _: _Increasing())


class _Parameter(NamedTuple):
    """Shape of a parameter, its constraint, and the bijection from real numbers."""

    shape: tuple[int, ...]
    constraint: constraints.Constraint
    transform: Any


class Parameters:
    """Names, shapes and constraints of the parameters of a density.

        tb.Parameters(mu=(), tau=constraints.positive, theta=(8,), w=(3, constraints.simplex), cut=(4, tb.ordered))

    Each is a shape, a constraint of `torch.distributions.constraints` for a single number, or a shape that ends in a
    constraint. Simplices and ordered vectors lie on the last axis: `(5, 3, constraints.simplex)` are five simplices.

    Attributes:
        layout: names and shapes without constraints: where each parameter lies in the vector (D,) that is sampled. A
            simplex of K entries takes K − 1.
    """

    def __init__(self, /, **parameters: Any) -> None:
        """Name the parameters.

        Args:
            parameters: name -> shape, constraint, or shape that ends in a constraint.

        Raises:
            TypeError: if one is neither.
            ValueError: if there are none, a shape is empty or does not fit the constraint, or no bijection maps the
                real numbers to the constraint, as for whole numbers.
        """
        if not parameters:
            raise ValueError("`parameters` must name at least one; got none. Write Parameters(mu=(), theta=(8,)).")
        self._parameters = {name: _parameter(name, requested) for name, requested in parameters.items()}
        free = {
            name: tuple(parameter.transform.inverse_shape(parameter.shape))
            for name, parameter in self._parameters.items()
        }
        self.layout = Layout(free)

    @property
    def names(self) -> tuple[str, ...]:
        """Names, in the order of the vector."""
        return self.layout.names

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape on the parameter's own scale."""
        return {name: parameter.shape for name, parameter in self._parameters.items()}

    def described(self) -> dict[str, str]:
        """Return name -> shape and constraint, in words."""
        return {
            name: f"{parameter.constraint} of shape {parameter.shape}" for name, parameter in self._parameters.items()
        }

    def constrained(self, weights: Tensor) -> dict[str, Tensor]:
        """Return the parameters (..., *shape) on their own scale, by name, from free vectors (..., D)."""
        free = self.layout.split(weights)
        return {name: parameter.transform(free[name]) for name, parameter in self._parameters.items()}

    def log_jacobian(self, weights: Tensor, named: Mapping[str, Tensor]) -> Tensor:
        """Return log |det d(parameters)/d(weights)|, (...), in nats.

        `weights` (..., D) have no constraints, and `named` is `constrained(weights)`.
        """
        total, lead = weights.new_zeros(weights.shape[:-1]), weights.shape[:-1]
        for name, free in self.layout.split(weights).items():
            log_jacobian = self._parameters[name].transform.log_abs_det_jacobian(free, named[name])
            total = total + log_jacobian.reshape(*lead, -1).sum(-1)
        return total

    def unconstrained(self, values: Mapping[str, Any]) -> Tensor:
        """Return the vector of parameters given on their own scale: the inverse of `constrained`.

        Args:
            values: name -> numbers of the parameter's shape, or with one more axis in front, one entry per chain.

        Returns:
            Float64 tensor (D,), or (chains, D).

        Raises:
            TypeError: if these are not numbers by name.
            ValueError: if a name, a shape or a number of chains does not fit, or a value lies outside its constraint.
        """
        if not isinstance(values, Mapping):
            raise TypeError(f"`start_MD` must be a mapping from names to numbers; got {seen(values)}.")
        if set(values) != set(self.names):
            raise ValueError(f"`start_MD` must name {', '.join(self.names)}; got {', '.join(map(str, values))}.")
        free, chains = {}, set()
        for name, (shape, constraint, transform) in self._parameters.items():
            value = as_numbers(name, values[name])
            lead = tuple(value.shape[: max(0, value.ndim - len(shape))])
            if (*lead, *shape) != tuple(value.shape) or len(lead) > 1:
                raise ValueError(
                    f"`{name}` must start at numbers of shape {shape}, or at one such for each chain; got shape "
                    f"{tuple(value.shape)}."
                )
            if not (torch.isfinite(value).all() and constraint.check(value).all()):
                raise ValueError(f"`{name}` must start at finite numbers within {constraint}; got {seen(value)}.")
            chains |= {*lead}
            free[name] = transform.inv(value)
        if len(chains) > 1:
            raise ValueError(f"`start_MD` must be for one number of chains; got {', '.join(map(str, sorted(chains)))}.")
        return self.layout.join({n: free[n].expand((*chains, *s)) for n, s in self.layout.shapes.items()})


def _parameter(name: str, requested: Any) -> _Parameter:
    """Return a parameter from its shape, its constraint, or both; errors as of `Parameters`."""
    parts = tuple(requested) if isinstance(requested, tuple | list) else (requested,)
    restricted = bool(parts) and isinstance(parts[-1], constraints.Constraint)
    constraint, shape = (parts[-1], parts[:-1]) if restricted else (constraints.real, parts)
    if not all(is_whole(length) for length in shape):
        raise TypeError(
            f"`{name}` must be a shape such as () or (8,), a constraint such as constraints.positive, or a shape that "
            f"ends in one, (3, constraints.simplex); got {seen(requested)}."
        )
    shape = tuple(map(int, shape))
    if min(shape, default=1) < 1:
        raise ValueError(f"`{name}` must have axes of length 1 or more; got shape {shape}.")
    try:
        transform: Any = biject_to(constraint)
        unconstrained = torch.zeros(transform.inverse_shape(shape), dtype=torch.float64)
        value = transform(unconstrained)
        log_jacobian = transform.log_abs_det_jacobian(unconstrained, value)
        fits = value.shape == shape and bool(constraint.check(value).all() and torch.isfinite(log_jacobian).all())
    except (NotImplementedError, ValueError, RuntimeError, IndexError) as error:
        raise ValueError(f"`{name}`: no bijection leads to {constraint} in shape {shape}{_why(error)}.") from error
    if not fits or not math.prod(unconstrained.shape):
        raise ValueError(f"`{name}` must have a shape and bounds that fit {constraint}; got shape {shape}.")
    return _Parameter(shape, constraint, transform)


def _why(error: Exception) -> str:
    """Return the first line of an error after a colon; an empty string if the error has no text."""
    line = (str(error).splitlines() or [""])[0].rstrip(".: ")
    return f": {line}" if line else ""
