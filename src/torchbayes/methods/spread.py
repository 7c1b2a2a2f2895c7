"""Whether standard deviations that a fit was to find are still those it began with."""

from __future__ import annotations

import math

from torch import Tensor

_FACTOR = 1.25
_SHARE = 0.9  # of the weights
_FEW = 20  # weights, of which so many may be right by chance


def unmoved(scale_MD: Tensor, initial: float) -> list[str]:
    """Return a problem, as one clause, where nine weights in ten have the standard deviation that a fit began with.

    To within a factor of 1.25: the spread is then what `initial_scale` says, and not what the data do.

    Args:
        scale_MD: standard deviations that were found.
        initial: that of every weight at first.
    """
    if scale_MD.shape[1] < _FEW:
        return []
    near_M = ((scale_MD.log() - math.log(initial)).abs() < math.log(_FACTOR)).double().mean(1)
    bad = (near_M > _SHARE).nonzero()[:, 0].tolist()
    if not bad:
        return []
    return [
        f"{float(near_M[bad[0]]):.0%} of the weights of member {bad[0]} still have about the standard deviation "
        f"{initial:g} that they began with, so that the spread is that of `initial_scale` and not of the data (train "
        f"longer, or raise the learning rate)"
    ]
