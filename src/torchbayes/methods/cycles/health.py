"""Checks of networks kept along one run: whether they are different functions."""

from __future__ import annotations

from typing import Any

import torch

from torchbayes.model.rows.sources import Source
from torchbayes.posteriors.draws import Draws
from torchbayes.posteriors.point import Point

_ROWS = 512
_SAME = 1e-3  # change of outputs, relative to how much they vary over the rows


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
    batches, members = source.some(_ROWS), posterior.members
    about: dict[str, Any] = {
        "buffers_M": posterior.buffers_M,
        "statistics_known": posterior.statistics_known,
        "calibration": lambda: (batch.inputs for batch in batches),
    }
    first, last = (Point(posterior.model, posterior.weights_MSD[:, at], **about).functions(members) for at in (0, -1))
    before, after = ([f(b.inputs, chunk_size=b.size).double().flatten(2) for b in batches] for f in (first, last))
    if len({outputs.shape[2] for outputs in before}) > 1:  # such as texts that are padded batch by batch
        return []
    before_MBK, after_MBK = torch.cat(before, 1), torch.cat(after, 1)
    moved_M = (after_MBK - before_MBK).square().sum((1, 2))
    varied_M = (before_MBK - before_MBK.mean(1, keepdim=True)).square().sum((1, 2))
    same = (moved_M <= _SAME**2 * varied_M).nonzero()[:, 0].tolist()
    if not same:
        return []
    share = float((moved_M / varied_M).nan_to_num(0.0)[same[0]].sqrt())
    return [
        f"the networks kept of member {same[0]} are one function: from the first to the last of them the outputs "
        f"change by {share:.1g} standard deviations, so that their average is a single network (raise the learning "
        f"rate of the cycles, or make these longer)"
    ]
