"""How far networks differ as functions on training rows, so that a result whose draws are one function is found."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchbayes.model.batches.batch import Batch
from torchbayes.posteriors.point import Point

SAME = 1e-3  # change of outputs, relative to how much they vary over the rows, at which networks are one function


def changes(before: Point, after: Point, batches: Sequence[Batch]) -> Tensor | None:
    """Return how far outputs change from networks to others, against how much they vary over the rows.

    Args:
        before: M networks.
        after: as many others.
        batches: the rows, of which also come the batch-norm statistics of both.

    Returns:
        Root mean square change over standard deviation, float64 (M,): 0 where there is no change, infinite where only
        the variation is 0. None where outputs of batches differ in size, such as those of texts padded batch by batch.
    """
    both: list[Tensor] = []
    for networks in (before, after):
        drawn = networks.calibrated(lambda: (batch.inputs for batch in batches)).functions(networks.members)
        each = [drawn(batch.inputs, chunk_size=batch.size).double().flatten(2) for batch in batches]
        if len({outputs.shape[2] for outputs in each}) > 1:
            return None
        both.append(torch.cat(each, 1))
    moved_M = (both[1] - both[0]).square().sum((1, 2))
    varied_M = (both[0] - both[0].mean(1, keepdim=True)).square().sum((1, 2))
    return (moved_M / varied_M).sqrt().where(moved_M != 0, 0.0)
