"""Plain functions as densities: of one vector, of all chains at once, or of named parameters with constraints."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchbayes.checks import SettingError
from torchbayes.density.dynamics import Density, FunctionDensity, Value, check_value
from torchbayes.model.parameters import Parameters
from torchbayes.native.process import differentiable

Named = Mapping[str, Tensor]


def density_of(function: Callable[[Tensor], Any], start_MD: Tensor) -> Density:
    """Return the density of a function of vectors; a function that returns a `Value`, gradient included, is one itself.

    The function is first called with the vector (D,) at which the first chain starts. If it returns one number, a
    tensor of shape (), it is a function of one vector. Otherwise it must take the vectors of all chains, (M, D), and
    return one number for each, (M,). Raises a TypeError if it returns anything but floating tensors; a SettingError
    if it returns another shape, or does not depend on its argument.
    """
    of_first, error = _called(function, start_MD[0])
    if error is None and not isinstance(of_first, Value) and _shape(of_first) == ():
        single = RowByRow(lambda named: function(named["w"]))
        return FunctionDensity(lambda weights_MD: single({"w": weights_MD}))
    of_all, second = _called(function, start_MD)
    if isinstance(of_all, Value):
        return function  # type: ignore[return-value]
    if second is None and _shape(of_all) == tuple(start_MD.shape[:1]):
        return FunctionDensity(function)
    (chains, size), saw = start_MD.shape, (_said(of_first, error), _said(of_all, second))
    raise SettingError(
        f"`density` must return one number, shape (), for a vector of shape ({size},), or shape ({chains},) for "
        f"those of all chains, ({chains}, {size}); for the vector {saw[0]}, and for all chains {saw[1]}. Sum over the "
        f"last axis of the vector, and start where the density can be computed."
    ) from (error or second)


def density_of_named(function: Callable[..., Tensor], parameters: Parameters) -> FunctionDensity:
    """Return the density, on the unconstrained vector, of a function of named parameters.

    The function gets the parameters of one chain by keyword, on their own scale and in their own shapes, and returns
    their log density, one number. The log-Jacobian of the constraints is added.
    """
    try:
        inspect.signature(function).bind(**dict.fromkeys(parameters.names))
    except TypeError as error:
        raise TypeError(
            f"`density` must take the parameters by name, {', '.join(parameters.names)}; {error}. Give both the same "
            f"names."
        ) from None
    single = RowByRow(lambda named: function(**named))

    def log_density(weights_MD: Tensor) -> Tensor:
        named = parameters.constrained(weights_MD)
        return single(named).double() + parameters.log_jacobian(weights_MD, named)

    return FunctionDensity(log_density)


class RowByRow:
    """A function of the tensors of one chain, run for all chains: by `torch.func.vmap` where possible, else in turn.

    The first call decides which. vmap cannot run code that looks at numbers: `if tau > 1`, or `.item()`.
    """

    def __init__(self, single: Callable[[Named], Tensor]) -> None:
        """Wrap a function, tensors by name -> one number, a tensor of shape ()."""
        self._single, self._run = single, None

    def __call__(self, named_M: Named) -> Tensor:
        """Return the values at all chains, (M,), for tensors by name, (M, ...).

        The first call raises a TypeError if the function returns no floating tensor; a SettingError if it returns
        anything but one number, or one that does not depend on a tensor.
        """
        if self._run is None:
            first = {name: tensor[0].detach().clone().requires_grad_() for name, tensor in named_M.items()}
            _check(self._single, first)
            self._run = self._together if self._can_be_together(first) else self._in_turn
        return self._run(named_M)

    def _together(self, named_M: Named) -> Tensor:
        try:
            return torch.func.vmap(self._single)(dict(named_M))
        except RuntimeError:  # from the function, or from vmap where the function put numbers into its own message
            return self._in_turn(named_M)

    def _in_turn(self, named_M: Named) -> Tensor:
        rows = zip(*named_M.values(), strict=True)
        return torch.stack([self._single(dict(zip(named_M, row, strict=True))) for row in rows])

    def _can_be_together(self, first: Named) -> bool:
        """Return whether vmap, and autograd through it, run at a chain where the function is known to run."""
        try:
            twice = {name: torch.stack([tensor, tensor]) for name, tensor in first.items()}
            torch.autograd.grad(torch.func.vmap(self._single)(twice).sum(), list(first.values()))
        except Exception:  # whatever vmap does not support; the function itself has just been called
            return False
        return True


def _check(single: Callable[[Named], Tensor], first: Named) -> None:
    """Check what a function returns for one chain; errors are those of `RowByRow`."""
    value = single(first)
    if _shape(value) != ():
        raise SettingError(
            f"the log density must return one number, a tensor of shape (), for one chain; got shape {_shape(value)}. "
            f"Sum over all axes."
        )
    tensors = list(first.values())
    gradients: Sequence[Any] = [None] * len(tensors)
    if value.requires_grad:
        gradients = torch.autograd.grad(value, tensors, allow_unused=True)
    flat = [name for name, gradient in zip(first, gradients, strict=True) if gradient is None]
    if flat:
        raise SettingError(
            f"the log density has no gradient in `{flat[0]}`: PyTorch does not see how it depends on it. Compute it by "
            f"operations of torch, outside of inference_mode and without .item(), .detach() or numpy; to a constant, "
            f"add 0 * {flat[0]}.sum()."
        )


def _called(function: Callable[[Tensor], Any], weights: Tensor) -> tuple[Any, Exception | None]:
    """Return what a function returns, or the exception that it raises."""
    with differentiable():
        try:
            return function(weights.detach().clone().requires_grad_()), None
        except Exception as error:
            return None, error


def _shape(value: Any) -> tuple[int, ...]:
    """Return the shape of a value, which must be a floating tensor."""
    check_value(value)
    return tuple(value.shape)


def _said(value: Any, error: Exception | None) -> str:
    """Return the outcome of a call in words."""
    if error is None:
        return f"it returned shape {_shape(value)}"
    first = (str(error).splitlines() or [""])[0].rstrip(".: ")
    return f"it raised {type(error).__name__}: {first}"
