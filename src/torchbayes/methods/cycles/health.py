"""Checks of networks kept along one run: whether they are different functions."""

from __future__ import annotations

from typing import Any

from torchbayes.methods.change import SAME, changes
from torchbayes.model.rows.sources import Source
from torchbayes.posteriors.draws import Draws
from torchbayes.posteriors.point import Point

_ROWS = 512


def alike(posterior: Draws, source: Source) -> list[str]:
    """Return the problem of an ensemble that is one network, as one clause.

    The outputs of the first and the last network kept of each member are compared on about 512 training rows: their
    root mean square difference with the standard deviation of the outputs over the rows.

    Args:
        posterior: the networks, with training inputs for recalibration, if they need them.
        source: the training data.
    """
    if posterior.weights_MSD.shape[1] < 2:
        return []
    about: dict[str, Any] = {"buffers_M": posterior.buffers_M, "statistics_known": posterior.statistics_known}
    first, last = (Point(posterior.model, posterior.weights_MSD[:, at], **about) for at in (0, -1))
    share_M = changes(first, last, source.some(_ROWS))
    same = [] if share_M is None else (share_M <= SAME).nonzero()[:, 0].tolist()
    if share_M is None or not same:
        return []
    return [
        f"the networks kept of member {same[0]} are one function: from the first to the last of them the outputs "
        f"change by {float(share_M[same[0]]):.1g} standard deviations, so that their average is a single network "
        f"(raise the learning rate of the cycles, or make these longer)"
    ]
