"""Derivatives of a function of points in the points, row by row; they can be differentiated in weights.

For stacks of linear layers and tanh they are found by propagating Taylor coefficients along a direction v, in one pass
for all orders. With z(t) = Σ_k z_k tᵏ at the inputs of a tanh, h = tanh z and g = 1 − h² follow from h′ = g z′:

    k h_k = Σ_{j=1..k} j z_j g_{k−j},    g_k = −Σ_{j=0..k} h_j h_{k−j}

(Griewank and Walther 2008, section 13.2), and the derivative of order k is k! times the coefficient. A linear layer
acts on each coefficient. Any other function is differentiated by nested forward mode (`torch.func.jvp`), whose cost
doubles with every order, or by reverse mode where torch has no forward mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import jvp, vjp, vmap

from torchbayes.checks import check_counts, check_function, check_tensor, is_whole, seen
from torchbayes.native.process import outside_inference, quiet_vmap, usable

Function = Callable[[Tensor], Tensor]
"""Points (B, d) -> values (B, K), where row b is a function of point b alone."""

_zeros: ContextVar[list[int] | None] = ContextVar("zeros", default=None)


class Field:
    """A network as a function of points (B, d) -> (B, K)."""

    def __init__(self, network: nn.Module) -> None:
        """Take a network, which keeps its weights."""
        self._network = network

    def __call__(self, points: Tensor) -> Tensor:
        """Return the network's outputs.

        Its layers never see plain rows: a layer that is called at some rows, and differentiated in its inputs at
        others, has no curvature of its own form, and its inputs are not those of the rows of a batch.
        """
        if self.is_plain:
            return self.series(points, torch.zeros_like(points), 0)[0]
        with quiet_vmap():
            return vmap(self._network, randomness="different")(points.unsqueeze(0)).squeeze(0)

    @property
    def is_plain(self) -> bool:
        """Whether the network is a stack of linear layers and tanh alone."""
        layers = self._network
        return type(layers) is nn.Sequential and all(
            type(layer) in {nn.Linear, nn.Tanh} and not layer._forward_hooks and not layer._forward_pre_hooks
            for layer in layers
        )

    def series(self, points: Tensor, direction: Tensor, order: int) -> list[Tensor]:
        """Return the Taylor coefficients along a direction up to an order, each (B, K), of a plain network."""
        coefficients = [points, direction][: order + 1]
        for layer in self._network.children():
            if isinstance(layer, nn.Linear):
                products = F.linear(torch.cat(coefficients), layer.weight).split(len(points))
                first = products[0] if layer.bias is None else products[0] + layer.bias
                coefficients = [first, *products[1:]]
            else:
                coefficients = _tanh(coefficients, order)
        missing = order + 1 - len(coefficients)  # a network without tanh is linear
        return [*coefficients, *[torch.zeros_like(coefficients[0])] * missing]


def derivatives(function: Function, points: Tensor, *, order: int = 1, axis: int = 0) -> tuple[Tensor, ...]:
    """Return a function and its derivatives in one coordinate: f, ∂f/∂x_a, ..., ∂ⁿf/∂x_aⁿ.

    For derivatives in several coordinates, differentiate the function `lambda x: derivatives(f, x, axis=1)[1]`.

    Args:
        function: points (B, d) -> (B, K) or (B,), where row b depends on point b alone.
        points: tensor (B, d) of floating-point numbers.
        order: n, the highest order.
        axis: a, the coordinate.

    Returns:
        n + 1 tensors of the shape of the function's values.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if the order is not positive, or there is no such coordinate.
    """
    _check(function, points)
    check_counts(order=order)
    if not is_whole(axis) or not -points.shape[1] <= axis < points.shape[1]:
        raise ValueError(f"`axis` must be one of the {points.shape[1]} coordinates, from 0; got {seen(axis)}.")
    direction = torch.zeros_like(points)
    direction[:, axis] = 1
    if isinstance(function, Field) and function.is_plain:
        series = function.series(points, direction, order)
        values = tuple(c * math.factorial(k) if k > 1 else c for k, c in enumerate(series))
    else:
        values = _nested(function, direction, order)(points)
    if (zeros := _zeros.get()) is not None and bool((values[0] != values[0][:1]).any()):
        zeros += [k for k, derivative in enumerate(values) if k and not bool(derivative.any())]
    return values


def gradient(function: Function, points: Tensor) -> Tensor:
    """Return the first derivatives of a function in all coordinates.

    Args:
        function: points (B, d) -> (B, K) or (B,), where row b depends on point b alone.
        points: tensor (B, d) of floating-point numbers.

    Returns:
        Tensor (B, K, d), or (B, d).

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if the points have another number of axes.
    """
    _check(function, points)
    return torch.stack([derivatives(function, points, axis=axis)[1] for axis in range(points.shape[1])], dim=-1)


def laplacian(function: Function, points: Tensor) -> Tensor:
    """Return Σ_a ∂²f/∂x_a², the sum over all coordinates.

    Where one coordinate is time, add the second `derivatives` of the others instead.

    Args:
        function: points (B, d) -> (B, K) or (B,), where row b depends on point b alone.
        points: tensor (B, d) of floating-point numbers.

    Returns:
        Tensor of the shape of the function's values.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if the points have another number of axes.
    """
    _check(function, points)
    first, *others = (derivatives(function, points, order=2, axis=axis)[2] for axis in range(points.shape[1]))
    return sum(others, first)


@contextmanager
def zero_orders() -> Iterator[list[int]]:
    """Within it, list the orders of derivatives that are zero at all points of a function that is not constant there.

    They are what a network of piecewise linear activations, such as ReLU, has in the place of curvature.
    """
    orders: list[int] = []
    token = _zeros.set(orders)
    try:
        yield orders
    finally:
        _zeros.reset(token)


def _check(function: Any, points: Any) -> None:
    """Raise TypeError if these are no function and no tensor of real numbers, ValueError if points are not (B, d)."""
    check_function("a function of points, such as the `u` of a quantity", function=function)
    check_tensor("B", "d", points=points)
    if not points.is_floating_point():
        raise TypeError(f"`points` must be floating-point numbers; got {points.dtype}. Use .float().")
    if not points.shape[1]:
        raise ValueError(f"`points` must have at least one coordinate; got shape {tuple(points.shape)}.")


def _tanh(z: Sequence[Tensor], order: int) -> list[Tensor]:
    """Return the Taylor coefficients of tanh z up to an order; those of z that are left out are zero."""
    h = [z[0].tanh()]
    g = [1 - h[0].square()]
    for k in range(1, order + 1):
        terms = [z[j] * g[k - j] if j == k else z[j] * g[k - j] * (j / k) for j in range(1, min(k + 1, len(z)))]
        h.append(sum(terms[1:], terms[0]))
        if k < order:
            pairs = [h[j] * h[k - j] * (-2 if 2 * j < k else -1) for j in range(k // 2 + 1)]
            g.append(sum(pairs[1:], pairs[0]))
    return h


def _nested(function: Function, direction: Tensor, order: int) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """Return the function points -> values and directional derivatives up to an order, by nested forward mode."""
    if not order:
        return lambda points: (function(points),)
    lower = _nested(function, direction, order - 1)

    def raised(points: Tensor) -> tuple[Tensor, ...]:
        with outside_inference():  # in which torch 2.11 gives zeros
            values, tangents = _pushed(lower, usable(points), usable(direction))
        return (*values, tangents[-1])

    return raised


def _pushed(
    function: Callable[[Tensor], tuple[Tensor, ...]], points: Tensor, direction: Tensor
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return values and their derivatives along a direction.

    Where an operation has no forward mode, as the gradient of SiLU has none, they are found by reverse mode: Jᵀu is
    linear in u, and the transpose of that map is J.
    """
    try:
        pair: Any = jvp(function, (points,), (direction,))
    except NotImplementedError:
        values, pull, *_ = vjp(function, points)
        with torch.enable_grad():
            _, push, *_ = vjp(lambda *u: pull(u)[0], *(torch.zeros_like(value) for value in values))
        return values, push(direction)
    return pair
