"""Central intervals of the model average: exact where its distribution function is known, else by samples."""

from __future__ import annotations

from torch import Tensor

from torchbayes.metrics import central_level
from torchbayes.predictive.average import Predictive

_SAMPLES = 2000


def central_interval(predictive: Predictive, outside: float = 0.05) -> tuple[Tensor, Tensor]:
    """Return the ends of the central interval of each number that is predicted.

    Args:
        predictive: of numbers.
        outside: probability that the interval leaves out, half of it on either side.

    Returns:
        The quantiles at `outside` / 2 and 1 - `outside` / 2, each (B, K').
    """
    levels = predictive.outputs_SBK.new_tensor([outside / 2, 1 - outside / 2])
    try:
        low, high = predictive.quantile(levels)
    except NotImplementedError:
        low, high = _samples(predictive).quantile(levels, dim=0)
    return low, high


def levels_reached(predictive: Predictive, targets: Tensor) -> Tensor:
    """Return the level of the smallest central interval that holds each target.

    Args:
        predictive: of numbers.
        targets: (B, K').

    Returns:
        Levels in [0, 1], (B, K'), as `torchbayes.metrics.central_level` defines them.
    """
    try:
        below = up_to = predictive.distribution.cdf(targets).mean(0)
    except NotImplementedError:
        samples = _samples(predictive)
        below, up_to = (compared.to(targets.dtype).mean(0) for compared in (samples < targets, samples <= targets))
    return central_level(below.clamp(0, 1), up_to.clamp(0, 1))


def _samples(predictive: Predictive) -> Tensor:
    """Return as many samples of each draw, about 2,000 in all or more, (C, B, K')."""
    return predictive.sample(-(-_SAMPLES // predictive.draws) * predictive.draws)
