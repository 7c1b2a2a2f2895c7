"""Whether the networks of a result differ: functions along one run, or points that interact."""

from __future__ import annotations

from typing import Any

import torch

from torchbayes.health.change import SAME, changes
from torchbayes.health.ending import Case
from torchbayes.posteriors.point import Point

_ROWS = 512
_SAME = 1e-4  # of the size of the particles; those no farther apart count as one


def alike(case: Case) -> list[str]:
    """Return the problem of an ensemble that is one network, as one clause.

    The outputs of the first and the last network kept of each member are compared on about 512 training rows: the
    root mean square of their difference with the standard deviation of the outputs over the rows.
    """
    posterior, source = case.posterior, case.source
    if posterior.weights_MSD.shape[1] < 2:
        return []
    options: dict[str, Any] = {"buffers_M": posterior.buffers_M, "statistics_known": posterior.statistics_known}
    first, last = (Point(posterior.model, posterior.weights_MSD[:, at], **options) for at in (0, -1))
    share_M = changes(first, last, source.some(_ROWS))
    same = [] if share_M is None else (share_M <= SAME).nonzero()[:, 0].tolist()
    if share_M is None or not same:
        return []
    return [
        f"the networks kept of member {same[0]} are one function: from the first to the last of them the outputs "
        f"change by {float(share_M[same[0]]):.1g} standard deviations, so that their average is a single network "
        f"(raise the learning rate of the cycles, or make these longer)"
    ]


def one_point(case: Case) -> list[str]:
    """Return the problem of several particles that are one point, as one clause."""
    weights_MD = case.posterior.weights_MD.double()
    if len(weights_MD) < 2:
        return []
    farthest = float(torch.cdist(weights_MD, weights_MD).max())
    size = float(torch.linalg.vector_norm(weights_MD[0]))
    if farthest > _SAME * size:
        return []
    return [
        f"all {len(weights_MD)} particles are at the same point, no farther than {farthest:.2g} from each other at a "
        f"norm of {size:.3g}, so that they are one network and not a posterior (the force between them is too weak: "
        f"leave `bandwidth` to the median, or set `annealing`)"
    ]
