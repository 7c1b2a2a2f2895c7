"""Checks shared by the diagnostics, and draws read in blocks of quantities so that memory does not grow with D."""

from collections.abc import Callable

import torch
from torch import Tensor

from torchbayes.checks import check_counts, optional

# Draws in a block. On a CPU the arrays made from a block then stay in cache; an accelerator needs more work at once.
BLOCK_CPU = 2**17
BLOCK_ACCELERATOR = 2**25


def check_draws(draws: Tensor, *, min_draws: int = 4) -> None:
    """Require a non-empty floating tensor (M, S, ...) with S of at least ``min_draws``, without reading it."""
    check_floating("draws", draws)
    shape = tuple(draws.shape)
    if draws.ndim < 2:
        raise ValueError(
            f"`draws` must have the axes chains and draws, shape (M, S, ...); got shape {shape}. "
            "Pass draws.unsqueeze(0) for a single chain."
        )
    if draws.numel() == 0:
        raise ValueError(f"`draws` is empty: shape {shape}. Pass at least one chain and one quantity.")
    if shape[1] < min_draws:
        raise ValueError(
            f"`draws` must hold at least {min_draws} draws per chain; got {shape[1]} in shape {shape}, "
            "read as (chains, draws, ...). Draw more, or move the axis of draws to the second place."
        )


def check_floating(name: str, values: Tensor) -> None:
    """Require a tensor of floating dtype."""
    if not isinstance(values, Tensor):
        raise TypeError(f"`{name}` must be a torch tensor; got {type(values).__name__}. Use torch.as_tensor.")
    if not values.is_floating_point():
        raise TypeError(f"`{name}` must be of a floating dtype; got {values.dtype}. Convert with .float().")


def check_finite(name: str, values: Tensor, where: str = "") -> None:
    """Require values without NaN or infinities; ``where`` is the part of the argument, for the message."""
    # NaN propagates to minimum and maximum, so checking these is enough, and much faster than checking every value.
    if not torch.isfinite(torch.stack(torch.aminmax(values))).all():
        bad = int((~torch.isfinite(values)).sum())
        raise ValueError(
            f"`{name}` holds NaN or infinite values: {bad} of {values.numel()}{where}. "
            "Leave out the chains that diverged."
        )


@torch.no_grad()
def per_quantity(draws: Tensor, statistic: Callable[[Tensor], Tensor], *, chunk_size: int | None) -> Tensor:
    """Apply a statistic to every quantity of draws (M, S, ...), block by block, after checking them.

    The statistic maps contiguous blocks (R, M, S), float32 or float64, which it must not write to, to results (R,
    ...). The result has the trailing shape of the draws, followed by the axes after R. ``chunk_size`` is R; by
    default it is chosen by the size of the cache. A ValueError if a draw is not finite.
    """
    check_draws(draws)
    optional(check_counts, chunk_size=chunk_size)
    quantities = draws.shape[2:]
    draws_MSD = draws.detach().flatten(2) if quantities else draws.detach().unsqueeze(-1)
    num_chains, num_draws, num_quantities = draws_MSD.shape
    budget = BLOCK_CPU if draws.device.type == "cpu" else BLOCK_ACCELERATOR
    step = chunk_size or max(1, budget // (num_chains * num_draws))
    result = torch.empty(0)
    for first in range(0, num_quantities, step):
        last = min(first + step, num_quantities)
        block_RMS = draws_MSD[:, :, first:last].permute(2, 0, 1)
        if block_RMS.dtype not in {torch.float32, torch.float64}:
            block_RMS = block_RMS.float()
        block_RMS = block_RMS.contiguous()
        check_finite("draws", block_RMS, f" for quantities {first} to {last - 1}")
        of_block = statistic(block_RMS)
        if first == 0:
            # One tensor for all: small ones kept from every block would fragment the heap.
            result = of_block.new_empty((num_quantities, *of_block.shape[1:]))
        result[first:last] = of_block
    return result.reshape((*quantities, *result.shape[1:]))
