"""Whether draws from a fitted distribution can be trusted: on the training rows, and among each other.

There is no centre to judge: the middle of a ring is not part of it. Draws represent a member; where a single
network is meant, the best draw does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchbayes.health.constant import best_constant, learned_nothing, num_targets
from torchbayes.health.descent import Descended, log_likelihoods, together
from torchbayes.health.ending import Case, Ending, finite, first
from torchbayes.health.residuals import unexplained
from torchbayes.model.batches.batch import Batch
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.posterior import Posterior

_ROWS, _DRAWS = 512, 8
_WORTHLESS = 1.0  # nats per target
_STILL = 1e-5  # share of the prior's standard deviation


@dataclass(frozen=True, kw_only=True)
class Drawn(Ending):
    """A distribution over weights without a centre, such as a flow."""

    def look(self, case: Case) -> list[str]:
        if problems := finite(case):
            return problems
        posterior, source, members = case.posterior, case.source, case.posterior.members
        batches = source.some(_ROWS)
        posterior = posterior.calibrated(lambda: (batch.inputs for batch in batches))
        weights_SMD = torch.stack([posterior.sample(members, seed=seed) for seed in range(_DRAWS)])
        if not bool(torch.isfinite(weights_SMD).all()):
            return ["draws are not finite, so the fit has diverged (lower the learning rate)"]
        seen_SMB = log_likelihoods(posterior, batches, draws=_DRAWS)
        best_M = seen_SMB.sum(-1).argmax(0)
        chosen_MD = weights_SMD[best_M, torch.arange(members, device=best_M.device)]
        point = Point(posterior.model, chosen_MD, buffers_M=posterior.buffers_M, calibration=posterior.calibration)
        problems = Descended(weights_MD=chosen_MD, buffers=posterior.buffers_M or {}, result=point).look(case)
        problems = problems or _collapsed(posterior, weights_SMD) or _wide(posterior, batches, seen_SMB)
        return problems or unexplained(posterior, source)


def _collapsed(posterior: Posterior, weights_SMD: Tensor) -> list[str]:
    """Return the problem of draws that are all equal."""
    stds_D = posterior.model.prior.stds().to(weights_SMD.device)
    scale_D = torch.where(torch.isfinite(stds_D), stds_D, 1.0)
    spread_M = (weights_SMD.std(0).double() / scale_D).square().mean(-1).sqrt()
    return [
        f"the draws of member {m} are {float(spread_M[m]):.2g} prior standard deviations apart: the "
        f"distribution has collapsed to a point (raise `kl_weight` or `initial_scale`, or lower the learning rate)"
        for m in first(spread_M < _STILL)
    ]


def _wide(posterior: Posterior, batches: Sequence[Batch], seen_SMB: Tensor) -> list[str]:
    """Return the problem of draws whose average explains the training rows worse than a constant does."""
    count = num_targets(posterior.model, batches)
    together_M = together(seen_SMB, count)
    best = best_constant(posterior.model, batches, posterior.sample(posterior.members)[0])
    constant = -math.inf if best is None else best.value
    problems = [
        f"the training rows are less likely under the draws of member {m} together than under a constant "
        f"({float(together_M[m]):.4g} against {constant:.4g} nats a target), as they are spread wider than the data "
        f"bear (lower `kl_weight`, or train longer)"
        for m in first(together_M < constant - _WORTHLESS)
    ]
    return problems or learned_nothing(best, lambda: seen_SMB, count)
