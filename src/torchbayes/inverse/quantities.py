"""Quantities: the network of an inverse problem, which gives at each row what one sensor sees there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import (
    is_batchedtensor,  # no public function says whether a tensor differs between rows of vmap
)

from torchbayes.checks import as_numbers, check_name, seen
from torchbayes.inverse.coefficients import Coefficient, Numbers
from torchbayes.inverse.derivatives import Field, Function, zero_orders
from torchbayes.model.network import Network
from torchbayes.posteriors.problems import warn_of

Quantity = Callable[[Function, Tensor, Mapping[str, Any]], Tensor]
"""Solution u, points (B, d) and coefficients by name -> values (B,) or (B, K); row b depends on point b alone."""


class Quantities(nn.Module):
    """The network of an inverse problem: at each row one quantity, and what makes its noise.

    Its inputs are points (B, d), and for each the number of a quantity and of a column of its values, (B, 2). Its
    outputs (B, 2) are those of `likelihoods.HeteroscedasticGaussian`.
    """

    def __init__(
        self,
        network: nn.Module,
        quantities: Mapping[str, Quantity],
        *,
        unknown: Mapping[str, Coefficient],
        fields: Mapping[str, nn.Module],
        noise: Mapping[str, float | Coefficient],
    ) -> None:
        super().__init__()
        self.network, self.quantities = network, dict(quantities)
        self.coefficients, self.functions = Numbers(unknown), nn.ModuleDict(fields)
        self.scales = {name: scale for name, scale in noise.items() if isinstance(scale, float)}
        self.noise = Numbers({name: scale for name, scale in noise.items() if isinstance(scale, Coefficient)})
        like = next(chain(network.parameters(), network.buffers()), torch.zeros(()))
        for numbers in (self.coefficients, self.noise):
            numbers.to(like)

    def weighted(self) -> bool:
        """Return whether a network has weights, beside the numbers."""
        return any(weight.requires_grad for weight in (*self.network.parameters(), *self.functions.parameters()))

    def known(self) -> dict[str, Any]:
        """Return the coefficients by name: numbers on their own scale, and functions of points."""
        return {**self.coefficients.values(), **{name: Field(module) for name, module in self.functions.items()}}

    def values(self, name: str, points: Tensor) -> Tensor:
        """Return a quantity at points, (B, K)."""
        values = self.quantities[name](Field(self.network), points, self.known())
        return values.unsqueeze(-1) if values.ndim == 1 else values

    def forward(self, points: Tensor, quantity: Tensor) -> Tensor:
        """Return value and raw variance of each row, (B, 2)."""
        which, column = quantity.unbind(-1)
        evaluate = self._each if is_batchedtensor(which) else self._sorted
        values_B = evaluate(points, which, column)
        return torch.stack([values_B, self._raw(values_B)[which]], dim=-1)

    def _sorted(self, points: Tensor, which: Tensor, column: Tensor) -> Tensor:
        """Return the value of each row, (B,), from rows of the same quantity together."""
        order = which.argsort(stable=True)
        counts = which.bincount(minlength=len(self.quantities)).tolist()
        groups = zip(self.quantities, points[order].split(counts), column[order].split(counts), strict=True)
        values = [_column(self.values(name, some), columns) for name, some, columns in groups if len(some)]
        return torch.cat(values)[order.argsort()]

    def _each(self, points: Tensor, which: Tensor, column: Tensor) -> Tensor:
        """Return the same where every draw of a `vmap` has rows of its own: all quantities of all rows."""
        values = [_column(self.values(name, points), column) for name in self.quantities]
        return torch.stack(values, -1).gather(-1, which.unsqueeze(-1)).squeeze(-1)

    def _raw(self, like: Tensor) -> Tensor:
        """Return r with softplus(r) = σ² for every quantity; 0 where nothing is said of its noise."""
        learned = self.noise.values()
        scales = [learned.get(name, self.scales.get(name, 1.0)) for name in self.quantities]
        variances = torch.stack([
            torch.as_tensor(each, dtype=like.dtype, device=like.device) for each in scales
        ]).square()
        return variances + (-torch.expm1(-variances)).log()


def _column(values: Tensor, column: Tensor) -> Tensor:
    """Return one column of each row; the last where there is none of that number, which another quantity has."""
    return values.gather(-1, column.clamp(max=values.shape[-1] - 1).unsqueeze(-1)).squeeze(-1)


def inputs_at(module: Quantities, name: str, points: Tensor, *, column: int) -> dict[str, Tensor]:
    """Return the inputs of the network for a column of a quantity at points (n, d)."""
    number = [*module.quantities].index(name)
    quantity = torch.tensor([number, column], device=points.device).expand(len(points), 2)
    return {"points": points, "quantity": quantity}


def as_points(network: Network, points: Any, name: str) -> Tensor:
    """Return points (n, d) on the network's device, in its dtype.

    It raises TypeError if they are no numbers, ValueError if they have another shape, or are not finite.
    """
    points = as_numbers(name, points)
    points = points.unsqueeze(-1) if points.ndim == 1 else points
    if points.ndim != 2 or not points.numel():
        raise ValueError(f"`{name}` must have points of shape (n, d), at least one; got {tuple(points.shape)}.")
    if not points.isfinite().all():
        raise ValueError(f"`{name}` must have finite points; got NaN or infinite ones.")
    return points.to(network.device, network.dtype)


def check_noisy(module: Quantities, name: Any) -> None:
    """Raise ValueError if there is no quantity of this name, or nothing is said of its noise."""
    check_name("quantity", name, module.quantities)
    if name not in module.scales and name not in module.noise.beliefs:
        raise ValueError(f"`noise` says nothing of {name!r}, so it is not observed. Give Problem its noise.")


@torch.no_grad()
def width_of(module: Quantities, name: Any, points: Tensor) -> int:
    """Return K, the columns of a quantity, after a trial at points (n, d).

    It raises ValueError if there is no such quantity, it cannot be computed, or its values have another shape, are not
    finite or mix rows. It warns of a derivative that is zero at all points.
    """
    check_name("quantity", name, module.quantities)
    try:
        with zero_orders() as zeros:
            values, first = module.values(name, points), module.values(name, points[:1])
    except (RuntimeError, TypeError, LookupError, AttributeError) as error:
        known = ", ".join(module.known()) or "none"
        raise ValueError(
            f"quantity {name!r} cannot be computed at points of shape {tuple(points.shape)}, with the coefficients "
            f"{known}: {type(error).__name__}: {error}. It must be a function of u, points and coefficients by name."
        ) from error
    if values.ndim != 2 or len(values) != len(points):
        raise ValueError(
            f"quantity {name!r} must return values (B,) or (B, K) for B = {len(points)} points; got shape "
            f"{tuple(values.shape)}."
        )
    if not values.isfinite().all():
        raise ValueError(f"quantity {name!r} is not finite at the points, with the network as it was given.")
    if first.shape != values[:1].shape or not torch.allclose(first, values[:1], rtol=1e-3, atol=1e-5):
        raise ValueError(f"quantity {name!r} mixes its rows: row b must depend on point b alone.")
    if zeros:
        why = "a derivative that it takes is zero at all points, as that of ReLU networks is beyond the first order"
        warn_of([f"{why} (use a smooth activation, such as nn.Tanh)"], f"quantity {name!r}")
    return values.shape[1]


def observed(
    module: Quantities, name: Any, pair: Any, *, network: Network
) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """Yield inputs and targets of each column of a quantity from (points, values); errors as of `Problem.rows`."""
    check_noisy(module, name)
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise TypeError(f"`observations` of {name!r} must be a pair (points, values); got {seen(pair)}.")
    points = as_points(network, pair[0], f"observations[{name!r}]")
    width = width_of(module, name, points)
    values = given = as_numbers(f"observations[{name!r}]", pair[1]).to(points.device)
    values = values.unsqueeze(-1) if values.ndim == 1 else values
    if values.ndim and values.shape != (len(points), width):
        raise ValueError(
            f"`observations` of {name!r} must have values of shape ({len(points)}, {width}), as many as points and "
            f"columns; got {tuple(given.shape)}."
        )
    if values.isinf().any():
        raise ValueError(f"`observations` of {name!r} must be finite, or NaN where missing; got infinite ones.")
    for column, of_column in enumerate(values.expand(len(points), width).unbind(1)):
        there = ~of_column.isnan()
        yield inputs_at(module, name, points[there], column=column), of_column[there]
