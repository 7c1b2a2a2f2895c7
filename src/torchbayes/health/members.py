r"""Which members of a run that began at trained networks are worth keeping, each judged against where it began.

With f̄_m the mean prediction of member m on training rows, and D weights:

    dead      sd over rows of f̄_m ≤ 10⁻³ of the largest of all members: predictions do not depend on inputs    dropped
    stuck     log density and log likelihood far below the highest of all members (`health.chains`)          dropped
    frozen    squared distance of the predictions of draws in turn ≤ 10⁻⁶ of the variance over rows         replaced
    lost      log density of held-out rows < that of the network where it began, by more than two standard
              errors of the paired difference                                                               replaced

A member is replaced by the network where it began. If the mixture of all is lost against these networks, all are. So on
held-out rows a run is not worse than its start, up to two standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchbayes.health.chains import STUCK_SAID, named, stuck, were
from torchbayes.health.ending import Case, Ending, finite
from torchbayes.health.residuals import unexplained
from torchbayes.model.batches.batch import Batch
from torchbayes.model.layout import broadcasting
from torchbayes.model.likelihoods.protocol import scored
from torchbayes.model.sources.sources import Source
from torchbayes.posteriors.functions import Functions
from torchbayes.predictive.average import Predictive

_DEAD, _FROZEN, _LOST = 1e-3, 1e-6, 2.0
_ROWS, _DRAWS = 512, 16  # training rows and draws of each member that are looked at


@dataclass(frozen=True, kw_only=True)
class Began(Ending):
    """A run of members that began at trained networks, in modes of their own: they need not agree with each other."""

    def look(self, case: Case) -> list[str]:
        return finite(case) or unexplained(case.posterior, case.source)


@dataclass(frozen=True)
class Verdict:
    """What becomes of the members of a run."""

    dropped_M: Tensor  # bool
    replaced_M: Tensor  # bool, by the network where it began
    said: tuple[str, ...]  # why, one sentence each


def judged(
    posterior: Any,
    start: Any,
    source: Source,
    *,
    held_out: Sequence[Batch] | None,
    columns: Mapping[str, Tensor] | None = None,
) -> Verdict:
    """Return what becomes of the members of draws, `weights_MSD`, that began at the members of a point posterior.

    `held_out` are rows that neither saw; None if there are none. `columns` are the last reports of the
    run, each (M, R), as `chains.stuck` takes them.
    """
    members, size = posterior.members, posterior.weights_MSD.shape[-1]
    batches = source.some(_ROWS)
    mean_SMN = torch.cat([_predictions(posterior, batch) for batch in batches], -1)
    spread_M = mean_SMN.mean(0).std(-1)
    jump_M = mean_SMN.diff(dim=0).square().mean((0, 2))
    dead_M = ~(spread_M > _DEAD * spread_M.max())
    frozen_M = ~(jump_M > _FROZEN * mean_SMN.var(-1).mean(0)) if len(mean_SMN) > 1 else torch.zeros_like(dead_M)
    stuck_M = stuck(columns, size, source.num_data) if columns else torch.zeros_like(dead_M)
    dropped_M = dead_M | stuck_M
    if dropped_M.all():
        dropped_M = torch.zeros_like(dropped_M)
    lost_M, whole = torch.zeros_like(dead_M), False
    if held_out is not None:
        ours_MN, first_MN, weights_N = _densities(posterior, start, held_out)
        lost_M = torch.stack([_worse(*pair, weights_N) for pair in zip(ours_MN, first_MN, strict=True)])
        kept_MN = torch.where((frozen_M | lost_M).unsqueeze(1), first_MN, ours_MN)[~dropped_M]
        whole = bool(_worse(_averaged(kept_MN), _averaged(first_MN), weights_N))
    replaced_M = (frozen_M | lost_M) & ~dropped_M
    if whole:
        said = f"all {members} chains became the networks where they began, which predict held-out rows better"
        return Verdict(torch.zeros_like(dropped_M), torch.ones_like(replaced_M), (said,))
    reasons = [
        (dead_M & dropped_M, "dropped: predictions do not depend on inputs"),
        (stuck_M & ~dead_M & dropped_M, STUCK_SAID),
        (lost_M & replaced_M, "replaced by the network where it began, which predicts held-out rows better"),
        (frozen_M & ~lost_M & replaced_M, "replaced by the network where it began, as predictions hardly moved"),
    ]
    said = [f"{named(which_M)} {were(which_M)} {why}" for which_M, why in reasons if which_M.any()]
    return Verdict(dropped_M, replaced_M, tuple(said))


def _predictions(posterior: Any, batch: Batch) -> Tensor:
    """Return the mean prediction of some draws of each member for the rows of a batch, float64 (S, M, numbers)."""
    members, length, _ = posterior.weights_MSD.shape
    places = torch.linspace(0, length - 1, min(length, _DRAWS)).round().long().to(posterior.weights_MSD.device)
    some_SMD = posterior.weights_MSD[:, places].transpose(0, 1)
    functions = Functions(posterior.model, some_SMD.flatten(0, 1), _repeated(posterior, len(places)))
    outputs_SBK = functions(batch.inputs)
    parameters = broadcasting(functions.parameters, outputs_SBK)
    kind = posterior.model.likelihood.distribution(outputs_SBK, parameters)
    values = getattr(kind, "probs", None)
    if values is None:
        try:
            values = kind.mean
        except NotImplementedError:
            values = outputs_SBK
    return values.double().flatten(1).unflatten(0, (-1, members)).cpu()


def _repeated(posterior: Any, draws: int) -> Any:
    buffers = posterior.buffers_M or posterior.model.network.stacked_buffers(posterior.members)
    return {name: torch.cat([each_M] * draws) for name, each_M in buffers.items()} or None


def _densities(posterior: Any, start: Any, held_out: Sequence[Batch]) -> tuple[Tensor, Tensor, Tensor]:
    """Return log densities of held-out rows under each member and under where it began, (M, N), and rows' weights."""
    drawn, first = posterior.functions(), start.functions()
    densities = [(*(_by_member(each, batch, posterior.members) for each in (drawn, first)),) for batch in held_out]
    ours, theirs = (torch.cat([each[k][0] for each in densities], 1) for k in range(2))
    return ours, theirs, torch.cat([each[0][1] for each in densities])


def _by_member(functions: Functions, batch: Batch, members: int) -> tuple[Tensor, Tensor]:
    outputs_SBK = functions(batch.inputs)
    parameters = broadcasting(functions.parameters, outputs_SBK)
    judge = scored(functions.model.likelihood, outputs_SBK[0], batch.targets)
    densities_MB = [
        Predictive(
            outputs_SBK[m::members], functions.model.likelihood, {n: p[m::members] for n, p in parameters.items()}
        ).log_prob(batch.targets)
        for m in range(members)
    ]
    weights_B = torch.ones(batch.size) if judge.row_weights is None else judge.row_weights.cpu()
    return torch.stack(densities_MB).double().cpu(), weights_B.double()


def _averaged(each_MN: Tensor) -> Tensor:
    return torch.logsumexp(each_MN, 0) - math.log(len(each_MN))


def _worse(ours_N: Tensor, theirs_N: Tensor, weights_N: Tensor) -> Tensor:
    """Return whether densities are clearly lower than others of the same rows."""
    difference_N = (ours_N - theirs_N).nan_to_num(nan=-math.inf)
    total = weights_N.sum()
    mean = (weights_N * difference_N).sum() / total
    error = ((weights_N * (difference_N - mean).square()).sum() / total).sqrt() / total.sqrt()
    return ~(mean >= -_LOST * error)
