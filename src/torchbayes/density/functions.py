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
    """Return the density of a function of vectors; one that gives a `Value`, gradient included, is a density itself.

    The function is first called with the vector (D,) at which the first chain starts. If it returns one number, a
    tensor of shape (), it is a function of one vector. If not, it must take the vectors of all chains, (M, D), and
    return one number for each, (M,).

    Args:
        function: the log density.
        start_MD: where the chains start.

    Raises:
        TypeError: if it returns anything but floating tensors.
        SettingError: if it returns another shape, or does not depend on its argument.
    """
    one, error = _called(function, start_MD[0])
    if error is None and not isinstance(one, Value) and _shape(one) == ():
        single = RowByRow(lambda named: function(named["w"]))
        return FunctionDensity(lambda weights_MD: single({"w": weights_MD}))
    every, second = _called(function, start_MD)
    if isinstance(every, Value):
        return function  # type: ignore[return-value]
    if second is None and _shape(every) == tuple(start_MD.shape[:1]):
        return FunctionDensity(function)
    (chains, size), saw = start_MD.shape, (_said(one, error), _said(every, second))
    raise SettingError(
        f"`density` must return one number, shape (), for a vector of shape ({size},), or shape ({chains},) for "
        f"those of all chains, ({chains}, {size}); for the vector {saw[0]}, and for all chains {saw[1]}. Sum over the "
        f"last axis of the vector, and start where the density can be computed."
    ) from (error or second)


def density_of_named(function: Callable[..., Tensor], parameters: Parameters) -> FunctionDensity:
    """Return the density, on the vector without constraints, of a function of named parameters.

    Args:
        function: called with the parameters of one chain by keyword, on their own scale and in their own shapes;
            returns their log density, one number. The log-Jacobian of the constraints is added.
        parameters: names, shapes and constraints.

    Raises:
        TypeError: if the function does not take these names.
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
    """A function of the tensors of one chain, run for all chains: by `torch.func.vmap` where it can be, else in turn.

    Which of them is decided by the first call. vmap cannot run what looks at numbers: `if tau > 1`, or `.item()`.
    """

    def __init__(self, single: Callable[[Named], Tensor]) -> None:
        """Wrap a function.

        Args:
            single: tensors by name -> one number, a tensor of shape ().
        """
        self._single, self._run = single, None

    def __call__(self, named_M: Named) -> Tensor:
        """Return the values at all chains, (M,).

        Args:
            named_M: tensors by name, (M, ...).

        Raises:
            TypeError: at the first call, if the function returns no floating tensor.
            SettingError: likewise, if it returns anything but one number, or one that does not depend on a tensor.
        """
        if self._run is None:
            first = {name: tensor[0].detach().clone().requires_grad_() for name, tensor in named_M.items()}
            _check(self._single, first)
            self._run = self._together if self._can_be_together(first) else self._in_turn
        return self._run(named_M)

    def _together(self, named_M: Named) -> Tensor:
        try:
            return torch.func.vmap(self._single)(dict(named_M))
        except RuntimeError:  # raised by the function, or by vmap as that looked at numbers to word its own exception
            return self._in_turn(named_M)

    def _in_turn(self, named_M: Named) -> Tensor:
        rows = zip(*named_M.values(), strict=True)
        return torch.stack([self._single(dict(zip(named_M, row, strict=True))) for row in rows])

    def _can_be_together(self, first: Named) -> bool:
        """Return whether vmap, and autograd through it, run where a chain is known to be computed."""
        try:
            twice = {name: torch.stack([tensor, tensor]) for name, tensor in first.items()}
            torch.autograd.grad(torch.func.vmap(self._single)(twice).sum(), list(first.values()))
        except Exception:  # whatever vmap does not support; the function itself has just been called
            return False
        return True


def _check(single: Callable[[Named], Tensor], first: Named) -> None:
    """Check what a function returns for one chain.

    Raises:
        TypeError: as of `RowByRow`.
        SettingError: likewise.
    """
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
    """Return the shape of a value.

    Raises:
        TypeError: if it is not a floating tensor.
    """
    check_value(value)
    return tuple(value.shape)


def _said(value: Any, error: Exception | None) -> str:
    """Return in words what a call gave."""
    if error is None:
        return f"it returned shape {_shape(value)}"
    first = (str(error).splitlines() or [""])[0].rstrip(".: ")
    return f"it raised {type(error).__name__}: {first}"
