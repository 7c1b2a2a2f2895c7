"""Whether the networks of a result differ: functions along one run, or points that interact."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchbayes.health.ending import Case, first
from torchbayes.model.batches.batch import Batch
from torchbayes.posteriors.point import Point

SAME = 1e-3  # below this change of outputs, relative to their variation over the rows, networks are one function
_ROWS = 512
_SAME = 1e-4  # of the size of the particles; those no farther apart count as one


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


def alike(case: Case) -> list[str]:
    """Return the problem of an ensemble that is one network, as one clause.

    The outputs of the first and the last network kept of each member are compared on about 512 training rows: the
    root mean square of their difference with the standard deviation of the outputs over the rows.
    """
    posterior, source = case.posterior, case.source
    if posterior.weights_MSD.shape[1] < 2:
        return []
    begin, end = (
        Point(
            posterior.model,
            posterior.weights_MSD[:, at],
            buffers_M=posterior.buffers_M,
            statistics_known=posterior.statistics_known,
        )
        for at in (0, -1)
    )
    share_M = changes(begin, end, source.some(_ROWS))
    if share_M is None:
        return []
    return [
        f"the networks kept of member {m} are one function: from the first to the last of them the outputs "
        f"change by {float(share_M[m]):.1g} standard deviations, so that their average is a single network "
        f"(raise the learning rate of the cycles, or make these longer)"
        for m in first(share_M <= SAME)
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
