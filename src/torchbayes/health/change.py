"""How far networks differ as functions on training rows, which reveals a result whose draws are one function."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchbayes.model.batches.batch import Batch
from torchbayes.posteriors.point import Point

SAME = 1e-3  # below this change of outputs, relative to their variation over the rows, networks are one function


def changes(before: Point, after: Point, batches: Sequence[Batch]) -> Tensor | None:
    """Return the root mean square change of outputs from M networks to M others, in standard deviations over rows.

    Float64 (M,): 0 where there is no change, infinite where only the variation is 0. Batch-norm statistics of both
    come from the rows too. None where outputs of batches differ in size, such as those of texts padded batch by
    batch.
    """
    outputs: list[Tensor] = []
    for networks in (before, after):
        drawn = networks.calibrated(lambda: (batch.inputs for batch in batches)).functions(networks.members)
        blocks = [drawn(batch.inputs, chunk_size=batch.size).double().flatten(2) for batch in batches]
        if len({outputs.shape[2] for outputs in blocks}) > 1:
            return None
        outputs.append(torch.cat(blocks, 1))
    moved_M = (outputs[1] - outputs[0]).square().sum((1, 2))
    varied_M = (outputs[0] - outputs[0].mean(1, keepdim=True)).square().sum((1, 2))
    return (moved_M / varied_M).sqrt().where(moved_M != 0, 0.0)
