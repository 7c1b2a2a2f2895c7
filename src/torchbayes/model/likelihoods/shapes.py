"""Shapes of targets and outputs, and the checks that likelihoods share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from torchbayes.model.likelihoods.protocol import NONE, Likelihood, Parameters

_ROUNDING = 1e-12  # standard deviations of equal numbers, relative to their size


def per_datum(elementwise: Tensor, targets: Tensor, event: int = 0) -> Tensor:
    """Return the sum over the axes of the targets after the batch axis; the last `event` ones are summed already."""
    extra = targets.ndim - 1 - event
    return elementwise.flatten(-extra).sum(-1) if extra > 0 else elementwise


def like(targets: Tensor, width: int) -> Tensor:
    """Return targets (B,) with the trailing axis of one-column outputs, so that they do not broadcast to (B, B)."""
    return targets.unsqueeze(-1) if targets.ndim == 1 and width == 1 else targets


def aligned(targets: Tensor, distribution: Distribution, ndim: int) -> Tensor:
    """Return targets (B,) with a trailing axis if the distribution kept that of its one-column outputs."""
    batch = distribution.batch_shape
    return like(targets, batch[-1]) if len(batch) == ndim and not distribution.event_shape else targets


def spread(targets: Tensor, weights_N: Tensor | None = None, *, columns: int = 1) -> tuple[float, ...]:
    """Return the standard deviation of targets (N, ...), of each column of the last axis or of all.

    With `columns` 1 it is one number, the root mean square of all columns. If all values of a column are the same, it
    is their size, and 1 if they are zero. Values that are not finite do not count; `weights_N` say how often each row
    counts.
    """
    values = targets.double().reshape(len(targets), -1, targets.shape[-1] if targets.ndim > 1 else 1)
    weights = torch.ones_like(values) if weights_N is None else weights_N.double().view(-1, 1, 1).expand_as(values)
    weights = torch.where(torch.isfinite(values), weights, 0.0)
    values = torch.where(torch.isfinite(values), values, 0.0)
    largest = values.abs().max().clamp_min(torch.finfo(torch.float64).tiny)  # its square may be infinite
    values = values / largest
    total_K = weights.sum((0, 1)).clamp_min(torch.finfo(torch.float64).tiny)
    mean_K = (weights * values).sum((0, 1)) / total_K
    squares_K, sizes_K = ((weights * v**2).sum((0, 1)) / total_K for v in (values - mean_K, values))
    squares, sizes = (t if columns > 1 else t.mean().unsqueeze(0) for t in (squares_K, sizes_K))
    constant = squares <= _ROUNDING**2 * sizes
    deviations = largest * torch.where(constant, sizes, squares).sqrt()
    return tuple(torch.where(sizes > 0, deviations, 1.0).clamp(1e-140, 1e140).tolist())


def columns_of(scale: Tensor) -> Tensor:
    """Return one column per output, with this scale at its place: (B, ...) -> (K, B, ...), K all outputs of a row."""
    rows = scale.flatten(1)
    return torch.diag_embed(rows).transpose(0, 1).unflatten(-1, scale.shape[1:])


def check_tensor(targets: Any) -> None:
    """Raise TypeError if targets are not one tensor."""
    if not isinstance(targets, Tensor):
        raise TypeError(
            f"targets must be one tensor; got {type(targets).__name__}. For (targets, weights of the rows) use "
            f"likelihoods.Weighted(...), for other tuples and dicts a likelihood of your own."
        )


def check_shape(targets: Any, shape: torch.Size) -> None:
    """Raise ValueError if targets do not have the shape of the network's outputs."""
    check_tensor(targets)
    if like(targets, shape[-1]).shape != shape:
        raise ValueError(
            f"targets must have shape {tuple(shape)} to match the network's outputs; got {tuple(targets.shape)}."
        )


class Regression(Likelihood):
    """A likelihood of real targets, each element of which has a distribution of its own."""

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Parameters = NONE) -> Tensor:
        """Return Σ_k log p(y_k | f), the log densities under `distribution`, (..., B), in nats."""
        distribution = self.distribution(outputs, parameters)
        targets = like(targets, distribution.batch_shape[-1])
        return per_datum(distribution.log_prob(targets), targets)

    def check(self, outputs: Tensor, targets: Any) -> None:
        """Check shape, dtype and finiteness of the targets."""
        check_shape(targets, outputs.shape)
        if not targets.is_floating_point():
            raise TypeError(
                f"targets of a regression must be floating point; got {targets.dtype}. Use targets.float()."
            )
        if not torch.isfinite(targets).all():
            bad = int((~torch.isfinite(targets)).sum())
            raise ValueError(
                f"targets must be finite; {bad} of {targets.numel()} are NaN or infinite. Remove those rows."
            )
