"""Whether standard deviations that a fit should learn are still their initial values."""

from __future__ import annotations

import math

from torch import Tensor

from torchbayes.health.ending import Case, first

_FACTOR = 1.25
_SHARE = 0.9  # of all weights
_UNLEARNED = 0.01  # nats: mean divergence of a weight from its prior below which nothing was learned
_FEW = 20  # so few weights may be right by chance


def unmoved(scale_MD: Tensor, initial: float) -> list[str]:
    """Return a problem, as one clause, if nine weights in ten still have the initial standard deviation of the fit.

    To within a factor of 1.25: the spread then comes from `initial_scale`, not from the data.
    """
    if scale_MD.shape[1] < _FEW:
        return []
    share_M = ((scale_MD.log() - math.log(initial)).abs() < math.log(_FACTOR)).double().mean(1)
    return [
        f"{float(share_M[m]):.0%} of the weights of member {m} still have about the standard deviation "
        f"{initial:g} that they began with, so that the spread is that of `initial_scale` and not of the data (train "
        f"longer, or raise the learning rate)"
        for m in first(share_M > _SHARE)
    ]


def as_the_prior(case: Case) -> list[str]:
    """Return the problem of members whose weights are distributed as under the prior."""
    columns, size = case.history.columns(), case.posterior.mean_MD.shape[-1]
    if "kl" not in columns or not columns["kl"].numel():
        return []
    kl_M = columns["kl"][:, -1] / size
    return [
        f"the posterior of member {m} is the prior: their divergence is {float(kl_M[m]):.2g} nats a weight, "
        f"so nothing was learned (give a narrower prior, under which fewer weights are worth their noise, or more data)"
        for m in first(kl_M.abs() < _UNLEARNED)
    ]
